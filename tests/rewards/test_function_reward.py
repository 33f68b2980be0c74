import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from agentrl.agent_loop.scoring import isolated_reward, score
from agentrl.config.schema.judge import JudgeSection
from agentrl.config.schema.reward import RewardSection
from agentrl.data.columns import PromptColumns
from agentrl.data.rows import Row
from agentrl.errors import ConfigError, UnexplainedError
from agentrl.rewards.loader import build_reward, check_reward
from agentrl.rewards.score import Score
from agentrl.types import Deadline, Prompt, ToolCall, ToolResult, ToolStatus, Turn

PROMPT = Prompt(
    prompt_id="p",
    messages=[{"role": "user", "content": "6 * 7?"}],
    answer="42",
    extra={"data_source": "sums", "extra_info": {"index": 3}, "level": 2},
)
TURNS = (
    Turn(
        text="I ask.",
        calls=(ToolCall(call_id="0", name="add"),),
        results=(ToolResult(status=ToolStatus.OK, text="result 42"),),
    ),
    Turn(text="It is 42"),
)


def own(prompt: Prompt, turns: tuple[Turn, ...]) -> dict[str, Any]:
    return {"score": str(prompt.answer) in turns[-1].text, "turns": len(turns)}


async def own_async(prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline, bonus: float = 0.0) -> float:
    await asyncio.sleep(0)
    return bonus + (deadline.remaining_s() > 0)


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
    right = (data_source, ground_truth, extra_info) == ("sums", "42", {"index": 3, "num_turns": 2, "tool_rewards": []})
    return {"score": float(right and solution_str == "I ask.\nIt is 42"), "pred": "42"}


def trl_reward(
    prompts: list[Any], completions: list[Any], answer: list[str], level: list[int], **_: Any
) -> list[float]:
    roles = [message["role"] for message in completions[0]]
    right = roles == ["assistant", "tool", "assistant"] and prompts == [PROMPT.messages]
    return [float(level[0]) if right and answer[0] in completions[0][-1]["content"] else 0.0]


def length_near_20(completions: list[str], **_: Any) -> list[float]:
    return [-abs(20.0 - len(completion)) for completion in completions]


def prompt_and_text(prompts: list[str], completions: list[str], **_: Any) -> list[bool]:
    return [prompts == ["6 * 7?"] and completions == ["I ask.\nIt is 42"]]


def accuracy(completions: list[Any], solution: list[str], **_: Any) -> list[bool]:
    return [solution[0] in completions[0]]


def other_column(completions: list[Any], answer: list[str], solution: list[str]) -> list[bool]:
    return [(answer, solution) == (["a column"], ["42"])]


def blocking(prompt: Prompt, turns: tuple[Turn, ...]) -> float:
    return float(threading.current_thread() is not threading.main_thread())


def raising(prompt: Prompt, turns: tuple[Turn, ...]) -> float:
    raise StopIteration("nothing left")


def unclear(sample: Any) -> float:
    return 0.0


def demanding(prompt: Prompt, turns: tuple[Turn, ...], scale: float) -> float:
    return scale


def prompt_of(**columns: Any) -> Prompt:
    row = Row(path=Path("train.jsonl"), number=1, values={"prompt": "6 * 7?", "solution": "42", **columns})
    return PromptColumns(prompt_key="prompt", answer_key="solution", system_prompt="Be brief.").parse(row, "p")


async def asked(name: str, prompt: Prompt = PROMPT, **config: Any) -> Score:
    section = RewardSection(function=f"{__name__}.{name}", config=config, score_unfinished="score")
    reward = isolated_reward(build_reward(section))
    await reward.start()
    try:
        return await score(reward, section, prompt, TURNS)
    finally:
        await reward.aclose()


async def test_a_function_of_our_own_form_gets_prompt_and_turns():
    assert await asked("own") == Score(value=1.0, metrics={"turns": 2.0})


async def test_an_async_function_and_what_the_config_gives_it():
    assert await asked("own_async", bonus=0.5) == Score(value=1.5)


async def test_verls_compute_score_gets_what_the_policy_wrote_and_no_tool_output():
    assert await asked("compute_score") == Score(value=1.0)


async def test_a_function_of_trl_gets_lists_of_one_with_the_columns():
    assert await asked("trl_reward") == Score(value=2.0)


async def test_a_function_of_trl_gets_texts_where_the_row_has_a_plain_text():
    assert await asked("length_near_20", prompt_of()) == Score(value=float(len("I ask.\nIt is 42") - 20))
    assert await asked("prompt_and_text", prompt_of()) == Score(value=1.0)
    dialogue = prompt_of(prompt=[{"role": "user", "content": "6 * 7?"}])
    assert await asked("prompt_and_text", dialogue) == Score(value=0.0)


async def test_a_function_of_trl_gets_the_answer_under_its_own_column():
    assert await asked("accuracy", prompt_of()) == Score(value=1.0)
    assert await asked("other_column", prompt_of(answer="a column")) == Score(value=1.0)


async def test_a_plain_function_runs_in_a_thread():
    assert (await asked("blocking")).value == 1.0


async def test_what_a_function_raises_is_its_own_error_with_the_prompt():
    with pytest.raises(
        UnexplainedError, match=r"of prompt `p` raised StopIteration at test_function_reward\.py:\d+: nothing left"
    ):
        await asked("raising")


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        (
            "unclear",
            {},
            r"no known reward function has the parameters \(sample\); write it as `fn\(prompt, turns\)`",
        ),
        ("demanding", {}, "missing a required argument: 'scale'; its `config` must have its other"),
        ("own", {"strict": True}, "unexpected keyword argument 'strict'"),
        ("TURNS", {}, "which is no function"),
        ("nothing", {}, "has no `nothing`"),
    ],
)
def test_a_function_that_could_never_be_called_is_refused_before_anything_starts(
    name: str, config: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message) as caught:
        check_reward(RewardSection(function=f"{__name__}.{name}", config=config), JudgeSection())
    assert "`reward.function`" in str(caught.value)
