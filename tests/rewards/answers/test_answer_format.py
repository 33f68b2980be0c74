r"""Completions as public data sets ask for them. Their prompts are quoted in short: only the request for a format counts."""

import time
from typing import get_args

import pytest

from agentrl.config.schema.reward import AnswerFormat
from agentrl.rewards.answers.format import find_answer, requested_format
from agentrl.types import Message

GSM8K_VERL = 'How many clips? Let\'s think step by step and output the final answer after "####".'
MATH_VERL = r"Find $x$. Let's think step by step and output the final answer within \boxed{}."
DAPO = (
    "The last line of your response should be of the form Answer: $Answer (without quotes) where $Answer is the answer."
)
TINY_ZERO = "Return the final answer in <answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>."
OPEN_REASONER = r"put your answer inside <answer> </answer> tags; it will be extracted by the \boxed{} tag."
BARE = "What is 6 * 7?"


def user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def found(completion: str, request: str, answer_format: AnswerFormat = "auto") -> str:
    return find_answer(completion, user(request), answer_format).text


@pytest.mark.parametrize(
    ("request_", "completion", "answer"),
    [
        (GSM8K_VERL, "24 + 48 = 72\n#### 72", "72"),
        (GSM8K_VERL, "#### 71\nno:\n#### $72 clips", "$72 clips"),
        (GSM8K_VERL, r"\boxed{72}", ""),
        (GSM8K_VERL, "####", ""),
        (MATH_VERL, r"so $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (MATH_VERL, "#### 72", ""),
        (MATH_VERL, "The answer is 72", ""),
        (DAPO, "Therefore\nAnswer: 34", "34"),
        (DAPO, "Therefore\n**Answer:** $34$.", "$34$"),
        (DAPO, r"Answer: \boxed{34}", "34"),
        (DAPO, "Answer: 33\nAnswer: 34", "34"),
        (TINY_ZERO, "<think>hm</think> <answer> (1 + 2) / 3 </answer>", "(1 + 2) / 3"),
        (TINY_ZERO, r"<answer>\boxed{7}</answer>", "7"),
        (TINY_ZERO, r"<answer></answer>", ""),
        (OPEN_REASONER, r"<answer> so \boxed{7} </answer>", "7"),
        (OPEN_REASONER, "<answer> 7 </answer>", ""),
        (BARE, "The answer is 42.", "42"),
        (BARE, "The final answer is: $42$. I hope it is correct.", "$42$"),
        (BARE, r"The answer is 41, no, $\boxed{42}$", "42"),
        (BARE, r"Not \boxed{41}. The answer is 42", "42"),
        (BARE, "6 * 7 = 42 apples", "42"),
        (BARE, "The answer is 42, so we are done.", "42"),
        (BARE, "The answer is 42 because 6 * 7 = 42", "42"),
        (BARE, "The answer is $x = 42$, since six times seven is 42.", "$x = 42$"),
        (BARE, "Answer: 42 (since 6*7=42)", "42"),
        (BARE, "The answer is 42, not 41", "42, not 41"),
        (BARE, "Answer:\n42", "42"),
        (BARE, r"$\boxed{72}$. Let me double-check: 48+24=72, so the answer is correct.", "72"),
        (BARE, "The answer is 72.\n\nI hope this answer is clear!", "72"),
        (BARE, "The answer is 72, which is the total.", "72"),
        (BARE, "The answer is 72 (48 + 24).", "72"),
        (BARE, "The answer is 72, as 48 + 24 = 72.", "72"),
        (BARE, "The answer is $72$ ($48 + 24$)", "$72$"),
        (BARE, "The answer is 72 clips (May included). Done.", "72 clips"),
        (BARE, r"The answer is \(72\) (see above).", r"\(72\)"),
        (BARE, "48+24=72, so the answer is correct.", "72"),
        (BARE, "The answer is 72. The answer is a good one, isn't it?", "72"),
        (BARE, "Answer: C. That answer is correct.", "C"),
        (BARE, "The answer is red.", "red"),
        (BARE, "The answer is 2 (x + 3)", "2 (x + 3)"),
        (BARE, r"The answer is (1, 2) \cup (3, 4)", r"(1, 2) \cup (3, 4)"),
        (BARE, "The answer is x = (3, 4).", "x = (3, 4)"),
        (BARE, "The answer is 42 (or 41)", "42 (or 41)"),
        (BARE, "The answer is 42 (a guess) or 41 (another)", "42 (a guess) or 41"),
        (BARE, "The answer is ∞. So 3 is too small.", "∞"),
        (BARE, "I do not know", ""),
        ("#### Problem\nWhat is 6 * 7?", "it is 42", "42"),
    ],
)
def test_auto_reads_what_the_prompt_asks_for(request_: str, completion: str, answer: str):
    assert found(completion, request_) == answer


@pytest.mark.parametrize(
    ("completion", "reference", "answer"),
    [
        ("Of 3 balls the last is hers. The answer is red.", "red", "red"),
        ("Of 3 balls the last is hers. The answer is red.", r"\text{red}", "red"),
        ("The answer is red. No: the answer is blue.", "red", "blue"),
        ("The answer is no solution (the lines are parallel).", r"\text{No solution}", "no solution"),
        (r"$\boxed{\text{red}}$, so the answer is correct.", r"\text{red}", r"\text{red}"),
        ("Of 3 balls the last is hers. The answer is red.", "3", "3"),
        ("Of 2 and 3, the answer is clear.", r"\frac{1}{2}", "3"),
        ("Answer: B. With 3 tries the answer is certain.", r"\text{(B)}", "B"),
    ],
)
def test_words_are_an_answer_where_the_reference_is_words(completion: str, reference: str, answer: str):
    assert find_answer(completion, user(BARE), "auto", reference=reference).text == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("x = -5", "-5"),
        ("it is 10-5", "5"),
        ("so 1,234.50 in all", "1,234.50"),
        ("first 1, then 2.", "2"),
        ("a share of 3/4", "3/4"),
        (r"a share of $\frac{3}{4}$", r"\frac{3}{4}"),
        ("about 1.5e-3", "1.5e-3"),
        ("it costs $18.", "$18"),
        ("rises by 15%", "15%"),
        ("x2 is none", ""),
    ],
)
def test_the_last_number_is_read_whole(text: str, number: str):
    assert found(text, BARE, "last_number") == number


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"<think>maybe \boxed{42}</think> It is \boxed{41}", "41"),
        (r"maybe \boxed{42}</think> I give up", ""),
        (r"<think>\boxed{42}", ""),
        (r"\boxed{41} and \boxed{42}", "42"),
        (r"\boxed{42", ""),
        (r"\boxed{}", ""),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    ],
)
def test_only_the_last_box_after_the_thinking_counts(completion: str, answer: str):
    assert found(completion, MATH_VERL) == answer


def test_what_the_policy_wrote_never_chooses_the_format():
    for completion in (r"<answer>\boxed{42}</answer>", r"\boxed{42}", "The answer is 42"):
        assert found(completion, GSM8K_VERL) == ""
    few_shot: list[Message] = [{"role": "user", "content": BARE}, {"role": "assistant", "content": "#### 42"}]
    assert find_answer("it is 42", few_shot, "auto").text == "42"


@pytest.mark.parametrize("answer_format", get_args(AnswerFormat))
@pytest.mark.parametrize(
    "completion",
    [
        "answer: x" + " " * 100_000 + "y",
        "The answer is" + " " * 100_000,
        "answer is " * 10_000,
        "answer is clear, " * 10_000,
        "answer: xy" + " (ab" * 20_000,
        "answer: 42 (" + "(a)" * 20_000,
        "answer: 42 (" + "1+" * 20_000,
        "answer:\n" * 10_000,
        "answer: 42, " * 10_000,
        r"\boxed{" * 10_000,
    ],
)
def test_a_long_completion_takes_no_time(completion: str, answer_format: AnswerFormat):
    start = time.perf_counter()
    find_answer(completion, user(BARE), answer_format)
    assert time.perf_counter() - start < 1.0


def test_requests_in_system_messages_and_in_parts_of_content_are_read():
    parts: list[Message] = [{"role": "user", "content": [{"type": "text", "text": MATH_VERL}, {"type": "image"}]}]
    system: list[Message] = [{"role": "system", "content": TINY_ZERO}, *user(BARE)]
    assert find_answer(r"42 or \boxed{7}", parts, "auto").text == "7"
    assert find_answer("<answer>7</answer> 8", system, "auto").text == "7"
    assert requested_format("write it after ####") == "hashes"


def test_tagged_needs_no_box_where_the_chat_template_gives_the_instruction():
    assert found("<answer>42</answer>", BARE, "tagged") == "42"
    assert found(r"<answer>so \boxed{42}</answer>", BARE, "tagged") == "42"


def test_what_is_missing_is_named():
    assert find_answer("72", user(GSM8K_VERL), "auto").problem == "no `####`"
    assert find_answer("72", user(MATH_VERL), "auto").problem == r"no `\boxed{}`"
    assert find_answer("<answer>72</answer>", user(MATH_VERL), "tagged").problem == r"no `\boxed{}` in `<answer>`"
    assert find_answer("<think>72", user(BARE), "boxed").problem == "`<think>` is not closed"
