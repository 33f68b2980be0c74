"""Whole episodes with real templates of several formats: the ids that an engine is asked with equal one full rendering."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.tool_agent_loop import EpisodeRequest, ToolAgentLoop
from agentrl.config.schema.run import RolloutSection
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.function_tool import FunctionTool
from agentrl.types import Message, Prompt, Termination, Trajectory
from tests.chat_templates import make_tokenizer
from tests.fakes import ScriptedEngine

QUESTION: Message = {"role": "user", "content": "How long are the words?"}
PROMPT = Prompt(prompt_id="p0", messages=[QUESTION])
ANSWER: Message = {"role": "assistant", "content": "Five."}
TEMPLATES = ["qwen2_5", "qwen3_5_nothink", "llama3_2", "glm4moe", "gptoss", "gemma4_v5", "lfm2_v2", "chatml_actions"]


def measure(word: str) -> str:
    """Return the length of a word.

    Args:
        word: any word.
    """
    return f"{word} has {len(word)} letters"


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def calling_turn(*words: str) -> Message:
    calls = [
        {"type": "function", "id": f"call0000{index}", "function": {"name": "measure", "arguments": {"word": word}}}
        for index, word in enumerate(words)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


class Stage:
    """One template with one tool, and a policy that writes what the template would."""

    def __init__(self, template: str, threads: ThreadPoolExecutor) -> None:
        self.tokenizer: PreTrainedTokenizerFast = make_tokenizer(template)
        self.tool = FunctionTool({"function": f"{__name__}.measure"}, None)
        self.tokens = ChatTokens(self.tokenizer, [self.tool.schema.as_template_dict()])
        self._threads = threads

    def render(self, messages: list[Message], **options: Any) -> str:
        tools: list[Any] = [self.tool.schema.as_template_dict()]
        return str(self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **options))

    def completion(self, messages: list[Message]) -> list[int]:
        """The ids of the last message, with the token that ends it."""
        end = self.tokens.turn_ends.call if messages[-1].get("tool_calls") else self.tokens.turn_ends.answer
        before = self.render(messages[:-1], add_generation_prompt=True)
        text = self.render(messages).removeprefix(before).removesuffix(end.after)
        return [*self.tokenizer.encode(text, add_special_tokens=False), *end.appended_ids]

    async def play(self, replies: list[list[int]]) -> tuple[Trajectory, ScriptedEngine]:
        engine = ScriptedEngine(replies)
        executor = ToolExecutor({"measure": self.tool}, timeout_s=60)
        section = RolloutSection(max_turns=4, max_response_tokens=2000)
        loop = ToolAgentLoop(section, self.tokens, executor, tokenizer_threads=self._threads)
        request = EpisodeRequest(trajectory_id="1-p0-0", prompt=PROMPT, sample_index=0, seed="0/1-p0-0")
        try:
            return await loop.run(request, engine), engine
        finally:
            await executor.aclose()


@pytest.mark.parametrize("template", TEMPLATES)
async def test_an_episode_in_a_models_own_format_has_the_ids_of_its_template(
    template: str, threads: ThreadPoolExecutor
) -> None:
    stage = Stage(template, threads)
    dialogue = [QUESTION, calling_turn("apple"), tool_message("apple", 0), calling_turn("fig"), tool_message("fig", 0)]
    replies = [stage.completion(dialogue[:2]), stage.completion(dialogue[:4]), stage.completion([*dialogue, ANSWER])]
    trajectory, engine = await stage.play(replies)
    assert [result.text for result in trajectory.tool_results] == ["apple has 5 letters", "fig has 3 letters"]
    asked = stage.tokenizer.encode(stage.render(dialogue, add_generation_prompt=True), add_special_tokens=False)
    assert engine.calls[2].token_ids == asked
    assert trajectory.termination is Termination.ANSWERED
    assert trajectory.turns[-1].text.endswith("Five.")


@pytest.mark.parametrize(
    "template", [name for name in TEMPLATES if name not in ("llama3_2", "gptoss", "chatml_actions")]
)
async def test_two_calls_in_a_turn_are_answered_as_the_template_answers_two(
    template: str, threads: ThreadPoolExecutor
) -> None:
    stage = Stage(template, threads)
    dialogue = [QUESTION, calling_turn("apple", "fig"), tool_message("apple", 0), tool_message("fig", 1)]
    _, engine = await stage.play([stage.completion(dialogue[:2]), stage.completion([*dialogue, ANSWER])])
    asked = stage.tokenizer.encode(stage.render(dialogue, add_generation_prompt=True), add_special_tokens=False)
    assert engine.calls[1].token_ids == asked


async def test_an_action_stops_at_its_closing_tag_and_the_turn_goes_on_after_the_result(
    threads: ThreadPoolExecutor,
) -> None:
    stage = Stage("chatml_actions", threads)
    text = "Let me see. <measure>apple</measure>"
    reply = stage.tokenizer.encode(text + "<ignored>", add_special_tokens=False)
    answer = stage.tokenizer.encode("Five.<|im_end|>", add_special_tokens=False)
    trajectory, engine = await stage.play([reply, answer])
    assert engine.calls[0].params.stop == ("</measure>",)
    assert trajectory.turns[0].text == text
    rest = stage.tokenizer.decode(trajectory.token_ids[trajectory.num_prompt_tokens + len(reply) :])
    assert rest == "\n<information>\napple has 5 letters\n</information>\nFive.<|im_end|>"
    assert trajectory.response_mask.count(1) == len(reply) + len(answer)


async def test_a_tag_that_is_only_talked_about_is_no_call(threads: ThreadPoolExecutor) -> None:
    stage = Stage("chatml_actions", threads)
    text = "I could write <measure> but I know: five."
    trajectory, _ = await stage.play([stage.tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)])
    assert trajectory.termination is Termination.ANSWERED


def tool_message(word: str, index: int) -> Message:
    return {
        "role": "tool",
        "content": f"{word} has {len(word)} letters",
        "name": "measure",
        "tool_call_id": f"call0000{index}",
    }
