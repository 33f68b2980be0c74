"""Programs of each language as people write them, for `test_more_languages`."""

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
SCALA = """
object Sums {
  def main(words: Array[String]): Unit = {
    val numbers = scala.io.StdIn.readLine().split(" ").map(_.toInt)
    println(s"${numbers.sum} ${words.mkString(",")}")
  }
}
"""
KOTLIN = """
fun main(words: Array<String>) {
    val sum = readLine()!!.split(" ").map { it.toInt() }.sum()
    println("$sum ${words.joinToString(",")}")
}
"""
VERILOG = """
module tb;
  reg [7:0] count = 0;
  initial begin
    repeat (3) count = count + 1;
    $display("%0d", count);
    $finish;
  end
endmodule
"""
FIRST = {
    "java": (JAVA, "3 4\n", "25\nB 50000 é x,y z\n"),
    "go": (GO, "b a\n", "a b x,y z\n"),
    "rust": (RUST, "a b a\n", '{"a": 2, "b": 1} x,y z\n'),
    "perl": (
        "use List::Util qw(sum);\nprint sum(split ' ', <STDIN>), ' ', join(',', @ARGV), qq(\\n);",
        "1 2\n",
        "3 x,y z\n",
    ),
    "lua": ("print(io.read('n') * 2, table.concat(arg, ','))", "21\n", "42\tx,y z\n"),
    "ruby": ("puts \"#{$stdin.gets.split.map(&:to_i).sum} #{ARGV.join(',')}\"\n", "1 2\n", "3 x,y z\n"),
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
    "php": (
        "<?php echo 2 * (int) fgets(STDIN), ' ', implode(',', array_slice($argv, 1)), PHP_EOL;",
        "21\n",
        "42 x,y z\n",
    ),
    "racket": (
        '#lang racket\n(printf "~a ~a\\n" (* 2 (read)) (string-join (vector->list (current-command-line-arguments)) ","))',
        "21\n",
        "42 x,y z\n",
    ),
    "scala": (SCALA, "1 2\n", "3 x,y z\n"),
    "kotlin": (KOTLIN, "1 2\n", "3 x,y z\n"),
    "d": (
        "import std;\nvoid main(string[] words) { writeln(readln.split.map!(to!int).sum, ' ', words[1 .. $].join(',')); }",
        "1 2\n",
        "3 x,y z\n",
    ),
    "verilog": (VERILOG, "", "3\n"),
}
"""A program per language, its input, and its output with the arguments `x` and `y z`."""
WITH_A_FILE = {
    "go": (
        'package main\n\nimport ("fmt"; "sums/twice")\n\nfunc main() { fmt.Println(twice.Of(21)) }\n',
        {"go.mod": "module sums\n", "twice/twice.go": "package twice\n\nfunc Of(n int) int { return 2 * n }\n"},
    ),
    "rust": (
        'mod twice;\nfn main() { println!("{}", twice::of(21)); }',
        {"twice.rs": "pub fn of(n: i32) -> i32 { 2 * n }"},
    ),
    "java": (
        "class Main { public static void main(String[] a) { System.out.println(Twice.of(21)); } }",
        {"Twice.java": "public class Twice { static int of(int n) { return 2 * n; } }"},
    ),
    "perl": (
        "use lib '.'; use Twice; print Twice::of(21), qq(\\n);",
        {"Twice.pm": "package Twice; sub of { 2 * shift } 1;"},
    ),
    "lua": ("print(require('twice').of(21))", {"twice.lua": "return {of = function(n) return 2 * n end}"}),
    "ruby": ("require_relative 'twice'\nputs twice(21)", {"twice.rb": "def twice(n) = 2 * n"}),
    "r": ("source('twice.R'); cat(twice(21), '\\n', sep = '')", {"twice.R": "twice <- function(n) 2 * n"}),
    "javascript": ("console.log(require('./twice').of(21))", {"twice.js": "exports.of = (n) => 2 * n"}),
    "typescript": (
        "import { twice } from './twice';\nconsole.log(twice(21));",
        {"twice.ts": "export const twice = (n: number): number => 2 * n;"},
    ),
    "php": (
        "<?php require 'twice.php'; echo twice(21), PHP_EOL;",
        {"twice.php": "<?php function twice($n) { return 2 * $n; }"},
    ),
    "racket": (
        '#lang racket\n(require "twice.rkt")\n(displayln (twice 21))',
        {"twice.rkt": "#lang racket\n(provide twice)\n(define (twice n) (* 2 n))"},
    ),
    "c": (
        '#include <stdio.h>\n#include "twice.h"\nint main(void) { printf("%d\\n", twice(21)); }',
        {"twice.h": "static int twice(int n) { return 2 * n; }"},
    ),
}
"""A program per language that prints 42, and the files that it needs."""
BROKEN = {
    "go": ("package main\nfunc main() { x }\n", "main.go:2"),
    "rust": ("fn main() { x }", "main.rs:1"),
    "java": ("class Main { int x = ; }", "Main.java:1: error"),
    "scala": ("object Main { def main(a: Array[String]): Unit = { x } }", "main.scala:1: error"),
    "d": ("void main() { x(); }", "main.d:1"),
    "verilog": ("module tb; initial x = ; endmodule", "main.sv:1"),
}
"""A source per language that does not compile, and the compiler's message."""
FAILING = {
    "go": ('package main\nimport "os"\nfunc main() { os.Stderr.WriteString("oh"); os.Exit(3) }', 3, "oh"),
    "rust": ('fn main() { panic!("oh") }', 101, "oh"),
    "java": ('class Main { public static void main(String[] a) { throw new RuntimeException("oh"); } }', 1, "oh"),
    "perl": ("die 'oh'", 255, "oh"),
    "lua": ("error('oh')", 1, "oh"),
    "ruby": ("raise 'oh'", 1, "oh (RuntimeError)"),
    "r": ("stop('oh')", 1, "Error: oh"),
    "javascript": ("throw new Error('oh')", 1, "Error: oh"),
    "typescript": ("throw new Error('oh' as string)", 1, "Error: oh"),
    "php": ("<?php throw new Exception('oh');", 255, "oh"),
    "racket": ("#lang racket\n(error 'oh)", 1, "oh"),
    "scala": (
        'object Main { def main(a: Array[String]): Unit = throw new Exception("oh") }',
        1,
        "java.lang.Exception: oh",
    ),
    "kotlin_script": ('throw Exception("oh")', 3, "java.lang.Exception: oh"),
    "d": ('void main() { throw new Exception("oh"); }', 1, "oh"),
}
"""A failing program per language, its exit code, and its message."""
GREEDY = {
    "go": "package main\nvar kept [][]byte\nfunc main() { for { b := make([]byte, 1<<24);"
    " for i := range b { b[i] = 1 }; kept = append(kept, b) } }",
    "rust": "fn main() { let mut kept = Vec::new(); loop { kept.push(vec![1u8; 1 << 24]); } }",
    "perl": "my @kept; push @kept, 'x' x (1 << 24) . scalar(@kept) while 1;",
    "lua": "local kept = {}\nwhile true do kept[#kept + 1] = string.rep('x', 2^24) .. #kept end",
    "ruby": "kept = []\nloop { kept << 'x' * (1 << 24) }",
    "r": "kept <- list()\nrepeat kept[[length(kept) + 1]] <- rep(1, 2e6)",
    "javascript": "const kept = []; for (;;) kept.push(Buffer.alloc(1 << 24, 1));",
    "typescript": "const kept: Buffer[] = []; for (;;) kept.push(Buffer.alloc(1 << 24, 1));",
    "php": "<?php ini_set('memory_limit', -1); $kept = []; while (true) $kept[] = str_repeat('x', 1 << 24);",
    "racket": "#lang racket\n(let loop ([kept '()]) (loop (cons (make-bytes (expt 2 24) 1) kept)))",
    "d": "void main() { ubyte[][] kept; for (;;) { auto b = new ubyte[1 << 24]; b[] = 1; kept ~= b; } }",
}
"""A program per language that takes memory without end."""
WITH_THREADS = {
    "go": """
package main

import ("fmt"; "sync")

func main() {
	var all sync.WaitGroup
	sums := make(chan int, 100)
	for i := 0; i < 100; i++ { all.Add(1); go func(n int) { defer all.Done(); sums <- n }(i) }
	all.Wait()
	close(sums)
	sum := 0
	for n := range sums { sum += n }
	fmt.Println(sum)
}
""",
    "rust": "fn main() { let all: Vec<_> = (0..100).map(|n| std::thread::spawn(move || n)).collect();"
    ' println!("{}", all.into_iter().map(|one| one.join().unwrap()).sum::<i32>()); }',
    "java": "import java.util.concurrent.*; class Main { public static void main(String[] a) throws Exception {"
    " var pool = Executors.newFixedThreadPool(20); int sum = 0; for (int i = 0; i < 100; i++) { int n = i;"
    " sum += pool.submit(() -> n).get(); } pool.shutdown(); System.out.println(sum); } }",
    "ruby": "puts (0...100).map { |n| Thread.new { n } }.sum(&:value)",
    "javascript": "const { Worker, isMainThread, parentPort } = require('worker_threads');\n"
    "if (isMainThread) new Worker(__filename).on('message', (n) => console.log(n)); else parentPort.postMessage(4950);",
    "d": 'import std; void main() { writeln(taskPool.reduce!"a + b"(iota(100))); }',
    "perl": "use threads; my $sum = 0; $sum += $_->join for map { my $n = $_; threads->create(sub { $n }) } 0..99;"
    " print qq($sum\\n);",
}
"""A program per language that prints 4950, the sum of its threads' results."""
SUITES = {
    "go_test": (
        'package main\n\nimport "testing"\n\nfunc twice(n int) int { return 2 * n }\n\n'
        'func TestTwice(t *testing.T) { if got := twice(21); got != EXPECTED { t.Errorf("got %d", got) } }\n',
        "got 42",
    ),
    "jest": (
        "import { describe, expect, test } from '@jest/globals';\nfunction twice(n: number): number { return 2 * n; }\n"
        "describe('twice', () => { test('doubles', () => { expect(twice(21)).toBe(EXPECTED); }); });",
        "Received: 42",
    ),
    "d_ut": (
        "int twice(int n) { return 2 * n; }\nunittest { assert(twice(21) == EXPECTED); }\nvoid main() {}",
        "unittest failure",
    ),
}
"""A file of tests per language that pass where `EXPECTED` is 42, and the message of a failure."""
