"""The jails that the tests of this user run in, each started once and kept for all tests of a module."""

import os

import pytest

from code_judge_server.schemas import IsolationTier

NAMESPACE_TIERS = (IsolationTier.A, IsolationTier.B) if os.geteuid() == 0 else (IsolationTier.B,)
"""Tier A needs a writable cgroup, which an ordinary user seldom has."""
EVERY_TIER = (*NAMESPACE_TIERS, IsolationTier.C)

JUDGES_THAT_ISOLATE = ("A of root", "B of root", "B of a user", "C of a user")
JUDGES = (*JUDGES_THAT_ISOLATE, "D of root", "D of a user")
"""Tiers, and the users that start the judges; root's programs in tier D have an ordinary user all the same."""
in_tiers_that_isolate = pytest.mark.parametrize("judge_of_each_tier", JUDGES_THAT_ISOLATE, indirect=True)
