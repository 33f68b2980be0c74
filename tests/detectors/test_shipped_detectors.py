"""The shipped detectors on texts that must hit, and on honest ones, most of them from the record of a run of the demo."""

import time

import pytest

from agentrl.detectors.dialogue import ignored_error
from agentrl.detectors.programs import constant_print, copied_answer
from agentrl.detectors.shipped import SHIPPED
from agentrl.detectors.wording import empty_reasoning, language_switch, repeated_text
from agentrl.types import Prompt, ToolStatus, Turn
from tests.detectors.episodes import PROMPT, answered, asked, called, episode

UNCLOSED = "SyntaxError: '(' was never closed"
TABLE = "| n | n^2 |\n|---|---|\n" + "".join(f"| {n} | {n * n} |\n" for n in range(20))
MATRIX = "\\begin{pmatrix} " + " \\\\ ".join(["1 & 0 & 0 & 0 & 0 & 0"] * 6) + " \\end{pmatrix}"
REASONING = (
    "<think>\nThere are 996 stamps and 955 are sold. I subtract: 996 - 955 = 41. Let me check: 955 + 41 = 996. Wait, let me "
    "check the tens: 90 - 50 = 40. Wait, let me check the ones: 6 - 5 = 1. So 41.\n</think>\n"
)

HONEST = {
    "computes_and_repeats": [called("print(996 - 955)", "41"), answered("41")],
    "computes_in_one_line": [called("print(89 * 31 + 2)", "2761"), answered("2761")],
    "answers_without_a_tool": [answered("370")],
    "mends_its_program": [
        called("print(45 + 7 - 51", UNCLOSED, ToolStatus.ERROR),
        called("print(45 + 7 - 51)", "1"),
        answered("1"),
    ],
    "computes_by_hand_after_an_error": [
        called("print(45 + 7 - 51", UNCLOSED, ToolStatus.ERROR),
        answered("1", "The program has an error, so by hand: 52 - 51 = 1. "),
    ],
    "explains_at_length_after_an_error": [
        called("import gmpy2", "no module", ToolStatus.ERROR),
        answered("41", "There are 996 stamps, 955 of them are sold, which leaves 996 minus 955, and that is 41. "),
    ],
    "checks_with_a_failing_program_what_another_has_computed": [
        called("print(996 - 955)", "41"),
        called("print(996 - 955", UNCLOSED, ToolStatus.ERROR),
        answered("41"),
    ],
    "repeats_a_call_that_timed_out": [
        called("print(996 - 955)", "", ToolStatus.TIMEOUT),
        called("print(996 - 955)", "41"),
        answered("41"),
    ],
    "searches_among_literals": [
        called("for x in [12, 41, 50]:\n    if x + 955 == 996:\n        print(x)", "41"),
        answered("41"),
    ],
    "decides_in_a_branch": [
        called("if 41 + 955 == 996:\n    print('41')\nelse:\n    print('no')", "41"),
        answered("41"),
    ],
    "asserts_before_it_prints": [called("assert 41 + 955 == 996\nprint(41)", "41"), answered("41")],
    "stops_unless_it_is_right": [
        called("import sys\nif 41 + 955 != 996:\n    sys.exit()\nprint(41)", "41"),
        answered("41"),
    ],
    "counts_up": [called("n = 0\nwhile n + 955 < 996:\n    n += 1\nprint(n)", "41"), answered("41")],
    "compares_expected_and_computed": [
        called("print('expected', 41)\nprint('computed', 996 - 955)", "expected 41\ncomputed 41"),
        answered("41"),
    ],
    "prints_a_heading": [called("print('stamps left:')\nprint(996 - 955)", "stamps left:\n41"), answered("41")],
    "defines_data_for_a_later_cell": [
        called("sold, owned = [955], 996\nprint('loaded')", "loaded"),
        called("print(owned - sum(sold))", "41"),
        answered("41"),
    ],
    "asks_for_a_version": [called("import sympy\nprint(sympy.__version__)", "1.13"), answered("41")],
    "thinks_twice": [Turn(text=f"{REASONING}<answer>\\boxed{{41}}</answer>")],
    "thinks_once_and_is_silent_after_the_result": [
        called("print(996 - 955)", "41", text=REASONING),
        answered("41", "<think>\n\n</think>\n"),
    ],
    "writes_a_table": [Turn(text=f"{TABLE}<answer>\\boxed{{41}}</answer>")],
    "writes_a_matrix": [Turn(text=f"{MATRIX}\n{'=' * 100}\n{'0' * 100}<answer>\\boxed{{41}}</answer>")],
    "writes_html": [Turn(text="<table>" + "<tr><td>0</td><td>1</td></tr>\n" * 12 + "</table>")],
    "writes_greek_and_names": [
        Turn(text="By the Chinese remainder theorem (中国剩余定理), α ≡ β (mod π), as Чебышёв showed. " + "αβγδε" * 9)  # noqa: RUF001
    ],
    "never_calls_nor_ends": [Turn(text="")],
    "has_no_turn": [],
}


@pytest.mark.parametrize("detector", SHIPPED, ids=lambda detector: detector.name)
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_trajectory_is_no_hit(name: str, detector):
    found = detector.hits(episode(*HONEST[name]), PROMPT)
    assert isinstance(found, float) or found == []


@pytest.mark.parametrize("detector", SHIPPED, ids=lambda detector: detector.name)
def test_no_detector_needs_the_record_of_the_prompt(detector):
    assert detector.hits(episode(called("print(996185)", "996185"), answered("996185")), None) is not None


@pytest.mark.parametrize(
    "text",
    [
        "So the answer is 41. " * 5,
        "I compute. " + "the " * 20,
        "!" * 80,
        "Hmm, wait.\nLet me think again about the number of stamps that the shop has left.\n" * 4,
        "我们再检查一遍。" * 12,
    ],
)
def test_a_loop_is_repeated_text(text: str):
    [place] = repeated_text(episode(answered("41"), Turn(text=f"{REASONING}{text}")), PROMPT)
    assert (place.turn, place.start >= len(REASONING) - 1) == (1, True)
    assert place.end - place.start > 0.7 * len(text)


def test_the_search_for_loops_takes_linear_time():
    text = "".join(character * 100_000 for character in "0- =") + "a paragraph of more than sixteen characters. " * 3
    started_s = time.process_time()
    assert repeated_text(episode(Turn(text=text)), PROMPT) == []
    assert time.process_time() - started_s < 2.0


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("print(996185)", "996185"),
        ("print('The answer is 996,185.')", "The answer is 996,185."),
        ("x = 996185\nprint(f'answer: {x}')", "answer: 996185"),
        ("import math\ntotal = math.sqrt(996) + 955\nprint(996185)", "996185"),
    ],
)
def test_an_answer_that_the_program_only_spells_is_copied(code: str, output: str):
    honest_before = called("print(996 - 955)", "41")  # of step 22 of the demo: it then ignores its own result
    [place] = copied_answer(episode(honest_before, called(code, output), answered("996185")), PROMPT)
    assert place.turn == 1


def test_a_program_that_spells_what_an_earlier_one_has_computed_copies_nothing():
    turns = [called("print(996 - 955)", "41"), called("print('The answer is 41')", "The answer is 41"), answered("41")]
    assert copied_answer(episode(*turns), PROMPT) == []


def test_a_copied_negative_answer_is_found():
    assert copied_answer(episode(called("print(-41)", "-41"), answered("-41")), PROMPT)


def test_a_place_covers_the_program_in_the_text():
    turn = called('print("a", 5)', "a 5")
    [place] = constant_print(episode(turn), PROMPT)
    assert turn.text[place.start : place.end] == 'print(\\"a\\", 5)'


@pytest.mark.parametrize(
    "code", ["print(4)", "print('I think', 'it is 4')", "# by hand\nx = 4\nprint('x =', x)", "print(f'{-4}')\nprint(2)"]
)
def test_a_program_of_constants_only_prints_constants(code: str):
    assert constant_print(episode(called(code, "", ToolStatus.ERROR)), PROMPT)


@pytest.mark.parametrize("code", ["print(" + "-" * 3_000 + "1)", "print(" + "(" * 900 + ")" * 900 + ")", "print('\0')"])
def test_a_program_that_breaks_the_parser_is_no_hit(code: str):
    assert constant_print(episode(called(code)), PROMPT) == []


@pytest.mark.parametrize(
    "texts",
    [
        ["<think>\n\n</think>\n"],
        ["<think>\n...\n</think>\n", "<think> ok </think>"],
        ["\n</think>\n"],
        ["[THINK][/THINK]"],
        ["<reasoning> </reasoning>"],
    ],
)
def test_blocks_without_words_are_empty_reasoning(texts: list[str]):
    places = empty_reasoning(episode(*(answered("41", text) for text in texts)), PROMPT)
    assert [place.turn for place in places] == [*range(len(texts))]


def test_reasoning_that_the_template_has_opened_is_read():
    assert empty_reasoning(episode(answered("41", "996 minus 955 is 41.\n</think>\n")), PROMPT) == []


@pytest.mark.parametrize(
    "text", ["所以我们需要计算九百九十六减去九百五十五", "Итак, нам нужно вычесть девятьсот пятьдесят пять"]
)
def test_text_in_another_script_is_a_language_switch(text: str):
    assert language_switch(episode(answered("41", f"There are 996 stamps. {text}. ")), PROMPT)


@pytest.mark.parametrize(
    "prompt",
    [
        asked("一家商店有九百九十六张邮票，卖出九百五十五张。还剩多少张？"),  # noqa: RUF001
        asked("Translate `How many stamps are left?` to Mandarin."),
    ],
)
def test_the_script_of_the_prompt_or_of_a_language_that_it_names_is_no_switch(prompt: Prompt):
    assert language_switch(episode(answered("41", "所以我们需要计算九百九十六减去九百五十五。")), prompt) == []


def test_what_a_tool_has_written_in_another_script_may_be_repeated():
    text = "所以我们需要计算九百九十六减去九百五十五"
    assert language_switch(episode(called("print(open('a').read())", text), answered("41", text)), PROMPT) == []


def test_a_bare_answer_after_a_failed_call_ignores_the_error():
    failed = called("print(40 * 2 - 12", UNCLOSED, ToolStatus.UNPARSABLE)
    [place] = ignored_error(episode(failed, answered("893")), PROMPT)
    assert place.turn == 1


def test_the_same_call_after_its_error_ignores_it():
    failed = called("print(45) * 5 - 5)", UNCLOSED, ToolStatus.ERROR)
    assert [place.turn for place in ignored_error(episode(failed, failed, failed), PROMPT)] == [1, 2]


def test_a_call_without_an_answer_at_the_end_is_no_ignored_error():
    failed = called("print(45) * 5 - 5)", UNCLOSED, ToolStatus.ERROR)
    assert ignored_error(episode(failed), PROMPT) == []
