"""Sources that harm the compiler or make it read files they may not, and programs that bypass Python."""

from attacks.attack import ACCEPTED, CRASHED, MIB, NOT_COMPILED, OUT_OF_MEMORY, TIMED_OUT, WRONG, Attack


def _source(name: str, code: str, **more: object) -> Attack:
    settings: dict = {"statuses": NOT_COMPILED, "language": "cpp", "says_done": False, **more}
    return Attack(name=f"cpp_{name}", code=code, **settings)


_REST = "\nint main() { return 0; }\n"

ATTACKS = [
    _source("includes_random_numbers", "#include </dev/random>" + _REST, slow=True),
    _source("includes_zeros", '#include "/dev/zero"' + _REST, slow=True),
    _source("includes_standard_input", '#include "/dev/stdin"' + _REST, statuses=NOT_COMPILED | ACCEPTED),
    _source("includes_passwords", '#include "/etc/shadow"' + _REST),
    _source("includes_an_environment", '#include "/proc/self/environ"' + _REST, statuses=NOT_COMPILED | ACCEPTED),
    _source("includes_the_environment_of_init", '#include "/proc/1/environ"' + _REST, statuses=NOT_COMPILED | ACCEPTED),
    _source("assembles_passwords", 'asm(".incbin \\"/etc/shadow\\"");' + _REST),
    _source("includes_itself", "#include __FILE__\n#include __FILE__" + _REST),
    _source(
        "template_recursion",
        "template <int N> struct S { typename S<N + 1>::T x; typename S<N + 2>::T y; };\nint main() { S<0> s; }",
    ),
    _source(
        "templates_that_double",
        "template <int N, int M> struct S { static const int v = S<N - 1, 2 * M>::v + S<N - 1, 2 * M + 1>::v; };\n"
        "template <int M> struct S<0, M> { static const int v = 1; };\nint main() { return S<26, 0>::v; }",
        slow=True,
    ),
    _source(
        "constant_that_takes_for_ever",
        "constexpr long f(long n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\n"
        "constexpr long x = f(60);\nint main() { return x; }",
        slow=True,
    ),
    _source("huge_table", "int table[1 << 28] = {1};\nint main() { return table[5]; }", slow=True),
    _source(
        "macros_that_double",
        "#define A x x x x x x x x x x\n#define B A A A A A A A A A A\n#define C B B B B B B B B B B\n"
        "#define D C C C C C C C C C C\n"
        "#define E D D D D D D D D D D\n#define F E E E E E E E E E E\n#define G F F F F F F F F F F\nG G G G" + _REST,
        slow=True,
    ),
    _source(
        "endless_errors", "\n".join(f"x{i} y{i};" for i in range(5000)) + "\n#pragma GCC diagnostic error\n" + _REST
    ),
    _source("deep_nesting", "int main() { return " + "(" * 60_000 + "1" + ")" * 60_000 + "; }", slow=True),
    _source(
        "loop_at_run_time",
        "int main() { volatile int x = 0; while (true) x = x + 1; }",
        statuses=TIMED_OUT,
        limits={"cpu_time_s": 0.4},
    ),
    _source(
        "memory_at_run_time",
        f"#include <cstdlib>\n#include <cstring>\n"
        f"int main() {{ for (int i = 0; i < 1000; i++) memset(malloc({MIB}), 1, {MIB}); }}",
        statuses=OUT_OF_MEMORY | CRASHED,
    ),
    _source(
        "stack_at_run_time",
        "int f(int n) { volatile char c[4096]; c[0] = n; return n ? f(n - 1) + c[0] : 0; }\n"
        "int main() { return f(1 << 20); }",
        statuses=CRASHED | OUT_OF_MEMORY,
    ),
    _source("null_pointer", "int main() { volatile int *p = nullptr; *p = 1; }", statuses=CRASHED),
    _source("abort", "#include <cstdlib>\nint main() { abort(); }", statuses=CRASHED),
    _source(
        "rewrites_its_own_binary",
        "#include <cstdio>\n#include <fcntl.h>\n#include <unistd.h>\nint main(int, char **argv) {\n"
        '  unlink(argv[0]);\n  FILE *f = fopen(argv[0], "w");\n'
        '  if (f) { fputs("#!/bin/sh\\necho poisoned\\n", f); fclose(f); }\n'
        '  puts("done");\n}',
        statuses=ACCEPTED,
        expected_output="done",
    ),
    _source(
        "raw_system_calls",
        "#include <cstdio>\n#include <sched.h>\n#include <sys/socket.h>\n#include <sys/mount.h>\n#include <sys/ptrace.h>\n"
        "#include <netinet/in.h>\nint main() {\n"
        '  if (unshare(CLONE_NEWUSER) == 0) puts("reached: user namespace");\n'
        '  if (socket(AF_PACKET, SOCK_RAW, 0) >= 0) puts("reached: packet socket");\n'
        '  if (mount("none", "/tmp", "tmpfs", 0, "") == 0) puts("reached: mount");\n'
        '  if (ptrace(PTRACE_ATTACH, 1, 0, 0) == 0) puts("reached: ptrace");\n  puts("done");\n}',
        statuses=ACCEPTED | CRASHED,
    ),
    _source(
        "prints_nothing_right",
        '#include <cstdio>\nint main() { puts("accepted"); }',
        statuses=WRONG,
        expected_output="right",
    ),
]
