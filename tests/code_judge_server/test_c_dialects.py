"""Dialects of C and C++: GNU dialects by default, newer standards by name."""

import shutil

import pytest
from judge_in_process import JudgeInProcess

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

C_HEADERS = "".join(f"#include <{name}.h>\n" for name in ("math", "stdio", "stdlib", "string", "time"))
C_IDIOMS = {
    "strdup": ('char *s = strdup("copy"); puts(s); free(s);', "copy"),
    "M_PI": ('printf("%.4f", M_PI);', "3.1416"),
    "getline": ('char *s = NULL; size_t n = 0; printf("%ld", (long)getline(&s, &n, stdin));', "6"),
    "clock_gettime": ('struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); printf("%d", t.tv_sec > 0);', "1"),
    "j0": ('volatile double x = 1.0; printf("%.4f", j0(x));', "0.7652"),
    "typeof": ('typeof(1.5) x = 2.5; printf("%.1f", x);', "2.5"),
    "asm": ('asm volatile("" ::: "memory"); puts("done");', "done"),
}
CPP_IDIOMS = {
    "traits of __int128": (
        "#include <iostream>\n#include <limits>\n#include <type_traits>\nint main() {\n"
        "  std::cout << std::is_integral_v<__int128> << std::numeric_limits<unsigned __int128>::digits; }",
        "1128",
    ),
    "M_PI": ('#include <cmath>\n#include <cstdio>\nint main() { std::printf("%.4f", M_PI); }', "3.1416"),
    "pragmas before bits/stdc++.h": (
        '#pragma GCC optimize("O3,unroll-loops")\n#include <bits/stdc++.h>\nusing namespace std;\n'
        "int main() { vector<int> a(10); iota(a.begin(), a.end(), 0); cout << accumulate(a.begin(), a.end(), 0); }",
        "45",
    ),
}
NEWER = {
    "cpp20": "#include <compare>\n#include <cstdio>\nstruct A { int x; auto operator<=>(const A&) const = default; };\n"
    'int main() { std::puts(A{1} < A{2} ? "yes" : "no"); }',
    "cpp23": '#include <cstdio>\nint main() { if consteval { return 1; } std::puts(sizeof(0uz) == 8 ? "yes" : "no"); }',
    "c23": '#include <stdio.h>\nint main(int, char **) { [[maybe_unused]] int n = 1\'000; puts(n == 1000 ? "yes" : "no"); }',
}


@pytest.mark.parametrize("name", C_IDIOMS)
async def test_idioms_of_gnu_c_are_compiled(fresh_judge: JudgeInProcess, name: str) -> None:
    body, output = C_IDIOMS[name]
    code = f"{C_HEADERS}int main(void) {{ {body} return 0; }}\n"
    verdict = await fresh_judge.verdict(language="c", code=code, stdin="hello\n", expected_output=output)
    assert verdict.status == "accepted", verdict


@pytest.mark.parametrize("name", CPP_IDIOMS)
async def test_idioms_of_gnu_cpp_are_compiled(fresh_judge: JudgeInProcess, name: str) -> None:
    code, output = CPP_IDIOMS[name]
    verdict = await fresh_judge.verdict(language="cpp", code=code, expected_output=output)
    assert verdict.status == "accepted", verdict


@pytest.mark.parametrize("language", NEWER)
async def test_newer_standards_have_names(fresh_judge: JudgeInProcess, language: str) -> None:
    verdict = await fresh_judge.verdict(language=language, code=NEWER[language], expected_output="yes")
    assert verdict.status == "accepted", verdict
    older = await fresh_judge.verdict(language=language.rstrip("0123456789"), code=NEWER[language])
    assert older.status == "compile_error", older
