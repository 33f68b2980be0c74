"""The table of languages: one row per language, from source to program; the settings may add rows."""

import glob
import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from code_judge_server.schemas import Checker, FieldError, Submission
from code_judge_server.wire_fields import FilePath, LanguageName

logger = logging.getLogger(__name__)

OPTIONS = "{options}"
_MEMORY_MB = "{memory_mb}"
_SHELLS = ("sh", "bash", "dash")
Command = Annotated[tuple[str, ...], Field(min_length=1)]


class PrecompiledHeaderRules(BaseModel):
    """The compilation of a precompiled header, as for g++: `header` beside `header.gch` in a folder of the include path."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    header: FilePath
    """Name of the header as in `#include <...>`."""
    source: FilePath = "header.h"
    """File that consists of that `#include` line."""
    compile: Command
    """Makes `artifact` of `source`, with the flags of the language's own `compile`: the compiler ignores it with other
    flags."""
    artifact: FilePath = "header.gch"


class LanguageRules(BaseModel):
    """One language's compilation and run; relative names are in the program's folder.

    In `compile` and `run`, `{memory_mb}` stands for the memory limit in MiB.

    Example: `{"source": "a.d", "compile": ["dmd", "{options}", "-of=a", "a.d"], "artifact": "a", "run": ["./a"]}`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    source: FilePath
    """File that the code is written to."""
    compile: Command | None = None
    """Makes `artifact` of `source` and the submission's files; exit code 0 is success. Absent: nothing is compiled. The word
    `{options}` stands for a submission's `compile_options`; a row without it takes none."""
    artifact: FilePath | None = None
    """The one file that `compile` makes and `run` needs; of several files, such as classes, an archive."""
    precompiled_header: PrecompiledHeaderRules | None = None
    """Compiled once, and used for sources that begin with its `#include`."""
    run: Command
    """Runs `artifact`, or `source` if there is no `compile`."""
    probe: Command | None = None
    """Run in the jail when the server starts; the language is offered only if it exits with 0."""
    read_only_paths: tuple[str, ...] = ()
    """Absolute paths (patterns) outside the system's folders that its programs read; jobs see those that exist."""
    preload: bool = False
    """`run` is this server's Python and a script; a warm interpreter may take its place."""

    @model_validator(mode="after")
    def _check_artifact(self) -> "LanguageRules":
        if (self.compile is None) != (self.artifact is None):
            raise ValueError("`compile` and `artifact` go together: name both, or neither")
        return self

    @property
    def takes_options(self) -> bool:
        """True if a submission may name options for the compiler."""
        return self.compile is not None and OPTIONS in self.compile

    @property
    def programs(self) -> list[str]:
        """Programs that must exist on the machine and in the jail."""
        commands = filter(None, (self.compile, self.run, self.probe))
        programs = map(_program_of, commands)
        return list(dict.fromkeys(program for program in programs if not program.startswith("./")))

    @property
    def compiler(self) -> str:
        """The program that `compile`, which must be present, runs; behind a shell, the one that `probe` tries."""
        assert self.compile is not None, "the row has no compiler"
        program = _program_of(self.compile)
        if self.probe is not None and os.path.basename(program) in _SHELLS:
            return _program_of(self.probe)
        return program


def _cpp(standard: str, *, is_young: bool = False) -> LanguageRules:
    """Return the row of a dialect; older compilers may not know a young dialect."""
    flags = ("g++", f"-std={standard}", "-O2")
    return LanguageRules(
        source="main.cpp",
        compile=(*flags, "-o", "main", "main.cpp", OPTIONS),
        artifact="main",
        precompiled_header=PrecompiledHeaderRules(
            header="bits/stdc++.h",
            compile=(*flags, "-x", "c++-header", "-o", "header.gch", "header.h"),
        ),
        run=("./main",),
        probe=(*flags, "-fsyntax-only", "-x", "c++", "/dev/null") if is_young else None,
    )


def _c(standard: str) -> LanguageRules:
    flags = ("gcc", f"-std={standard}", "-O2")
    return LanguageRules(
        source="main.c",
        compile=(*flags, "-o", "main", "main.c", OPTIONS, "-lm"),
        artifact="main",
        run=("./main",),
    )


_NODE = ("env", "NODE_PATH=/usr/local/lib/node_modules:/usr/lib/node_modules")
"""Makes packages of `npm install -g` available, as in an ordinary project."""
_GO = ("env", "GO111MODULE=auto", "GOPATH=/usr/share/gocode", "TMPDIR=.")
"""Makes Debian's library packages available; a program with a `go.mod` among its files is a module. Go ignores a `go.mod` in
the folder for temporary files, which is the program's folder in tiers C and D."""
_JVM = (
    "-XX:MaxRAM={memory_mb}m",
    "-XX:MaxRAMPercentage=70",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=4",
    "-XX:-UsePerfData",
    "-Xss64m",
)
"""The heap is 70 % of the memory limit; a deep recursion fits into the stack of the main thread."""
_JVM_BY_SCRIPT = ("env", f"JAVA_OPTS={' '.join(_JVM)}")
"""The same for the start scripts of Scala and Kotlin, whose heap is otherwise 256 MiB at any limit."""
_JAVATUPLES = "/usr/share/java/javatuples.jar"
"""Debian's path; programs of MultiPL-E import it, and Java ignores a missing file."""
_JAVA_COMPILE = (
    f'javac -encoding UTF-8 -cp ".:*:{_JAVATUPLES}" -d .classes "$@" Main.java && jar cf main.jar -C .classes .'
)
_HAS_PYTEST = "from importlib.util import find_spec; raise SystemExit(find_spec('pytest') is None)"
_HAS_JEST = "for (const name of ['jest', '@babel/preset-env', '@babel/preset-typescript']) require.resolve(name)"
_LISTENS = "require('net').createServer().listen(require('os').tmpdir() + '/probe', () => process.exit())"
"""Listens on a socket as `tsx` does; nothing can in tier C."""
_READ_BY_JAVA = ("/etc/java-*-openjdk",)
_READ_BY_NODE = ("/etc/ssl/openssl.cnf",)
"""Node starts without this file, but not if the file exists and may not be read, as in tier C."""
_JEST_CONFIG = (
    '--config={"transform": {"[.][jt]sx?$": ["babel-jest", {"presets":'
    ' ["@babel/preset-typescript", ["@babel/preset-env", {"targets": {"node": "current"}}]]}]}}'
)

BUILT_IN = {
    "python": LanguageRules(source="main.py", run=(sys.executable, "main.py"), preload=True),
    # GNU dialects, the compilers' default: ISO dialects hide `strdup`, `M_PI` and the traits of `__int128`.
    "cpp": _cpp("gnu++17"),
    "cpp20": _cpp("gnu++20"),
    "cpp23": _cpp("gnu++23", is_young=True),
    "c": _c("gnu17"),
    "c23": _c("gnu2x"),
    "bash": LanguageRules(source="main.sh", run=("bash", "main.sh")),
    "javascript": LanguageRules(
        source="main.js",
        run=(*_NODE, "node", "main.js"),
        probe=("node", "-e", "0"),
        read_only_paths=_READ_BY_NODE,
    ),
    "java": LanguageRules(
        source="Main.java",
        compile=("sh", "-c", _JAVA_COMPILE, "sh", "-J-XX:MaxRAM={memory_mb}m", OPTIONS),
        artifact="main.jar",
        run=("java", *_JVM, "-ea", "-cp", f"main.jar:.:*:{_JAVATUPLES}", "Main"),
        probe=("javac", "-version"),
        read_only_paths=_READ_BY_JAVA,
    ),
    "go": LanguageRules(
        source="main.go",
        compile=(*_GO, "go", "build", OPTIONS, "-o", "main", "main.go"),
        artifact="main",
        run=("./main",),
        probe=("go", "list", "fmt"),
    ),
    "go_test": LanguageRules(
        source="main_test.go",
        # With vet, findings such as a wrong verb of `Printf` fail the suite before a test has run.
        run=(*_GO, "go", "test", "-vet=off", "main_test.go"),
        probe=("go", "list", "fmt"),
    ),
    "rust": LanguageRules(
        source="main.rs",
        compile=("rustc", "--edition=2021", "-O", OPTIONS, "-o", "main", "main.rs"),
        artifact="main",
        run=("./main",),
        probe=("rustc", "--version"),
    ),
    "perl": LanguageRules(source="main.pl", run=("perl", "main.pl")),
    "lua": LanguageRules(source="main.lua", run=("lua", "main.lua")),
    "ruby": LanguageRules(source="main.rb", run=("ruby", "main.rb")),
    "r": LanguageRules(source="main.R", run=("Rscript", "main.R"), read_only_paths=("/etc/R",)),
    "php": LanguageRules(source="main.php", run=("php", "main.php"), read_only_paths=("/etc/php",)),
    "racket": LanguageRules(source="main.rkt", run=("racket", "main.rkt"), read_only_paths=("/etc/racket",)),
    "scala": LanguageRules(
        source="main.scala",
        compile=("scalac", "-J-XX:MaxRAM={memory_mb}m", OPTIONS, "-d", "main.jar", "main.scala"),
        artifact="main.jar",
        run=(*_JVM_BY_SCRIPT, "scala", "main.jar"),
        read_only_paths=_READ_BY_JAVA,
    ),
    "kotlin": LanguageRules(
        source="main.kt",
        compile=("kotlinc", OPTIONS, "-include-runtime", "-d", "main.jar", "main.kt"),
        artifact="main.jar",
        run=("java", *_JVM, "-ea", "-jar", "main.jar"),
        read_only_paths=_READ_BY_JAVA,
    ),
    "kotlin_script": LanguageRules(
        source="main.kts", run=(*_JVM_BY_SCRIPT, "kotlinc", "-script", "main.kts"), read_only_paths=_READ_BY_JAVA
    ),
    "d": LanguageRules(
        source="main.d", compile=("gdc", "-O2", OPTIONS, "-o", "main", "main.d"), artifact="main", run=("./main",)
    ),
    "d_ut": LanguageRules(
        source="main.d",
        compile=("gdc", "-funittest", OPTIONS, "-o", "main", "main.d"),
        artifact="main",
        run=("./main",),
    ),
    "verilog": LanguageRules(
        source="main.sv",
        compile=("iverilog", "-Wall", "-Winfloop", "-Wno-timescale", "-g2012", OPTIONS, "-o", "main.vvp", "main.sv"),
        artifact="main.vvp",
        run=("vvp", "-n", "main.vvp"),
    ),
    "typescript": LanguageRules(
        source="main.ts", run=(*_NODE, "tsx", "main.ts"), probe=("node", "-e", _LISTENS), read_only_paths=_READ_BY_NODE
    ),
    "pytest": LanguageRules(
        source="main_test.py",
        run=(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "main_test.py"),
        probe=(sys.executable, "-c", _HAS_PYTEST),
    ),
    "jest": LanguageRules(
        source="main.test.ts",
        run=(*_NODE, "jest", "--ci", _JEST_CONFIG, "--json", "--outputFile=jest-report.json", "main.test.ts"),
        probe=(*_NODE, "node", "-e", _HAS_JEST),
        read_only_paths=_READ_BY_NODE,
    ),
}
_OTHER_PROGRAMS = {
    "lua": [LanguageRules(source="main.lua", run=(name, "main.lua")) for name in ("lua5.4", "lua5.3", "luajit")],
    "typescript": [
        LanguageRules(
            source="main.ts",
            run=(*_NODE, *command, "main.ts"),
            probe=(*command, "-e", "0"),
            read_only_paths=_READ_BY_NODE,
        )
        # Node 22.6 and newer leave out the types themselves.
        for command in (("ts-node", "-T"), ("node", "--experimental-strip-types"))
    ],
}
"""Replacements for a built-in row whose programs are missing or do not work; the first that works is used."""


def offered_languages(from_settings: Mapping[str, LanguageRules]) -> dict[str, LanguageRules]:
    """Return the built-in rows and those of the settings, which win, whose programs are on this machine.

    The programs of these rows are absolute paths, so a job needs no PATH to find them. A row of the settings that is left out
    is logged.
    """
    offered = located_languages(from_settings)
    for name, rules in from_settings.items():
        if name not in offered:
            logger.warning("language `%s`: not offered, this machine lacks one of %s", name, rules.programs)
    return offered


def located_languages(from_settings: Mapping[str, LanguageRules]) -> dict[str, LanguageRules]:
    """Return the same as `offered_languages`, without log lines."""
    rows = BUILT_IN | dict(from_settings)
    located = {name: _located(rules) for name, rules in rows.items()}
    for name in _OTHER_PROGRAMS.keys() - from_settings.keys():
        located[name] = next(iter(_candidates(name)), None)
    return {name: rules for name, rules in located.items() if rules is not None}


def replacements(name: str, rules: LanguageRules) -> list[LanguageRules]:
    """Return the rows whose programs are on this machine and that may replace `rules`, the row of language `name`."""
    candidates = _candidates(name) if name in _OTHER_PROGRAMS else []
    return candidates[candidates.index(rules) + 1 :] if rules in candidates else []


def _candidates(name: str) -> list[LanguageRules]:
    return [rules for rules in map(_located, (BUILT_IN[name], *_OTHER_PROGRAMS[name])) if rules is not None]


def _located(rules: LanguageRules) -> LanguageRules | None:
    """Return `rules` with absolute programs, or None where one is not on this machine."""
    run = _with_path(rules.run)
    compile_ = None if rules.compile is None else _with_path(rules.compile)
    probe = None if rules.probe is None else _with_path(rules.probe)
    if run is None or (rules.compile is not None and compile_ is None) or (rules.probe is not None and probe is None):
        return None
    header = rules.precompiled_header
    if header is not None:
        header_compile = _with_path(header.compile)
        header = None if header_compile is None else header.model_copy(update={"compile": header_compile})
    return rules.model_copy(update={"run": run, "compile": compile_, "probe": probe, "precompiled_header": header})


def _with_path(command: Command) -> Command | None:
    words = list(command)
    for place in {0, _place_of_program(command)}:
        if not words[place].startswith("./"):
            path = shutil.which(words[place])
            if path is None:
                return None
            words[place] = path
    return tuple(words)


def _program_of(command: Command) -> str:
    return command[_place_of_program(command)]


def _place_of_program(command: Command) -> int:
    """Return the index of the program's name: the first word, or the first after `env` and its variables.

    With options of `env`, some of which take a word, it is that of `env` itself.
    """
    if os.path.basename(command[0]) != "env":
        return 0
    place = next((place for place, word in enumerate(command) if place > 0 and "=" not in word), 0)
    return 0 if any(word.startswith("-") for word in command[1 : place + 1]) else place


def paths_to_show(languages: Mapping[str, LanguageRules]) -> list[str]:
    """Return the paths on this machine that match the rows' `read_only_paths`."""
    patterns = {pattern for rules in languages.values() for pattern in rules.read_only_paths}
    return sorted(path for pattern in patterns for path in glob.glob(pattern))


def command_for(command: Command, *, memory_bytes: int, options: Sequence[str] = ()) -> tuple[str, ...]:
    """Return a row's command for one submission, with its memory limit and its compiler options."""
    words = [word for part in command for word in (options if part == OPTIONS else (part,))]
    if not any(_MEMORY_MB in word for word in command):
        return tuple(words)
    return tuple(word.replace(_MEMORY_MB, str(memory_bytes >> 20)) for word in words)


def wrong_fields(submission: Submission, languages: Mapping[LanguageName, LanguageRules]) -> list[FieldError]:
    """Return the fields of a submission that this server's table of languages cannot serve."""
    errors: list[FieldError] = []
    names = {
        "language": submission.language,
        "checker.language": _language_of(submission.checker),
        "interactor.language": submission.interactor and submission.interactor.language,
    }
    for field, name in names.items():
        if name is not None and name not in languages:
            offered = ", ".join(languages)
            errors.append(FieldError(field=field, message=f"`{name}` is not among this server's languages: {offered}"))
    rules = languages.get(submission.language)
    if submission.compile_options and rules is not None and not rules.takes_options:
        why = (
            f"the compiler of `{submission.language}` takes no options here" if rules.compile else "nothing is compiled"
        )
        errors.append(FieldError(field="compile_options", message=f"{why}: leave them out"))
    taken = set() if rules is None else {rules.source, rules.artifact}
    errors += [
        FieldError(field=f"files.{path}", message="conflicts with the program's own file of that name")
        for path in submission.files
        if path in taken or path.split("/")[0] in taken
    ]
    return errors


def _language_of(checker: Checker) -> str | None:
    return None if checker.code is None else checker.language
