"""A run on several machines of which one fails; each has a network and processes of its own (`tests/cluster/machines.py`)."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.machines import HEAD, RAY_PORT, Machine, Network, network, skip_without_namespaces
from tests.runners.run_process import SMALL, metrics, steps

pytestmark = [pytest.mark.soak, pytest.mark.ray, pytest.mark.timeout(1500)]

ON_TWO_MACHINES = [
    f"cluster.address={HEAD}:{RAY_PORT}",
    "cluster.pools={policy: {processes_per_node: [1, 1]}, samplers: {num_processes: 1, num_cpus: 2}}",
    "cluster.roles={actor: policy, rollout: samplers}",
    "checkpoint.every_steps=1",
    "run.num_steps=1000",
]
"""A rank on each, agent loop and judge on the head. The head has no room for the engine: on the other one it sees no memory of
processes of the head, so that all weights reach it by the network.
"""
HEAD_CPUS, OTHER_CPUS = 2, 3


@contextlib.contextmanager
def running_on(head: Machine, run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "agentrl.runners.rstar2", "configs/demo.yaml", f"run.dir={run_dir}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    run = head.popen(*command, *SMALL, *ON_TWO_MACHINES, **pipes)
    try:
        yield run
    finally:
        run.kill()
        run.communicate()


def wait_for_nodes(head: Machine, count: int) -> None:
    """Return when so many are in the cluster."""
    script = (
        "import ray, time\n"
        "while True:\n"
        "    try:\n"
        f"        ray.init('{HEAD}:{RAY_PORT}', log_to_driver=False, logging_level='ERROR')\n"
        "        break\n"
        "    except ConnectionError:\n"
        "        time.sleep(1)\n"
        f"while sum(node['Alive'] for node in ray.nodes()) < {count}:\n"
        "    time.sleep(0.2)\n"
    )
    assert head.popen(sys.executable, "-c", script).wait(timeout=600) == 0, head.log.read_text()


def wait_for(run: subprocess.Popen[str], run_dir: Path, *, step: int = 0, text: str = "") -> None:
    """Return when the step is made and the text is in the log."""
    while steps(run_dir)[-1:] < [step] or text not in log_of(run_dir):
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.2)


def log_of(run_dir: Path) -> str:
    log = run_dir / "run.log"
    return log.read_text() if log.exists() else ""


def interrupt(run: subprocess.Popen[str]) -> None:
    """End the run as Ctrl-C does; what was started is `nsenter`, which does not pass signals on."""
    [runner] = psutil.Process(run.pid).children()
    runner.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=600)
    assert run.returncode == 128 + signal.SIGINT, output


@pytest.fixture
def net() -> Iterator[Network]:
    skip_without_namespaces()
    with network() as machines:
        yield machines


def test_a_run_waits_for_the_machine_that_it_needs_and_continues_without_one_that_it_does_not(
    net: Network, tmp_path: Path
):
    head, other = net.add(), net.add()
    head.start_ray(num_cpus=HEAD_CPUS)
    other.start_ray(num_cpus=OTHER_CPUS)
    wait_for_nodes(head, 2)
    run_dir = tmp_path / "run"
    with running_on(head, run_dir) as run:
        wait_for(run, run_dir, step=1)
        net.cut_off(other)
        wait_for(run, run_dir, text="; 1 left since the run began")
        net.connect(other)
        wait_for(run, run_dir, text=f"node {other.address}: joined")
        wait_for(run, run_dir, step=steps(run_dir)[-1] + 2)
        assert metrics(run_dir)[-1]["actor/restarts"] == 1

        spare = net.add()
        spare.start_ray(num_cpus=OTHER_CPUS)
        wait_for(run, run_dir, text=f"node {spare.address}: joined")
        other.kill()
        wait_for(run, run_dir, text=f"node {other.address}: left, with CPU 3; 2 nodes now")
        wait_for(run, run_dir, step=steps(run_dir)[-1] + 2)
        interrupt(run)
    log = log_of(run_dir)
    assert f"node {other.address}: left, with CPU 3; 1 nodes now" in log
    assert "2 x (CPU 1), each on a node of its own, and the nodes are: 10.77.0.1 (has CPU 2" in log
    assert steps(run_dir) == list(range(len(steps(run_dir)))), "each step once, those after the checkpoint made again"
    last = metrics(run_dir)[-1]
    assert last["cluster/nodes_lost"] == 2
    # Where Ray has not noticed yet, it starts a rank on the machine that is gone, which is one more death.
    assert last["actor/restarts"] in (2, 3)
