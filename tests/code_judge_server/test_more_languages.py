"""A program of each language as people write it, in every tier that this machine gives: its input, arguments and options."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from judge_in_process import JudgeInProcess, judge_in_process

from code_judge_server.languages import BUILT_IN, offered_languages

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
STRONGEST = "A" if os.geteuid() == 0 else "B"

JAVA = """
import java.util.*;

interface Shape { long area(); }
record Square(long side) implements Shape { public long area() { return side * side; } }

public class Main {
    static class Depth { static int of(int n) { return n == 0 ? 0 : 1 + of(n - 1); } }
    enum Kind { A, B }

    public static void main(String[] words) {
        Scanner in = new Scanner(System.in);
        List<Shape> shapes = new ArrayList<>();
        while (in.hasNextLong()) shapes.add(new Square(in.nextLong()));
        Runnable print = () -> System.out.println(shapes.stream().mapToLong(Shape::area).sum());
        print.run();
        System.out.println(Kind.B + " " + Depth.of(50_000) + " é " + String.join(",", words));
    }
}
"""
GO = """
package main

import (
	"bufio"
	"fmt"
	"os"
	"sort"
	"strings"
)

func main() {
	line, _ := bufio.NewReader(os.Stdin).ReadString('\\n')
	words := strings.Fields(line)
	sort.Strings(words)
	fmt.Println(strings.Join(words, " "), strings.Join(os.Args[1:], ","))
}
"""
RUST = """
use std::collections::BTreeMap;
use std::io::Read;

fn main() {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).unwrap();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for word in text.split_whitespace() { *counts.entry(word).or_insert(0) += 1; }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    println!("{:?} {}", counts, arguments.join(","));
}
"""
PROGRAMS = {
    "java": (JAVA, "3 4\n", "25\nB 50000 é x,y z\n"),
    "go": (GO, "b a\n", "a b x,y z\n"),
    "rust": (RUST, "a b a\n", '{"a": 2, "b": 1} x,y z\n'),
    "perl": (
        "use List::Util qw(sum);\nprint sum(split ' ', <STDIN>), ' ', join(',', @ARGV), qq(\\n);",
        "1 2\n",
        "3 x,y z\n",
    ),
    "lua": ("print(io.read('n') * 2, table.concat(arg, ','))", "21\n", "42\tx,y z\n"),
    "ruby": ("puts \"#{gets.split.map(&:to_i).sum} #{ARGV.join(',')}\"\n", "1 2\n", "3 x,y z\n"),
    "r": (
        "x <- scan(file('stdin'), quiet = TRUE)\ncat(sum(x), commandArgs(trailingOnly = TRUE), '\\n')",
        "1 2\n",
        "3 x y z \n",
    ),
    "typescript": (
        "const twice = (n: number): number => 2 * n;\nconsole.log(twice(21), process.argv.slice(2).join(','));",
        "",
        "42 x,y z\n",
    ),
    "javascript": (
        "const text = require('fs').readFileSync(0, 'utf8');\nconsole.log(2 * text, process.argv.slice(2).join(','));",
        "21",
        "42 x,y z\n",
    ),
    "bash": ('read n; echo $((2 * n)) "$1,$2"', "21\n", "42 x,y z\n"),
    "python": ("import sys\nprint(2 * int(input()), ','.join(sys.argv[1:]))", "21\n", "42 x,y z\n"),
    "c": ('#include <stdio.h>\nint main(int n, char **a) { printf("%d %s,%s\\n", n, a[1], a[2]); }', "", "3 x,y z\n"),
}


def _rust_outside_of_home() -> dict[str, Any]:
    """Return a row with rustup's compiler itself: what PATH finds is in the home folder of an ordinary installation."""
    if (rustc := shutil.which("rustc")) is None:
        return {}
    sysroot = subprocess.run([rustc, "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    row = BUILT_IN["rust"]
    assert row.compile is not None
    program = f"{sysroot}/bin/rustc"
    changed = row.model_copy(update={"compile": (program, *row.compile[1:]), "probe": (program, "--version")})
    return {"languages": {"rust": changed}, "read_only_paths": [Path(sysroot)]}


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[STRONGEST, pytest.param("B", marks=pytest.mark.slow), "C", "D"]
)
async def judge(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[JudgeInProcess]:
    limits = {"max_cpu_time_s": 20, "default_cpu_time_s": 20, "max_memory_mb": 512}
    folder = tmp_path_factory.mktemp("judge")
    async with judge_in_process(folder, isolation=request.param, **limits, **_rust_outside_of_home()) as judge:
        yield judge


def _skip_unless_installed(name: str) -> None:
    rules = offered_languages({}).get(name)
    if rules is None or (rules.probe is not None and subprocess.run(rules.probe, capture_output=True).returncode != 0):
        pytest.skip(f"this machine has no {name}")


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_reads_prints_and_takes_arguments(judge: JudgeInProcess, name: str) -> None:
    _skip_unless_installed(name)
    code, stdin, expected = PROGRAMS[name]
    verdict = await judge.verdict(
        language=name,
        code=code,
        stdin=stdin,
        expected_output=expected,
        arguments=["x", "y z"],
        checker={"kind": "exact"},
    )
    assert (verdict.status, verdict.stderr) == ("accepted", "")


async def test_java_says_what_does_not_compile(judge: JudgeInProcess) -> None:
    _skip_unless_installed("java")
    verdict = await judge.verdict(language="java", code="class Main { int x = ; }")
    assert (verdict.status, "Main.java:1: error" in verdict.stderr) == ("compile_error", True)


async def test_java_has_the_heap_that_its_memory_limit_allows(judge: JudgeInProcess) -> None:
    """A heap that is half garbage passes no limit, and one that is too small ends with Java's own error."""
    _skip_unless_installed("java")
    code = """
    public class Main {
        public static void main(String[] a) {
            long sum = 0;
            for (int i = 0; i < 400; i++) sum += new byte[8 << 20].length;
            System.out.println(sum);
            byte[][] kept = new byte[100][];
            for (int i = 0; i < 100; i++) kept[i] = new byte[8 << 20];
        }
    }"""
    verdict = await judge.verdict(language="java", code=code)
    assert (verdict.status, verdict.exit_code, verdict.stdout) == ("runtime_error", 1, f"{400 * (8 << 20)}\n")
    assert "OutOfMemoryError" in verdict.stderr


async def test_pytest_runs_the_tests_of_a_file(judge: JudgeInProcess) -> None:
    code = "import helper\ndef test_right(): assert helper.f(1) == 2\ndef test_wrong(): assert helper.f(1) == {}\n"
    files = {"helper.py": "ZGVmIGYobik6IHJldHVybiBuICsgMQo="}
    verdict = await judge.verdict(language="pytest", code=code.format(2), files=files)
    assert (verdict.status, "2 passed" in verdict.stdout) == ("accepted", True)
    verdict = await judge.verdict(language="pytest", code=code.format(3), files=files)
    assert (verdict.status, verdict.exit_code, "1 failed, 1 passed" in verdict.stdout) == ("runtime_error", 1, True)


@pytest.mark.parametrize(
    ("language", "code", "options", "output"),
    [
        (
            "c",
            '#include <stdio.h>\nint main(void) { printf("%d %ld", N, __STDC_VERSION__); }',
            ["-DN=5", "-std=c99"],
            "5 199901",
        ),
        (
            "cpp",
            "#include <bits/stdc++.h>\n#include <concepts>\nint main() { std::cout << (__cplusplus > 202000); }",
            ["-std=c++20"],
            "1",
        ),
        ("rust", 'fn main() { println!("{}", cfg!(feature_x)); }', ["--cfg", "feature_x"], "true"),
        ("java", "class Main { public static void main(String[] a) { System.out.print(1); } }", ["-Xlint:all"], "1"),
    ],
)
async def test_options_reach_the_compiler(
    judge: JudgeInProcess, language: str, code: str, options: list[str], output: str
) -> None:
    _skip_unless_installed(language)
    verdict = await judge.verdict(language=language, code=code, compile_options=options, expected_output=output)
    assert (verdict.status, verdict.stdout.strip()) == ("accepted", output)


async def test_options_tell_compilations_apart(judge: JudgeInProcess) -> None:
    code = '#include <stdio.h>\nint main(void) { printf("%d", N); }'
    for number in (1, 2):
        verdict = await judge.verdict(language="c", code=code, compile_options=[f"-DN={number}"])
        assert verdict.stdout == str(number)
