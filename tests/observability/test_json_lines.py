import itertools
import json
import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from agentrl.observability.json_lines import append_json_lines, keep_json_lines, read_json_lines


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new_folder" / "lines.jsonl"
    append_json_lines(path, [{"n": 1}, {"n": 2}])
    append_json_lines(path, [{"n": 3}])
    assert [item["n"] for item in read_json_lines(path)] == [1, 2, 3]


def test_a_torn_last_line_is_skipped_and_cut_off_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append_json_lines(path, [{"n": 1}])
    with path.open("ab") as file:
        file.write(b'{"n": 2, "text": "' + b"x" * 200_000)
    assert list(read_json_lines(path)) == [{"n": 1}]
    append_json_lines(path, [{"n": 3}])
    assert path.read_bytes() == b'{"n":1}\n{"n":3}\n'


def test_a_file_that_is_one_torn_line_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"n"')
    append_json_lines(path, [{"n": 1}])
    assert path.read_bytes() == b'{"n":1}\n'


def test_nan_and_infinities_are_null_in_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append_json_lines(path, [{"a": float("nan"), "b": float("inf"), "c": 1.5}])
    line = path.read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {"a": None, "b": None, "c": 1.5}


def test_half_a_surrogate_pair_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append_json_lines(path, [{"text": "before \ud800 after"}])
    assert list(read_json_lines(path)) == [{"text": "before \ud800 after"}]


def test_a_damaged_line_in_the_middle_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": \n{"n": 3}\n')
    with pytest.raises(ValueError, match=r"lines\.jsonl:2: not JSON"):
        list(read_json_lines(path))


def test_a_line_that_is_no_object_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"[1]\n")
    with pytest.raises(ValueError, match="expected a JSON object, got list"):
        list(read_json_lines(path))


def test_keep_rewrites_only_the_accepted_lines_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"n": 1}\n{ "n":  2}\n{"n": 3}\n{"n"')
    keep_json_lines(path, lambda item: item["n"] != 1)
    assert path.read_bytes() == b'{ "n":  2}\n{"n": 3}\n'
    assert [entry.name for entry in tmp_path.iterdir()] == ["lines.jsonl"]


def test_a_missing_file_has_no_lines_and_stays_missing(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    keep_json_lines(path, lambda item: True)
    assert list(read_json_lines(path)) == []
    assert not path.exists()


def _append_for_ever(path: Path) -> None:
    for number in itertools.count():
        append_json_lines(path, [{"n": number, "text": "x" * 1_000_000}])


def test_a_writer_that_is_killed_loses_at_most_its_last_line_and_blocks_nobody(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    process = multiprocessing.get_context("spawn").Process(target=_append_for_ever, args=(path,))
    process.start()
    while not path.exists() or path.stat().st_size < 5_000_000:
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    survived = [item["n"] for item in read_json_lines(path)]
    assert len(survived) >= 4
    append_json_lines(path, [{"n": len(survived)}])
    assert [item["n"] for item in read_json_lines(path)] == list(range(len(survived) + 1))


def _append_many(path: Path, writer: int, start: Barrier) -> None:
    start.wait()
    for number in range(100):
        append_json_lines(path, [{"writer": writer, "number": number, "text": "x" * 20_000}])


def test_lines_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    processes = [context.Process(target=_append_many, args=(path, writer, start)) for writer in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    items = list(read_json_lines(path))
    for writer in range(2):
        assert [item["number"] for item in items if item["writer"] == writer] == list(range(100))
