"""Two evaluations, prompt by prompt: pairs, refusals, and the command."""

import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.evaluation.comparison import Comparison, compare, conversations_of, read_side
from agentrl.evaluation.html_pages import write_comparison_page
from agentrl.evaluation.record import record_file
from agentrl.trajectories.store import TrajectoryStore
from agentrl.types import Prompt
from tests.evaluation.recorded import evaluation_folder, prompt, trajectory

PROMPTS = [prompt(f"p{number}") for number in range(6)]
FIRST = {"p0": (0, 0), "p1": (0, 1), "p2": (1, 1), "p3": (0, 0), "p4": (1, 0), "p5": (0, 0)}
SECOND = {"p0": (1, 1), "p1": (1, 1), "p2": (1, 1), "p3": (1, 0), "p4": (0, 0), "p5": (1, 1)}


def folder(
    path: Path, rewards: dict[str, tuple[int, ...]], *words: str, prompts: list[Prompt] = PROMPTS, finished: bool = True
) -> Path:
    recorded = [trajectory(name, n, float(reward)) for name, given in rewards.items() for n, reward in enumerate(given)]
    evaluation_folder(path, prompts, recorded, *words, finished=finished)
    return path


def compared(first: Path, second: Path) -> Comparison:
    return compare(read_side(first), read_side(second))


def test_the_difference_is_paired_by_prompt(tmp_path: Path):
    result = compared(folder(tmp_path / "a", FIRST), folder(tmp_path / "b", SECOND, "validation.temperature=0.5"))
    differences = [1.0, 0.5, 0.0, 0.5, -0.5, 1.0]
    half = 2.5706 * statistics.stdev(differences) / math.sqrt(6)  # Student's table, 5 degrees of freedom
    mean = statistics.mean(differences)
    assert (result.means[0].mean, result.means[1].mean) == (pytest.approx(1 / 3), pytest.approx(0.75))
    assert result.difference.mean == pytest.approx(mean)
    assert (result.difference.low, result.difference.high) == pytest.approx((mean - half, mean + half), abs=1e-3)
    assert (result.num_won, result.num_lost) == (4, 1)
    assert result.test.is_exact
    assert result.test.p_value == pytest.approx(8 / 32)  # signs with a sum of 2.5 or 3.5, or their opposites
    assert [item.prompt.prompt_id for item in result.prompts] == ["p0", "p5", "p1", "p3", "p4", "p2"]
    assert result.changes == [("validation.temperature", "None", "0.5")]
    assert result.warnings == []


def test_an_evaluation_does_not_differ_from_itself(tmp_path: Path):
    same = folder(tmp_path / "a", FIRST)
    result = compared(same, same)
    assert (result.difference.mean, result.test.p_value, result.num_won, result.num_lost) == (0.0, 1.0, 0, 0)
    assert conversations_of(result, num_prompts=3) == []


def test_other_texts_under_the_same_ids_are_refused(tmp_path: Path):
    first = folder(tmp_path / "a", FIRST)
    second = folder(tmp_path / "b", SECOND, prompts=[prompt("p0", text="another"), *PROMPTS[1:]])
    with pytest.raises(ConfigError, match=r"1 prompts have one id and two texts .*`p0`"):
        compared(first, second)


def test_other_sets_of_prompts_are_compared_where_they_overlap_with_a_warning(tmp_path: Path):
    first = folder(tmp_path / "a", FIRST)
    second = folder(tmp_path / "b", {"p0": (1, 1), "p5": (1, 1)}, prompts=[PROMPTS[0], PROMPTS[5]], finished=False)
    result = compared(first, second)
    assert len(result.prompts) == 2
    assert any("4 prompts are in" in warning and "`p1`" in warning for warning in result.warnings)
    assert any("is not finished" in warning for warning in result.warnings)
    third = folder(tmp_path / "c", {"q": (1,)}, prompts=[prompt("q")])
    with pytest.raises(ConfigError, match="share no scored prompt"):
        compared(first, third)


def test_rewards_that_mean_different_things_are_warned_of(tmp_path: Path):
    second = folder(tmp_path / "b", SECOND, "algorithm.selection.solved_at=0.5", "reward.answer_format=tagged")
    [warning] = compared(folder(tmp_path / "a", FIRST), second).warnings
    assert "algorithm.selection.solved_at" in warning
    assert "reward.answer_format" in warning


def test_the_page_shows_both_sides_of_the_largest_difference(tmp_path: Path):
    result = compared(folder(tmp_path / "a", FIRST), folder(tmp_path / "b", SECOND))
    wrong, right = conversations_of(result, num_prompts=1)[0]
    assert (wrong.is_right, right.is_right) == (False, True)
    write_comparison_page(tmp_path / "page.html", result)
    page = (tmp_path / "page.html").read_text()
    assert r"\boxed{6}" in page
    assert "No difference is shown: p = 0.25" in page
    assert "<script" not in page


def test_a_damaged_record_is_named(tmp_path: Path):
    file = record_file(folder(tmp_path / "a", FIRST))
    content = bytearray(file.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is damaged: .*Remove it"):
        read_side(tmp_path / "a")


def test_the_folder_of_another_command_is_refused(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("sft: {}")
    with pytest.raises(ConfigError, match="not the config of an evaluation"):
        read_side(tmp_path)


def test_the_folder_of_a_training_run_is_refused(tmp_path: Path):
    """Its validation of step 0 would be that of the untrained policy."""
    run_dir = folder(tmp_path / "a", FIRST)
    TrajectoryStore(run_dir).append(1, [])
    with pytest.raises(ConfigError, match="a training run, not an evaluation"):
        read_side(run_dir)


def run_compare(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl.runners.compare", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250)


def test_the_command_prints_the_result_and_writes_the_page(tmp_path: Path):
    page = tmp_path / "page.html"
    done = run_compare(folder(tmp_path / "a", FIRST), folder(tmp_path / "b", SECOND), "--html", page)
    assert done.returncode == 0, done.stderr
    assert "No difference is shown: p = 0.25 (paired test over 6 prompts, exact)." in done.stdout
    assert page.is_file()


def test_a_folder_without_an_evaluation_is_one_line(tmp_path: Path):
    done = run_compare(tmp_path, tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        f"error: {tmp_path}: no `config.yaml`, so no evaluation. Name the `run.dir` of an evaluation."
    ]
