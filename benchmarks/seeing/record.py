"""Cost of the record: time and bytes to write it, and the index over it.

    python -m benchmarks.seeing.record RUN_DIR [--json FILE]

The run may be a real one, or one of `benchmarks.seeing.large_run`. CPU times are those of this process; the index is built in a
temporary copy of the run's folder (links to its files).

- Write: encoding of trajectories as the workers do it, on up to 2,000 of the run; bytes per token with and without texts.
- Index: a new one of the whole run, opening it, and the queries of a page: one step, and all sorted by reward.
"""

import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from agentrl.trajectories.frames import FrameEncoder
from agentrl.trajectories.index import RunIndex
from agentrl.trajectories.store import TrajectoryStore, encode_frame, read_trajectories
from agentrl.trajectories.token_arrays import pack_tokens
from benchmarks.judge import report

_NUM_WRITTEN = 2000
_QUERIES = {
    "a step": "SELECT * FROM trajectories WHERE is_validation = 0 AND step = 20",
    "a page, sorted by reward": "SELECT * FROM trajectories ORDER BY reward LIMIT 100",
    "count by termination": "SELECT termination, COUNT(*), AVG(reward) FROM trajectories GROUP BY termination",
}


def main() -> None:
    """Measure and print."""
    parser = report.arguments(__doc__)
    parser.add_argument("run_dir", type=Path)
    arguments = parser.parse_args()
    report.print_machine()
    written = measure_writing(arguments.run_dir)
    report.print_table("Writing", [written])
    indexed = measure_index(arguments.run_dir)
    report.print_table("Index", [indexed])
    if arguments.json:
        report.write_json(arguments.json, {"writing": written, "index": indexed})


def measure_writing(run_dir: Path) -> report.Row:
    """Return milliseconds of CPU per trajectory, and bytes per token."""
    files = TrajectoryStore(run_dir).files()
    recorded = list(itertools.islice(itertools.chain.from_iterable(map(read_trajectories, files)), _NUM_WRITTEN))
    encoder, started = FrameEncoder(), time.process_time()
    num_bytes = sum(len(encode_frame(encoder, trajectory)) for trajectory in recorded)
    spent_s = time.process_time() - started
    num_tokens = sum(len(trajectory.token_ids) for trajectory in recorded)
    return {
        "trajectories": len(recorded),
        "tokens each": num_tokens / len(recorded),
        "ms CPU each": spent_s / len(recorded) * 1e3,
        "bytes/token": num_bytes / num_tokens,
        "of tokens": sum(len(encoder.compress(pack_tokens(item))) for item in recorded) / num_tokens,
    }


def measure_index(run_dir: Path) -> report.Row:
    """Return seconds of CPU to build the index, and milliseconds of the queries."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        (copy / "trajectories").symlink_to((run_dir / "trajectories").resolve())
        started = time.process_time()
        index = RunIndex(copy)
        num_rows = index.update()
        built_s = time.process_time() - started
        index.close()
        opened_ms = _milliseconds(lambda: RunIndex(copy).update())
        connection = RunIndex(copy).connection
        queries = {
            name: _milliseconds(lambda query=query: connection.execute(query).fetchall())
            for name, query in _QUERIES.items()
        }
        size_mb = sum(file.stat().st_size for file in copy.glob("index*")) / 1e6
    return {"rows": num_rows, "s CPU": built_s, "MB": size_mb, "open ms": opened_ms} | {
        f"{name} ms": ms for name, ms in queries.items()
    }


def _milliseconds(action: Callable[[], object]) -> float:
    """Return the median of three."""
    spent: list[float] = []
    for _ in range(3):
        started = time.perf_counter()
        action()
        spent.append((time.perf_counter() - started) * 1e3)
    return median(spent)


if __name__ == "__main__":
    main()
