#!/usr/bin/env bash
# Packs what a training run needs beside torch and transformers into .gpu/ (32 MB), for a GPU machine without a network.
# Run it in the project's root on a machine with pip and a network; it takes 2 to 4 minutes. `python -m benchmarks.gpu` unpacks it.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
packages=(annotated-types antlr4-python3-runtime docstring-parser fastapi httptools jsonschema jsonschema-specifications
  latex2sympy2-extended math-verify omegaconf orjson pydantic pydantic-core pydantic-settings pyseccomp python-dotenv referencing
  rpds-py starlette tenacity typing-inspection uvicorn)
platforms=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for glibc in 39 35 34 31 28 27 24 17 12 5; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done

download() {
  "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" \
    --constraint <(grep -v '^torch' constraints.txt) --dest "$@"
}

mkdir -p .gpu
if [ ! -d .gpu/wheels ]; then
  rm -rf .gpu/wheels.part
  download .gpu/wheels.part "${packages[@]}"
  mv .gpu/wheels.part .gpu/wheels
fi
if [ ! -f .gpu/ray.tar.xz ]; then # the wheel of Ray is too large to carry whole
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  download "$folder" ray
  "$python" -m zipfile -e "$folder"/ray-*.whl "$folder/site"
  (cd "$folder/site" && rm -rf ray/jars ray/rllib ray/serve ray/tune ray/train ray/data ray/llm ray/dashboard/client)
  tar -cJf .gpu/ray.tar.xz.part -C "$folder/site" .
  mv .gpu/ray.tar.xz.part .gpu/ray.tar.xz
fi
du -sh .gpu
