import math
from dataclasses import fields, replace
from datetime import date
from pathlib import Path

import pytest

from agentrl.timing import Span
from agentrl.trajectories.frames import read_frames
from agentrl.trajectories.store import TrajectoryStore, read_heads, read_prompts, read_trajectories, read_trajectory
from agentrl.types import Failure, FailureClass, Prompt, Termination, ToolCall, ToolResult, ToolStatus, Trajectory, Turn

NAN = math.nan
PROMPT = Prompt(
    prompt_id="train-17@epoch1",
    messages=[{"role": "user", "content": "2 + 3 ∈ ?"}],
    answer="5",
    extra={"data_source": "made up", "extra_info": {"index": 17}},
)
TRAJECTORY = Trajectory(
    trajectory_id="train-17@epoch1/3",
    prompt_id="train-17@epoch1",
    sample_index=3,
    token_ids=[5, 6, 7, 8, 9],
    num_prompt_tokens=2,
    response_mask=[0, 0, 1, 0, 1],
    rollout_logprobs=[NAN, NAN, -0.30000001192092896, NAN, -0.0625],
    version_spans=((2, 0), (4, 1)),
    row_starts=(3,),
    turns=(
        Turn(
            text="let me compute",
            calls=(
                ToolCall(call_id="1", name="python", arguments={"code": "print(2 + 3)"}),
                ToolCall(call_id="2", name="", parse_error="no JSON"),
            ),
            results=(
                ToolResult(status=ToolStatus.OK, text="5\n", wall_time_s=0.25),
                ToolResult(status=ToolStatus.UNPARSABLE, text="no JSON", truncated=True),
            ),
            sampled=Span(started_at=1764282000.25, ended_at=1764282001.5, queue_s=0.125),
            answered=Span(started_at=1764282001.5, ended_at=1764282001.75),
        ),
        Turn(text="<answer>\\boxed{5}</answer>", final_tool_reward=-0.5),
        Turn(text="7", observation="higher", environment_reward=0.0),
    ),
    termination=Termination.ANSWERED,
    reward=1.0,
    num_retries=1,
    wall_time_s=1.75,
    span=Span(started_at=1764282000.0, ended_at=1764282002.0),
    scored=Span(started_at=1764282001.75, ended_at=1764282001.875),
)


def assert_identical(left: Trajectory, right: Trajectory) -> None:
    """Compare field by field with types; `==` would fail on NaN and would not tell an enum from its text."""
    for field in fields(Trajectory):
        assert repr(getattr(left, field.name)) == repr(getattr(right, field.name)), field.name


def store_one(run_dir: Path, trajectory: Trajectory) -> Trajectory:
    path = TrajectoryStore(run_dir).append(1, [trajectory])
    (read,) = read_trajectories(path)
    return read


def test_a_trajectory_is_read_back_exactly(tmp_path: Path) -> None:
    assert_identical(store_one(tmp_path, TRAJECTORY), TRAJECTORY)


def test_a_failed_trajectory_keeps_its_failures_and_has_no_reward(tmp_path: Path) -> None:
    failures = (
        Failure(failure_class=FailureClass.JUDGE, message="judge: no answer", attempt=TRAJECTORY.scored),
        Failure(failure_class=FailureClass.REWARD_DATA, message="reward: no number", cause="no number"),
    )
    failed = replace(TRAJECTORY, termination=Termination.DATA_ERROR, reward=None, failures=failures, turns=())
    assert_identical(store_one(tmp_path, failed), failed)


def test_failures_of_all_prompts_have_one_cause_in_the_heads(tmp_path: Path) -> None:
    failure = Failure(
        failure_class=FailureClass.REWARD, message=f"reward of prompt `{PROMPT.prompt_id}`: no answer in 60 s"
    )
    path = TrajectoryStore(tmp_path).append(1, [replace(TRAJECTORY, reward=None, failures=(failure,))])
    [head] = read_heads(path)
    assert (head.failure_class, head.failure_cause) == ("reward", "reward of prompt `...`: no answer in 60 s")


def test_arguments_that_json_parsers_change_or_refuse_are_read_back_exactly(tmp_path: Path) -> None:
    arguments = {"big": 10**40, "nan": NAN, "inf": math.inf, "half a pair": "\ud800", "nested": [{"ключ": None}]}
    call = ToolCall(call_id="1", name="\udfff", arguments=arguments)
    odd = replace(TRAJECTORY, turns=(Turn(text="odd", calls=(call,)),))
    assert_identical(store_one(tmp_path, odd), odd)


def test_experts_are_not_written(tmp_path: Path) -> None:
    assert_identical(store_one(tmp_path, replace(TRAJECTORY, experts=b"abcd")), TRAJECTORY)


def test_prompts_travel_with_their_trajectories(tmp_path: Path) -> None:
    path = TrajectoryStore(tmp_path).append(1, [TRAJECTORY], prompts=[PROMPT])
    assert read_prompts(path) == {PROMPT.prompt_id: PROMPT}
    assert len(list(read_trajectories(path))) == 1


def test_a_prompt_column_that_json_lacks_does_not_stop_the_run(tmp_path: Path) -> None:
    prompt = replace(PROMPT, extra={"day": date(2026, 11, 5)})
    path = TrajectoryStore(tmp_path).append(1, [], prompts=[prompt])
    assert read_prompts(path)[prompt.prompt_id].extra == {"day": "2026-11-05"}


def test_a_file_cut_at_any_byte_gives_its_whole_trajectories_and_takes_new_ones(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    path = store.append(1, [TRAJECTORY])
    first = path.stat().st_size
    whole = store.append(1, [replace(TRAJECTORY, sample_index=1)]).read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        store.append(1, [replace(TRAJECTORY, sample_index=2)])
        expected = [3, 2] if size >= first else [2]
        assert [trajectory.sample_index for trajectory in read_trajectories(path)] == expected, size


def test_a_damaged_record_is_an_error_that_names_its_place(tmp_path: Path) -> None:
    path = TrajectoryStore(tmp_path).append(1, [TRAJECTORY])
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="frame at byte 0: its checksum differs"):
        list(read_trajectories(path))


def test_a_trajectory_is_read_by_the_offset_of_its_frame(tmp_path: Path) -> None:
    path = TrajectoryStore(tmp_path).append(1, [TRAJECTORY, replace(TRAJECTORY, sample_index=4)], prompts=[PROMPT])
    offsets = [frame.offset for frame in read_frames(path)]
    assert read_trajectory(path, offsets[2]).sample_index == 4
    with pytest.raises(ValueError, match="no trajectory at byte 1"):
        read_trajectory(path, 1)


def test_one_step_may_be_appended_in_parts(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    store.append(1, [replace(TRAJECTORY, sample_index=0)])
    path = store.append(1, [replace(TRAJECTORY, sample_index=1)])
    assert [trajectory.sample_index for trajectory in read_trajectories(path)] == [0, 1]


def test_a_torn_last_frame_loses_only_that_trajectory(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    path = store.append(1, [TRAJECTORY, TRAJECTORY])
    path.write_bytes(path.read_bytes()[:-40])
    assert len(list(read_trajectories(path))) == 1
    store.append(1, [TRAJECTORY])
    assert len(list(read_trajectories(path))) == 2


def test_what_a_killed_writer_has_written_is_not_written_again(tmp_path: Path) -> None:
    step = [replace(TRAJECTORY, trajectory_id=f"t{number}") for number in range(3)]
    store = TrajectoryStore(tmp_path)
    path = store.append(1, step, prompts=[PROMPT])
    path.write_bytes(path.read_bytes()[:-40])
    store.append(1, step, prompts=[PROMPT], leave_out_recorded=True)
    assert [trajectory.trajectory_id for trajectory in read_trajectories(path)] == ["t0", "t1", "t2"]


def test_take_back_removes_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    for step in (9, 10, 11):
        store.append(step, [TRAJECTORY])
        store.append(step, [TRAJECTORY], validation=True)
        store.record_fates(step, {"trained": [TRAJECTORY.trajectory_id]})
    foreign = tmp_path / "trajectories" / "notes_000099.atr"
    foreign.touch()
    store.take_back(after_step=10)
    assert sorted(path.name for path in foreign.parent.iterdir()) == [
        "fates_000009.jsonl",
        "fates_000010.jsonl",
        "notes_000099.atr",
        "step_000009.atr",
        "step_000010.atr",
        "validation_000009.atr",
        "validation_000010.atr",
    ]


def test_take_back_on_a_fresh_run_does_nothing(tmp_path: Path) -> None:
    TrajectoryStore(tmp_path).take_back(after_step=-1)
    assert list(tmp_path.iterdir()) == []


def test_another_format_version_is_refused(tmp_path: Path) -> None:
    path = TrajectoryStore(tmp_path).append(1, [TRAJECTORY])
    path.write_bytes(path.read_bytes().replace(b"ATR1", b"ATR0"))
    with pytest.raises(ValueError, match="not a trajectory file of this release"):
        list(read_trajectories(path))
