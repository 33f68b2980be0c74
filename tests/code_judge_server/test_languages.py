"""The table of languages: built-in rows, rows of the settings, and unsupported fields of submissions."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from code_judge_server.languages import (
    BUILT_IN,
    OPTIONS,
    LanguageRules,
    command_for,
    offered_languages,
    paths_to_show,
    wrong_fields,
)
from code_judge_server.schemas import Submission
from code_judge_server.settings import Settings


def fields_of(**submission: Any) -> list[str]:
    errors = wrong_fields(Submission(id="a", **{"code": "", **submission}), offered_languages({}))
    return [error.field for error in errors]


def test_the_judges_own_python_and_installed_languages_are_offered() -> None:
    offered = offered_languages({})
    assert offered["python"].run == (sys.executable, "main.py")
    for name, program in {"cpp": "g++", "cpp20": "g++", "c23": "gcc", "bash": "bash", "javascript": "node"}.items():
        assert (name in offered) == (shutil.which(program) is not None)


def test_programs_are_found_by_their_whole_path() -> None:
    for rules in offered_languages({}).values():
        for command in filter(None, (rules.compile, rules.run)):
            assert command[0].startswith(("/", "./"))


def test_a_row_of_the_settings_is_added_or_replaces_one() -> None:
    settings = Settings(
        languages={
            "sh": LanguageRules(source="a.sh", run=("sh", "a.sh")),
            "bash": LanguageRules(source="b.sh", run=("sh", "b.sh")),
        }
    )
    offered = offered_languages(settings.languages)
    assert offered["sh"].run == (shutil.which("sh"), "a.sh")
    assert offered["bash"].source == "b.sh"
    assert "python" in offered


def test_rows_come_from_the_environment_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE_JUDGE_LANGUAGES", '{"sh": {"source": "a.sh", "run": ["sh", "a.sh"]}}')
    assert Settings().languages["sh"].run == ("sh", "a.sh")


@pytest.mark.parametrize("command", ["run", "compile"])
def test_a_row_with_a_missing_program_is_not_offered(command: str, caplog: pytest.LogCaptureFixture) -> None:
    row = {"source": "a", "compile": ["sh"], "artifact": "b", "run": ["sh"], command: ["no-such-compiler", "a"]}
    assert "x" not in offered_languages({"x": LanguageRules.model_validate(row)})
    assert "no-such-compiler" in caplog.text


@pytest.mark.parametrize(
    "command", [["env", "-u", "HOME", "sh", "a.sh"], ["env", "-i", "A=1", "sh", "a.sh"], ["env", "A=1", "-i", "sh"]]
)
def test_a_row_may_give_options_to_env(command: list[str]) -> None:
    row = LanguageRules.model_validate({"source": "a.sh", "run": command})
    assert offered_languages({"x": row})["x"].run == (shutil.which("env"), *command[1:])


@pytest.mark.parametrize(
    "row",
    [
        {"source": "a", "run": []},
        {"source": "../a", "run": ["sh"]},
        {"source": "/a", "run": ["sh"]},
        {"source": "a", "run": ["sh"], "compile": ["sh"]},
        {"source": "a", "run": ["sh"], "artifact": "b"},
        {"source": "a", "run": ["sh"], "flags": []},
    ],
)
def test_a_wrong_row_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LanguageRules.model_validate(row)


def test_only_a_python_row_may_be_run_by_a_warm_interpreter() -> None:
    assert [name for name, rules in BUILT_IN.items() if rules.preload] == ["python"]


@pytest.mark.parametrize("name", ["cpp", "cpp20", "cpp23"])
def test_the_header_of_cpp_is_compiled_with_the_flags_of_the_language(name: str) -> None:
    cpp = BUILT_IN[name]
    assert cpp.compile is not None
    assert cpp.precompiled_header is not None
    assert cpp.precompiled_header.compile[:3] == cpp.compile[:3]


@pytest.mark.parametrize(
    ("submission", "fields"),
    [
        ({}, []),
        ({"language": "cobol"}, ["language"]),
        ({"checker": {"kind": "program", "code": "", "language": "cobol"}}, ["checker.language"]),
        ({"checker": {"kind": "exact", "language": "cobol"}}, []),
        ({"files": {"main.py": b""}}, ["files.main.py"]),
        ({"files": {"main.py/x": b""}}, ["files.main.py/x"]),
        ({"files": {"main": b""}}, []),
        ({"compile_options": ["-O3"]}, ["compile_options"]),
        ({"compile_options": ["-O3"], "language": "cpp"}, []),
        ({"files": {"main.cpp": b"", "main": b"", "a/main": b""}, "language": "cpp"}, ["files.main.cpp", "files.main"]),
    ],
)
def test_unsupported_fields_are_named(submission: dict[str, Any], fields: list[str]) -> None:
    assert fields_of(**submission) == fields


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_row_names_its_own_files(name: str) -> None:
    row = BUILT_IN[name]
    words = " ".join([*(row.compile or ()), *row.run])
    assert row.source in words
    assert row.artifact is None or row.artifact in " ".join(row.run)


@pytest.mark.parametrize(
    ("programs", "name", "run"),
    [
        (["lua5.4"], "lua", ("lua5.4", "main.lua")),
        (["luajit", "lua5.3"], "lua", ("lua5.3", "main.lua")),
        (["lua", "lua5.4"], "lua", ("lua", "main.lua")),
        (["tsx", "node"], "typescript", ("tsx", "main.ts")),
        (["ts-node", "node"], "typescript", ("ts-node", "-T", "main.ts")),
        (["node"], "typescript", ("node", "--experimental-strip-types", "main.ts")),
        (["ruby"], "ruby", ("ruby", "main.rb")),
        (["Rscript"], "r", ("Rscript", "main.R")),
        (["jest"], "jest", None),  # without node
        (["go"], "go", ("./main",)),
        (["php"], "php", ("php", "main.php")),
        (["java"], "java", None),  # a runtime without a compiler
        (["node"], "lua", None),
    ],
)
def test_a_language_is_offered_with_an_existing_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: list[str], name: str, run: tuple[str, ...] | None
) -> None:
    for program in ("env", *programs):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    offered = offered_languages({})
    if run is None:
        assert name not in offered
    else:
        command = offered[name].run
        words = command[2:] if command[0] == str(tmp_path / "env") else command
        first = run[0] if run[0].startswith("./") else str(tmp_path / run[0])
        assert words == (first, *run[1:])


@pytest.mark.skipif(shutil.which("java") is None, reason="needs java")
@pytest.mark.parametrize("name", ["java", "kotlin", "kotlin_script", "scala"])
def test_the_heap_of_a_jvm_is_70_percent_of_the_memory_limit(name: str) -> None:
    run = command_for(BUILT_IN[name].run, memory_bytes=400 << 20)
    flags = [word for word in " ".join(run).replace("JAVA_OPTS=", "").split() if word.startswith("-X")]
    listing = subprocess.check_output(["java", *flags, "-XX:+PrintFlagsFinal", "-version"], text=True)
    heap_bytes = int(re.findall(r"MaxHeapSize += (\d+)", listing)[0])
    assert heap_bytes == pytest.approx(280 << 20, rel=0.01)


@pytest.mark.parametrize("name", ["go", "go_test"])
def test_go_looks_for_modules_in_its_folder_for_temporary_files(name: str) -> None:
    """The program's folder is that folder in tiers C and D, and Go ignores the absolute path of it."""
    command = BUILT_IN[name].compile or BUILT_IN[name].run
    assert "TMPDIR=." in command[: command.index("go")]


def test_patterns_match_existing_paths(tmp_path: Path) -> None:
    for version in (11, 17):
        (tmp_path / f"java-{version}-openjdk").mkdir()
    row = LanguageRules(source="a", run=("sh",), read_only_paths=(f"{tmp_path}/java-*-openjdk", f"{tmp_path}/none"))
    assert paths_to_show({"x": row}) == [f"{tmp_path}/java-11-openjdk", f"{tmp_path}/java-17-openjdk"]


def test_a_command_has_its_memory_limit_and_options() -> None:
    command = ("a", OPTIONS, "-m{memory_mb}m", "{other}")
    assert command_for(command, memory_bytes=64 << 20, options=["b", "c"]) == ("a", "b", "c", "-m64m", "{other}")
    assert command_for(command, memory_bytes=64 << 20) == ("a", "-m64m", "{other}")
