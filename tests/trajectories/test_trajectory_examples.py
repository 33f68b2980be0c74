"""The two trajectories that an evaluation shows."""

from dataclasses import replace
from pathlib import Path

from agentrl.trajectories.examples import describe_examples
from agentrl.trajectories.store import TrajectoryStore
from agentrl.types import Prompt, Termination, ToolCall, ToolResult, ToolStatus, Trajectory, Turn

PROMPT = Prompt(prompt_id="p1", messages=[{"role": "user", "content": "What is 2 + 3?"}], answer="5")


def trajectory(name: str, reward: float | None, *turns: Turn, termination: str = "answered") -> Trajectory:
    return Trajectory(
        trajectory_id=name,
        prompt_id="p1",
        sample_index=0,
        token_ids=[],
        num_prompt_tokens=0,
        response_mask=[],
        rollout_logprobs=[],
        version_spans=(),
        turns=turns,
        termination=Termination(termination),
        reward=reward,
    )


def described(tmp_path: Path, *trajectories: Trajectory) -> str:
    return describe_examples(TrajectoryStore(tmp_path).append(0, trajectories, prompts=[PROMPT], validation=True))


def test_the_best_and_the_worst_are_shown_with_prompt_calls_and_reference(tmp_path: Path):
    call = Turn(
        text="calc(2 + 3)",
        calls=(ToolCall(call_id="0", name="calc"),),
        results=(ToolResult(status=ToolStatus.OK, text="5"),),
    )
    shown = described(
        tmp_path,
        trajectory("lost", None, termination="infra_error"),
        trajectory("cut", 0.0, Turn(text="never"), termination="timeout"),
        trajectory("wrong", 0.0, Turn(text="six")),
        trajectory("right", 1.0, call, Turn(text="five")),
    )
    assert shown.splitlines() == [
        "the best trajectory: right, reward 1, ended by `answered`",
        "  user: What is 2 + 3?",
        "  policy: calc(2 + 3)",
        "  tool calc (ok): 5",
        "  policy: five",
        "  reference: 5",
        "",
        "the worst trajectory: wrong, reward 0, ended by `answered`",
        "  user: What is 2 + 3?",
        "  policy: six",
        "  reference: 5",
    ]


def test_a_reference_answer_of_zero_is_shown(tmp_path: Path):
    prompt = replace(PROMPT, answer=0)
    file = TrajectoryStore(tmp_path).append(0, [trajectory("right", 1.0)], prompts=[prompt], validation=True)
    assert "  reference: 0" in describe_examples(file)


def test_long_texts_and_many_turns_are_cut(tmp_path: Path):
    shown = described(tmp_path, trajectory("long", 0.0, *[Turn(text="word " * 10_000)] * 50))
    assert shown.startswith("every reward is the same; one trajectory: long")
    assert len(shown) < 4_000
    assert "(44 more turns)" in shown


def test_nothing_is_shown_where_nothing_was_scored(tmp_path: Path):
    assert described(tmp_path, trajectory("lost", None, termination="infra_error")) == ""
    assert describe_examples(tmp_path / "none.atr") == ""
