import os
from pathlib import Path

import psutil
import pytest

from benchmarks.soak.holdings import MIB, Sample, sample, size_of, slopes


def test_growth_is_that_of_the_steps_after_the_warm_up():
    samples = [
        Sample(step=step, amounts={"a": 100.0 if step < 25 else 3 + 0.5 * step, "gone": 1.0}) for step in range(101)
    ]
    samples[60] = Sample(step=60, amounts={"a": 33.0})
    assert slopes(samples, leave_out_share=0.25) == {"a": pytest.approx(0.5)}
    with pytest.raises(ValueError, match="take more steps"):
        slopes(samples[:1], leave_out_share=0.25)


def test_what_this_process_holds_is_counted(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(bytes(MIB))
    (tmp_path / "row").write_bytes(bytes(10))
    assert (size_of(tmp_path), size_of(tmp_path / "row"), size_of(tmp_path / "none")) == (MIB + 10, 10, 0)
    before = sample(1, psutil.Process(), {"folder": tmp_path}).amounts
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    after = sample(1, psutil.Process(), {"folder": tmp_path}).amounts
    for descriptor in opened:
        os.close(descriptor)
    assert after["descriptors"] >= before["descriptors"] + 15
    assert after["folder, MiB"] == pytest.approx(1.0, abs=1e-4)
    assert after["memory, MiB"] > 10
