"""Files beside a program hide modules of the same name, whatever a warm interpreter has imported already."""

import base64

import pytest
from judge_in_process import JudgeInProcess

from code_judge_server.judging.preload_choice import shadows_modules

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("path", ["string.py", "random.py", "bisect/__init__.py"])
async def test_the_file_is_imported(fresh_judge: JudgeInProcess, path: str) -> None:
    name = path.partition("/")[0].removesuffix(".py")
    files = {path: base64.b64encode(b"MINE = 1").decode()}
    verdict = await fresh_judge.verdict(code=f"import {name}; print({name}.MINE)", files=files)
    assert (verdict.stdout, verdict.stderr) == ("1\n", "")


@pytest.mark.parametrize("path", ["numpy/core.py", "_bisect.so", "json.py", "data/json.txt", "sympy/x/y.txt"])
async def test_files_that_may_hide_modules_are_seen(path: str) -> None:
    assert shadows_modules([path]) is (not path.startswith("data"))


@pytest.mark.parametrize("path", ["mine.py", "json", "json.txt", "my-module.py", "input.txt", "no_such_package/a.py"])
async def test_other_files_cost_no_warm_interpreter(path: str) -> None:
    assert not shadows_modules([path])
