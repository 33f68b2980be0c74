"""How a submission's source becomes a program: one line of the table per language."""

import shutil
import sys
from dataclasses import dataclass

from code_judge_server.sandbox import Program
from code_judge_server.schemas import Language


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRules:
    """How one language is compiled and run; relative names are in the program's folder."""

    source_name: str
    compile_argv: tuple[str, ...] | None
    run_argv: tuple[str, ...]
    needs: str
    """Program that must be installed."""


LANGUAGES = {
    Language.PYTHON: LanguageRules(
        source_name="main.py",
        compile_argv=None,
        run_argv=(sys.executable, "main.py"),
        needs=sys.executable,
    ),
    Language.CPP: LanguageRules(
        source_name="main.cpp",
        compile_argv=("g++", "-std=c++17", "-O2", "-o", "main", "main.cpp"),
        run_argv=("./main",),
        needs="g++",
    ),
}


def available_languages() -> list[Language]:
    """Return the languages whose compiler or interpreter is on this machine."""
    return [language for language, rules in LANGUAGES.items() if shutil.which(rules.needs)]


def as_program(language: Language, code: str) -> Program:
    """Return the program that `code` is."""
    rules = LANGUAGES[language]
    return Program(files={rules.source_name: code.encode()}, compile_argv=rules.compile_argv, run_argv=rules.run_argv)
