"""Programs that sleep do not hold up those that compute, where the executor sees who sleeps."""

import threading
import uuid
from pathlib import Path

import pytest
from judge_process import WITHOUT_MODULES, running_judge


@pytest.mark.slow
def test_programs_that_sleep_leave_their_slots_to_others(tmp_path: Path) -> None:
    with running_judge(tmp_path, "--num-slots", "2", "--spare-slots", "2", *WITHOUT_MODULES, isolation="B") as judge:
        sleepers = [{"id": uuid.uuid4().hex, "code": "import time; time.sleep(5)"} for _ in range(2)]
        asleep = threading.Thread(target=judge.judge_batch, args=(sleepers,))
        asleep.start()
        judge.wait_until_running(2)
        verdicts = judge.judge_batch([{"id": uuid.uuid4().hex, "code": f"print({n})"} for n in range(20)])
        assert [verdict["stdout"] for verdict in verdicts] == [f"{n}\n" for n in range(20)]
        assert max(verdict["queue_time_s"] for verdict in verdicts) < 4
        assert asleep.is_alive()
        asleep.join()


@pytest.mark.slow
def test_one_clients_sleepers_never_take_the_last_slot(tmp_path: Path) -> None:
    with running_judge(tmp_path, "--num-slots", "1", "--spare-slots", "2", *WITHOUT_MODULES, isolation="B") as judge:
        sleepers = [{"id": uuid.uuid4().hex, "code": "import time; time.sleep(4)"} for _ in range(9)]
        asleep = threading.Thread(target=judge.judge_batch, args=(sleepers,))
        asleep.start()
        judge.wait_until_running(2)
        other = {"Judge-Client": "other"}
        reply = judge.http.post("/v1/submissions", json={"id": "honest", "code": "print(1)"}, headers=other, timeout=30)
        assert reply.json()["queue_time_s"] < 1
        asleep.join()
