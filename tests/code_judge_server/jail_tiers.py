"""The jails that the tests of this user run in, each started once and kept for all tests of a module."""

import os

from code_judge_server.schemas import IsolationTier

NAMESPACE_TIERS = (IsolationTier.A, IsolationTier.B) if os.geteuid() == 0 else (IsolationTier.B,)
"""A needs a writable cgroup, which an ordinary user seldom has."""
EVERY_TIER = (*NAMESPACE_TIERS, IsolationTier.C)
