"""Topologies of the demo in the benchmark, and the criterion for a difference."""

from dataclasses import replace

import pytest

from agentrl.config.layout import layout
from agentrl.config.load import load_run_config
from benchmarks.training.topologies import Learnt, compare, places, topologies

RUN = Learnt(first=0.4, last=0.7, stderr=0.03)


@pytest.mark.parametrize("config", ["configs/demo.yaml", "configs/demo_ppo.yaml"])
def test_every_topology_is_a_valid_layout_of_the_demo(config: str):
    for topology in topologies(load_run_config(config).config):
        placed = layout(load_run_config(config, places(topology.processes)).config)
        assert {placement.role: placement.num_processes for placement in placed} == topology.processes


def test_the_topologies_cover_shared_and_separate_roles_and_one_two_and_four_ranks():
    chosen = topologies(load_run_config("configs/demo_ppo.yaml").config)
    assert [list(topology.processes.values()) for topology in chosen] == [[1] * 5, [1], [2, 1], [4, 1]]


def test_the_bar_is_three_standard_errors_of_a_difference_of_means():
    rows, faults = compare({"one": [RUN, RUN, RUN], "other": [RUN, RUN, RUN]})
    assert [row["bar"] for row in rows] == [pytest.approx(3 * 0.03 * (2 / 3) ** 0.5)] * 2
    assert faults == []


def test_variance_between_seeds_raises_the_bar():
    worse, better = replace(RUN, last=0.6), replace(RUN, last=0.8)
    rows, _ = compare({"one": [worse, better], "other": [worse, better]})
    assert rows[0]["bar"] == pytest.approx(3 * 0.02**0.5)  # the variance of 0.6 and 0.8


def test_a_topology_beyond_the_bar_is_reported():
    for last in (0.55, 0.85):
        _, faults = compare({"one": [RUN] * 3, "other": [replace(RUN, last=last)] * 3})
        assert [fault.split(":")[0] for fault in faults] == ["other"]


def test_runs_that_learnt_nothing_are_reported():
    flat = replace(RUN, last=0.41)
    _, faults = compare({"one": [flat] * 3, "other": [flat] * 3})
    assert len(faults) == 2
