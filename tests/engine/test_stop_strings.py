from collections.abc import Awaitable, Callable

import pytest

from agentrl.engine.embedded.engine import TransformersEngine
from agentrl.engine.stop_strings import StopStrings, end_of_stop
from agentrl.models.tokenizer import text_decoder
from agentrl.types import Deadline, FinishReason, SamplingParams
from tests.engine.engine_driver import ask_greedily
from tests.engine.vllm_engine.cases import POLICY, problems

Start = Callable[..., Awaitable[TransformersEngine]]
WORDS = ["<se", "ar", "ch>x", " y"]


def decode(token_ids: "list[int] | tuple[int, ...]") -> str:
    return "".join(WORDS[token] for token in token_ids)


@pytest.mark.parametrize(
    ("token_ids", "completed"), [([0, 1], False), ([0, 1, 2], True), ([3, 3, 0, 1, 2], True), ([1, 2], False)]
)
def test_a_stop_string_may_begin_and_end_inside_tokens(token_ids: list[int], completed: bool):
    assert StopStrings(lambda: lambda ids: decode([*ids])).reached(token_ids, ("<search>", "never")) is completed


def test_the_text_ends_behind_the_first_stop_string():
    assert end_of_stop("a </b> c </d> e", ["</d>", "</b>"]) == len("a </b>")
    assert end_of_stop("a", ["b"]) is None


async def test_the_embedded_engine_keeps_what_it_sampled_up_to_the_token_that_completes_a_stop_string(
    start_engine: Start,
):
    prompt = problems(1)[0]
    free = (await ask_greedily(await start_engine(str(POLICY)), prompt, 40)).token_ids
    text = text_decoder(str(POLICY))
    stop = text(free[:12])[-3:]  # ends with a token, and may begin inside one
    first = next(count for count in range(1, 13) if stop in text(free[:count]))
    engine = await start_engine(str(POLICY), stop=[stop])
    params = SamplingParams(max_tokens=40, temperature=0.0, stop=("never", stop))
    completion = await engine.generate(prompt, params, request_id="r", deadline=Deadline.after(100))
    assert (completion.token_ids, completion.finish_reason) == (free[:first], FinishReason.STOP)
