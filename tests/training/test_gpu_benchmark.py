"""The benchmark of updates on GPUs runs, small, wherever the tests run."""

import re

import pytest
import torch

from benchmarks.training.gpu import main


def small_run(capsys: pytest.CaptureFixture[str]) -> str:
    main(["--tiny", "--rounds", "1", "--trajectories", "2"])
    printed = capsys.readouterr().out
    assert re.search(r"^update: \d+ tokens in .* MFU \d+\.\d% of", printed, re.MULTILINE)
    norms = re.search(r"norms of the gradient (\S+) and (\S+)$", printed, re.MULTILINE)
    assert norms is not None
    assert float(norms[1]) == pytest.approx(float(norms[2]), rel=1e-4 if not torch.cuda.is_available() else 0.05)
    assert re.search(r"^vocabulary of \d+, ", printed, re.MULTILINE)
    return printed


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU has a test of its own")
def test_the_benchmark_of_gpus_runs_small_on_a_cpu(capsys: pytest.CaptureFixture[str]):
    assert small_run(capsys).startswith("CPU, ")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_benchmark_of_gpus_runs_small_on_a_gpu(capsys: pytest.CaptureFixture[str]):
    assert "bfloat16" in small_run(capsys)
