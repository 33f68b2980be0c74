import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.agent_loop import retries
from agentrl.agent_loop.gateway.exactness import ExactnessReport
from agentrl.agent_loop.trajectory_records import AgentTrajectorySummary, TrajectoryRequest
from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.config.schema.agent_loop import AgentLoopSection, AgentSection
from agentrl.config.schema.run import ModelSection, RewardSection, RolloutSection
from agentrl.errors import ConfigError, EngineDeadError, EngineError
from agentrl.rewards.tool_rewards import tool_reward
from agentrl.types import FailureClass, Prompt, Termination, Trajectory
from tests.chat_templates import make_tokenizer
from tests.fakes import ScriptedEngine
from tests.processes import still_running

AGENTS = "tests.agent_loop.gateway.example_agents"
PROMPT = Prompt(prompt_id="p0", messages=[{"role": "user", "content": "How much is 6 * 7?"}], answer="42")
ANSWER = "The answer is 42."
Play = Callable[..., Awaitable[Trajectory]]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_PAUSE_S", 0.001)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    make_tokenizer("qwen2_5").save_pretrained(folder)
    return str(folder)


@pytest.fixture
async def worker_of(model_path: str, tmp_path: Path) -> AsyncIterator[Callable[..., AgentLoopWorker]]:
    workers = []

    def start(agent: dict[str, Any], *, reward: dict[str, Any] | None = None, **rollout: Any) -> AgentLoopWorker:
        config = WorkerConfig(
            model=ModelSection(path=model_path),
            rollout=RolloutSection(trajectory_timeout_s=20).model_copy(update=rollout),
            reward=RewardSection(**(reward or {"answer_format": "last_number"})),
            tools=(),
            agent_loop=AgentLoopSection(agent=AgentSection(**agent)),
            max_row_tokens=500,
            run_seed=0,
            run_dir=str(tmp_path),
        )
        workers.append(AgentLoopWorker(config, "agent_loop-0"))
        return workers[-1]

    yield start
    for worker in workers:
        await worker.aclose()


def ids(text: str) -> list[int]:
    return make_tokenizer("qwen2_5").encode(f"{text}<|im_end|>", add_special_tokens=False)


def engine_of(*texts: str) -> ScriptedEngine:
    return ScriptedEngine([ids(text) for text in texts])


async def play(worker: AgentLoopWorker, engine: ScriptedEngine, **request: Any) -> Trajectory:
    trajectory, _ = await play_counted(worker, engine, **request)
    return trajectory


async def play_counted(
    worker: AgentLoopWorker, engine: ScriptedEngine, **request: Any
) -> tuple[Trajectory, dict[str, float]]:
    """Play one trajectory, and return it with the metrics of its agent's counts."""
    asked = TrajectoryRequest(step=1, prompt=PROMPT, sample_index=0, **request)
    summary, trajectory = await worker.run(asked, engine)
    counts = summary.agent if isinstance(summary, AgentTrajectorySummary) else ExactnessReport()
    return trajectory, metrics_of(counts)


async def failed_by(worker: AgentLoopWorker) -> dict[str, float]:
    """Return the metrics of the worker's failed episodes."""
    report = await worker.report()
    assert report is not None
    return metrics_of(report.agent)


def metrics_of(counts: ExactnessReport) -> dict[str, float]:
    assert counts.num_sampled == counts.num_trained + counts.dropped.total()
    return counts.metrics()


async def test_a_function_plays_the_episode_and_the_runs_reward_scores_it(worker_of: Any):
    worker = worker_of({"callable": f"{AGENTS}.answer"})
    trajectory, metrics = await play_counted(worker, engine_of(ANSWER))
    assert (trajectory.reward, trajectory.termination) == (1.0, Termination.ANSWERED)
    assert trajectory.turns[0].text == ANSWER
    assert trajectory.num_response_tokens == len(ids(ANSWER))
    assert metrics["agent/tokens_trained"] == trajectory.num_response_tokens
    assert await failed_by(worker) == {}


async def test_the_reward_of_an_agent_is_what_tool_reward_returns(worker_of: Any):
    worker = worker_of(
        {"callable": f"{AGENTS}.answer_and_grade"},
        reward={"function": f"{tool_reward.__module__}.{tool_reward.__name__}"},
    )
    trajectory = await play(worker, engine_of(ANSWER))
    assert trajectory.reward == 0.25
    assert trajectory.reward_metrics["length"] == len(ANSWER)


async def test_held_out_prompts_are_in_no_report(worker_of: Any):
    worker = worker_of({"callable": f"{AGENTS}.answer"})
    trajectory, metrics = await play_counted(worker, engine_of(ANSWER), held_out=True)
    assert (trajectory.reward, metrics) == (1.0, {})


async def test_a_held_out_prompt_that_fails_is_in_no_report(worker_of: Any):
    worker = worker_of({"callable": f"{AGENTS}.raises"})
    trajectory, metrics = await play_counted(worker, engine_of(ANSWER, ANSWER), held_out=True)
    assert trajectory.termination is Termination.DATA_ERROR
    assert (metrics, await failed_by(worker)) == ({}, {})


async def test_an_agent_that_raises_twice_alike_is_a_data_failure_with_its_line(worker_of: Any):
    worker = worker_of({"callable": f"{AGENTS}.raises"})
    trajectory = await play(worker, engine_of(ANSWER, ANSWER, ANSWER))
    assert (trajectory.termination, trajectory.reward) == (Termination.DATA_ERROR, None)
    assert [failure.failure_class for failure in trajectory.failures] == [FailureClass.TOOL_DATA] * 2
    assert "KeyError at example_agents.py:" in trajectory.failures[0].message
    metrics = await failed_by(worker)
    assert metrics["agent/tokens_failed"] == metrics["agent/tokens_sampled"] > 0


async def test_an_engine_failure_restarts_the_episode_and_a_dead_engine_the_trajectory(worker_of: Any):
    worker = worker_of({"callable": f"{AGENTS}.answer"})
    trajectory, metrics = await play_counted(worker, ScriptedEngine([EngineError("full"), ids(ANSWER)]))
    assert trajectory.reward == 1.0
    assert [failure.failure_class for failure in trajectory.failures] == [FailureClass.ENGINE]
    with pytest.raises(EngineDeadError):
        await play(worker, ScriptedEngine([EngineDeadError("gone")]))
    assert metrics["agent/tokens_trained"] == trajectory.num_response_tokens


def program(*arguments: str) -> dict[str, Any]:
    return {"command": ["python", "-m", AGENTS, *arguments]}


@pytest.mark.slow
async def test_a_program_plays_the_episode_and_its_children_do_not_outlive_it(worker_of: Any, tmp_path: Path):
    note = tmp_path / "child"
    worker = worker_of(program("leaves a child", str(note)))
    assert (await play(worker, engine_of(ANSWER))).reward == 1.0
    with contextlib.suppress(psutil.NoSuchProcess):
        assert not still_running([psutil.Process(int(note.read_text()))], within_s=5)


@pytest.mark.slow
async def test_a_program_that_fails_is_a_data_failure_with_its_last_line(worker_of: Any):
    worker = worker_of(program("fails"))
    trajectory = await play(worker, engine_of(ANSWER, ANSWER))
    assert trajectory.termination is Termination.DATA_ERROR
    assert "ended with status 3: ValueError: no such city" in trajectory.failures[-1].message


@pytest.mark.slow
async def test_a_program_that_is_killed_is_an_infrastructure_failure(worker_of: Any):
    worker = worker_of(program("is killed"))
    trajectory = await play(worker, engine_of(ANSWER, ANSWER, ANSWER))
    assert (trajectory.termination, trajectory.reward) == (Termination.INFRA_ERROR, None)
    assert "SIGKILL" in trajectory.failures[-1].message


@pytest.mark.slow
async def test_a_program_that_hangs_is_killed_at_the_deadline_and_its_answers_are_kept(worker_of: Any):
    worker = worker_of(program("hangs"), trajectory_timeout_s=2.0)
    trajectory = await asyncio.wait_for(play(worker, engine_of(ANSWER)), 15)
    assert (trajectory.termination, trajectory.reward) == (Termination.TIMEOUT, 0.0)
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"callable": f"{AGENTS}.nothing"}, "has no `nothing`"),
        ({"callable": f"{AGENTS}.main"}, "must take one argument"),
        ({"command": ["no-such-program"]}, "no program `no-such-program`"),
    ],
)
async def test_an_agent_that_cannot_be_started_is_refused(worker_of: Any, agent: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        await worker_of(agent).start()
