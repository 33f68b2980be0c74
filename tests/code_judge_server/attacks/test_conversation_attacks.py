"""Interactive problems whose program or interactor attacks, beside honest conversations and before them, in every tier."""

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import psutil
import pytest
from attacks.attack import ACCEPTED, TIMED_OUT
from attacks.attacked_judge import AttackedJudge, judge_under_attack
from attacks.corpus.conversations import ATTACKS, Conversation
from judge_process import WITHOUT_MODULES, wait_until

HONEST = Conversation(name="honest", attacks=(), statuses=ACCEPTED, limits={"wall_time_s": 60.0, "cpu_time_s": 5.0})
BOTH_WAIT = Conversation(name="both wait", program="input(); input()", statuses=TIMED_OUT, limits={"wall_time_s": 30.0})


@pytest.fixture(
    scope="module",
    params=[
        "root",
        *(pytest.param(starter, marks=pytest.mark.slow) for starter in ("ordinary_user", "without_namespaces")),
        *(pytest.param(starter, marks=pytest.mark.soak) for starter in ("root in B", "without_isolation")),
    ],
)
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedJudge]:
    settings = ["--num-slots", "4", *WITHOUT_MODULES]
    with judge_under_attack(request.param, tmp_path_factory.mktemp("judge"), *settings) as judge:
        yield judge


def tier_of(attacked: AttackedJudge) -> str:
    return attacked.server.http.get("/v1/health").json()["isolation"]


def submission(attacked: AttackedJudge, conversation: Conversation) -> dict[str, Any]:
    submission = conversation.submission(attacked.around.target, secret=attacked.canary)
    return {**submission, "id": uuid.uuid4().hex}


def assert_others_talk(attacked: AttackedJudge) -> None:
    verdicts = attacked.server.judge_batch([submission(attacked, HONEST) for _ in range(2)])  # in all four slots
    assert [verdict["status"] for verdict in verdicts] == ["accepted"] * 2, verdicts


@pytest.mark.parametrize(
    "conversation",
    [pytest.param(attack, id=attack.name, marks=[pytest.mark.slow] * (i % 5 != 0)) for i, attack in enumerate(ATTACKS)],
)
def test_an_attack_in_a_conversation_is_held(attacked: AttackedJudge, conversation: Conversation) -> None:
    if tier_of(attacked) in conversation.skip_in:
        pytest.skip("nothing of this tier holds it")
    verdict, honest = attacked.server.judge_batch([submission(attacked, conversation), submission(attacked, HONEST)])
    assert honest["status"] == "accepted", honest
    assert verdict["status"] in conversation.statuses, verdict
    assert "reached: " not in verdict["stderr"]
    assert attacked.canary not in verdict["stderr"] + verdict["stdout"]
    assert attacked.around.signs_of_contact() == []
    assert_others_talk(attacked)


def test_a_cancelled_conversation_frees_its_slots(attacked: AttackedJudge) -> None:
    [verdict] = attacked.server.judge_batch([submission(attacked, BOTH_WAIT)], deadline_s=0.5)
    assert verdict["status"] == "cancelled"
    with pytest.raises(httpx.TimeoutException):
        httpx.post(
            f"{attacked.server.url}/v1/submissions",
            json=submission(attacked, BOTH_WAIT),
            headers=attacked.server.http.headers,
            timeout=0.5,
        )
    attacked.server.wait_until_running(0)
    assert_others_talk(attacked)


def test_a_conversation_whose_slot_is_killed_is_held_once_more(attacked: AttackedJudge) -> None:
    program = "import time\ninput()\ntime.sleep(1)\nprint('answer', flush=True)"
    slow = Conversation(name="slow", program=program, attacks=(), statuses=ACCEPTED, limits={"wall_time_s": 30.0})
    for side in ("main.py", "expected.txt"):
        with ThreadPoolExecutor() as pool:
            talk = pool.submit(attacked.server.judge_batch, [submission(attacked, slow)])
            wait_until(partial(runs, attacked, side))
            os.kill(jobs(attacked, side)[0].ppid(), signal.SIGKILL)
            [verdict] = talk.result()
        assert verdict["status"] == "accepted", verdict
        assert_others_talk(attacked)


def runs(attacked: AttackedJudge, last_word: str) -> bool:
    return bool(jobs(attacked, last_word))


def jobs(attacked: AttackedJudge, last_word: str) -> list[psutil.Process]:
    processes = []
    for process in psutil.Process(attacked.server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.cmdline()[-1:] == [last_word]:
                processes.append(process)
    return processes


def test_a_program_that_kills_its_slot_or_removes_its_folder_harms_no_other(attacked: AttackedJudge) -> None:
    if tier_of(attacked) != "D":
        pytest.skip("it cannot")
    kills = Conversation(name="kills", program="input()\nos.kill(os.getppid(), 9)\ntime.sleep(60)", statuses=ACCEPTED)
    began_at = time.monotonic()
    verdict = attacked.server.judge(**submission(attacked, kills))
    assert (verdict["status"], time.monotonic() - began_at < 9) == ("internal_error", True), verdict
    assert_others_talk(attacked)
    removes = "import os, shutil\nshutil.rmtree(os.path.dirname(os.path.dirname(os.getcwd())))"
    assert attacked.server.judge(code=removes)["status"] == "accepted"
    assert_others_talk(attacked)
