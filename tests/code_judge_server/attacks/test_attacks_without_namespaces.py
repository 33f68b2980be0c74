"""The corpus in tier C, against an ordinary user's judge, with only Landlock, the filter and limits."""

from collections.abc import Iterator

import pytest
from attacks.attack import CRASHED, TIMED_OUT, Attack, reached
from attacks.attacked_judge import AttackedJudge, judge_under_attack
from attacks.corpus import daemons, floods, forging, kernel, loopback, network, poisoning, secrets, timing

from code_judge_server.schemas import VerdictStatus

THEMES = (forging, secrets, network, loopback, kernel, floods, daemons, timing, poisoning)
CORPUS = [attack for theme in THEMES for attack in theme.ATTACKS]
ENDED_BY_LANDLOCK = {
    "environments",
    "memory_of_others",
    "what_a_neighbour_or_a_predecessor_left",
    "files_in_shared_places",
}
"""Attacks that end when they list folders that exist but may not be read."""
WITHOUT_A_QUOTA = {"files_in_the_work_folder": TIMED_OUT | {VerdictStatus.ACCEPTED}}
"""Documented in docs/judge_deployment.md for tier C: the disk has no quota."""
TAKE_ALL_PROCESSES = {attack.name for attack in CORPUS if "bomb" in attack.name}
"""Attacks that make other programs' forks fail: processes are counted by user there, and all programs have one user."""
HARMLESS = ("reached: pidfd of a victim",)
"""Programs may see that other processes exist."""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedJudge]:
    with judge_under_attack("without_namespaces", tmp_path_factory.mktemp("user")) as judge:
        yield judge


@pytest.mark.slow
@pytest.mark.parametrize("attack", [pytest.param(attack, id=attack.name) for attack in CORPUS])
def test_an_attack_without_namespaces_is_held(attacked: AttackedJudge, attack: Attack) -> None:
    verdict = attacked.run_attack(attack, beside_an_honest_one=attack.name not in TAKE_ALL_PROCESSES)
    assert [line for line in reached(verdict) if not line.startswith(HARMLESS)] == []
    if attack.name in ENDED_BY_LANDLOCK:
        assert verdict["status"] in CRASHED, verdict
        assert "PermissionError" in verdict["stderr"], verdict
        return
    assert verdict["status"] in attack.statuses | WITHOUT_A_QUOTA.get(attack.name, frozenset()), verdict
    if attack.says_done:
        assert verdict["stdout"].splitlines()[-1] == "done", verdict
