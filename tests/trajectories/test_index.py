"""The index follows the files: what is appended, taken back, rolled out once more, or on a disk that cannot be written."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.trajectories.index import RunIndex
from agentrl.trajectories.store import TrajectoryStore, read_trajectory
from tests.trajectories.test_store import PROMPT, TRAJECTORY

INDEX_IT = """
import sys
from pathlib import Path
from agentrl.trajectories.index import RunIndex
index = RunIndex(Path(sys.argv[1]))
print(index.update(), index.path)
"""


def rows(index: RunIndex, columns: str = "step, is_validation, sample_index") -> list[tuple[Any, ...]]:
    found = index.connection.execute(f"SELECT {columns} FROM trajectories ORDER BY is_validation, step, sample_index")
    return [tuple(row) for row in found]


def test_rows_are_added_as_the_files_grow(tmp_path: Path):
    store, index = TrajectoryStore(tmp_path), RunIndex(tmp_path)
    assert index.update() == 0
    store.append(1, [TRAJECTORY], prompts=[PROMPT])
    assert index.update() == 1
    store.append(1, [replace(TRAJECTORY, sample_index=5)])
    store.append(1, [TRAJECTORY], validation=True)
    assert index.update() == 2
    assert index.update() == 0
    assert rows(index) == [(1, 0, 3), (1, 0, 5), (1, 1, 3)]
    assert rows(index, "reward, num_turns, num_tool_calls, num_failed_tool_calls, termination")[0] == (
        1.0,
        3,
        2,
        1,
        "answered",
    )
    [prompt] = index.connection.execute("SELECT prompt_id, data_set FROM prompts")
    assert tuple(prompt) == (PROMPT.prompt_id, PROMPT.data_set)


def test_a_row_leads_to_its_trajectory(tmp_path: Path):
    path = TrajectoryStore(tmp_path).append(1, [TRAJECTORY, replace(TRAJECTORY, sample_index=5)], prompts=[PROMPT])
    index = RunIndex(tmp_path)
    index.update()
    [(offset,)] = rows(index, "offset")[1:]
    assert read_trajectory(path, offset).sample_index == 5


def test_steps_after_a_resume_replace_those_before(tmp_path: Path):
    store, index = TrajectoryStore(tmp_path), RunIndex(tmp_path)
    for step in (1, 2, 3):
        store.append(step, [TRAJECTORY, TRAJECTORY])
    index.update()
    store.take_back(after_step=1)
    store.append(2, [replace(TRAJECTORY, sample_index=9)])
    index.update()
    assert rows(index) == [(1, 0, 3), (1, 0, 3), (2, 0, 9)]


def test_a_step_rolled_out_once_more_with_more_trajectories_replaces_the_old_rows(tmp_path: Path):
    """The new file may get the inode of the old one; then only its content tells."""
    store, index = TrajectoryStore(tmp_path), RunIndex(tmp_path)
    store.append(2, [replace(TRAJECTORY, reward=0.0)] * 2)
    index.update()
    store.take_back(after_step=1)
    store.append(2, [TRAJECTORY] * 3)
    assert index.update() == 3
    assert rows(index, "reward") == [(1.0,)] * 3


def test_a_damaged_index_is_built_anew(tmp_path: Path):
    TrajectoryStore(tmp_path).append(1, [TRAJECTORY])
    index = RunIndex(tmp_path)
    index.update()
    index.close()
    index.path.write_bytes(b"no database" * 1000)
    assert RunIndex(tmp_path).update() == 1


def test_the_fates_of_a_batch_are_added_to_those_before(tmp_path: Path):
    store, index = TrajectoryStore(tmp_path), RunIndex(tmp_path)
    for fate in ("trained", "all_solved"):
        store.record_fates(4, {fate: [fate]})
        index.update()
    found = index.connection.execute("SELECT step, trajectory_id, fate FROM fates")
    assert [tuple(row) for row in found] == [(4, "trained", "trained"), (4, "all_solved", "all_solved")]
    store.take_back(after_step=3)
    index.update()
    assert index.connection.execute("SELECT COUNT(*) FROM fates").fetchone()[0] == 0


def test_a_torn_frame_is_indexed_once_it_is_whole(tmp_path: Path):
    store, index = TrajectoryStore(tmp_path), RunIndex(tmp_path)
    path = store.append(1, [TRAJECTORY, TRAJECTORY])
    path.write_bytes(path.read_bytes()[:-40])
    assert index.update() == 1
    store.append(1, [TRAJECTORY])
    assert index.update() == 1


def test_two_processes_build_one_index(tmp_path: Path):
    for step in range(1, 6):
        TrajectoryStore(tmp_path).append(step, [TRAJECTORY] * 20)
    processes = [subprocess.Popen([sys.executable, "-c", INDEX_IT, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(rows(RunIndex(tmp_path))) == 100


@pytest.mark.skipif(shutil.which("unshare") is None, reason="it needs a mount namespace")
def test_a_run_on_a_read_only_disk_is_indexed_in_the_cache(tmp_path: Path):
    run_dir = tmp_path / "run"
    TrajectoryStore(run_dir).append(1, [TRAJECTORY])
    namespace = ("unshare", "--user", "--map-root-user", "--mount")
    mount = f"mount --bind {run_dir} {run_dir} && mount -o remount,bind,ro {run_dir}"
    done = subprocess.run(
        [*namespace, "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", INDEX_IT, str(run_dir)],
        capture_output=True,
        text=True,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"this machine gives no mount namespace: {done.stderr.strip()}")
    assert done.stdout.startswith(f"1 {tmp_path}/cache/agentrl/index/"), done.stderr
