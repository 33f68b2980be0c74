"""Every program of the corpus, against a judge started by root and one started by an ordinary user."""

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from attacks.attack import Attack, reached
from attacks.attacked_judge import AttackedJudge, attacked_judge, judge_under_attack
from attacks.corpus import cplusplus, daemons, floods, forging, kernel, loopback, network, poisoning, secrets, timing

THEMES = (forging, secrets, network, loopback, kernel, floods, daemons, timing, poisoning, cplusplus)
CORPUS: list[Attack] = [attack for theme in THEMES for attack in theme.ATTACKS]
UNBOUNDED = [attack for attack in CORPUS if attack.reached_in_tier_d]


def parameters(attacks: list[Attack], *, first: int = 0, step: int = 1) -> list[object]:
    """Return one parameter per attack; only every `step`-th of them, from `first` on, belongs to the fast tests."""
    return [
        pytest.param(attack, id=attack.name, marks=[pytest.mark.slow] * (attack.slow or index % step != first))
        for index, attack in enumerate(attacks)
    ]


@pytest.fixture(scope="module")
def judge_of_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedJudge]:
    with judge_under_attack("root", tmp_path_factory.mktemp("root")) as judge:
        yield judge


@pytest.fixture(scope="module")
def judge_of_a_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedJudge]:
    with judge_under_attack("ordinary_user", tmp_path_factory.mktemp("user")) as judge:
        yield judge


def is_for_want_of_a_core(verdict: dict[str, Any]) -> bool:
    """Return whether the verdict says that the machine was too busy for the compiler, which is no fault of the source."""
    return (
        verdict["status"] == "internal_error"
        and re.match(r"compiler: .* had .* of CPU time in", verdict["stderr"]) is not None
    )


def assert_it_reaches_nothing_and_harms_nobody(attacked: AttackedJudge, attack: Attack) -> None:
    verdict = attacked.run_attack(attack)
    assert verdict["status"] in attack.statuses or is_for_want_of_a_core(verdict), verdict
    assert reached(verdict) == []
    if attack.says_done:
        assert verdict["stdout"].splitlines()[-1] == "done", verdict


@pytest.mark.parametrize("attack", parameters(CORPUS, first=0, step=3))
def test_an_attack_on_the_judge_of_root_is_held(judge_of_root: AttackedJudge, attack: Attack) -> None:
    assert_it_reaches_nothing_and_harms_nobody(judge_of_root, attack)


@pytest.mark.slow
@pytest.mark.parametrize("attack", parameters(CORPUS, first=1, step=3))
def test_an_attack_on_the_judge_of_a_user_is_held(judge_of_a_user: AttackedJudge, attack: Attack) -> None:
    assert_it_reaches_nothing_and_harms_nobody(judge_of_a_user, attack)


@pytest.fixture(scope="module")
def without_isolation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedJudge]:
    with attacked_judge(tmp_path_factory.mktemp("open"), isolation="D", ordinary_user=True) as judge:
        yield judge


@pytest.mark.skipif(os.getuid() != 0, reason="some of it only root reaches")
@pytest.mark.parametrize("attack", parameters(UNBOUNDED, first=0, step=3))
def test_without_isolation_the_same_program_reaches_its_aim(without_isolation: AttackedJudge, attack: Attack) -> None:
    verdict = without_isolation.server.judge(**attack.submission(without_isolation.around.target))
    aims = [line.removeprefix("reached: ") for line in reached(verdict)]
    for aim in attack.reached_in_tier_d:
        assert any(line.startswith(aim) for line in aims), f"{aim}: {verdict}"
