"""The executor of the best isolation that this machine gives, or a refusal."""

from code_judge_server.jail.kernel.cgroups import NoCgroupsError
from code_judge_server.jail.kernel.seccomp_filter import SeccompError
from code_judge_server.jail.launch.plan import HiddenPathError, make_plan
from code_judge_server.jail.probe.canaries import find_tier
from code_judge_server.jail_executor.executor import JailExecutor
from code_judge_server.languages import located_languages, paths_to_show
from code_judge_server.process_executor.executor import ProcessExecutor
from code_judge_server.sandbox.executor import Executor
from code_judge_server.schemas import Canary, IsolationTier
from code_judge_server.settings import Settings

SESSION_TIERS = (IsolationTier.A, IsolationTier.B)
"""Tiers with a pid namespace per session, in which everything that a cell leaves can be killed."""


class IsolationRefusedError(Exception):
    """This machine does not give the isolation that the settings demand."""


def choose_executor(settings: Settings) -> Executor:
    """Return an executor of the best tier whose canaries pass here; its processes may already be starting.

    Raises:
        IsolationRefusedError: the tier is weaker than `require_isolation`, not `use_isolation`, or too weak for the address.
    """
    most_slots = settings.total_slots + settings.max_sessions
    tier_search = find_tier(
        settings.use_isolation or IsolationTier.A, num_slots=most_slots, fast_path=settings.fast_path
    )
    tier, canaries = tier_search.tier, tier_search.canaries
    if settings.use_isolation not in (None, tier):
        raise IsolationRefusedError(
            f"use_isolation: tier {settings.use_isolation} is required, but {_reached(tier, canaries)}"
        )
    if tier > settings.require_isolation:
        raise IsolationRefusedError(
            f"require_isolation: tier {settings.require_isolation} is required, but {_reached(tier, canaries)}. "
            f"Where programs may be trusted with that, name it: --require-isolation {tier}"
        )
    if tier is IsolationTier.D and not settings.is_loopback:
        raise IsolationRefusedError(
            f"host: isolation tier D is for loopback only, not for `{settings.host}`. Use --host 127.0.0.1"
        )
    if tier is IsolationTier.D:
        return ProcessExecutor(num_slots=settings.total_slots, work_dir=settings.work_dir, canaries=canaries)
    num_sessions = settings.max_sessions if tier in SESSION_TIERS else 0
    try:
        plan = make_plan(
            tier,
            num_slots=settings.total_slots + num_sessions,
            slot_users=tier_search.slot_users,
            preloads=settings.preload_sets,
            read_only=[*map(str, settings.read_only_paths), *paths_to_show(located_languages(settings.languages))],
            fast_path=settings.fast_path,
        )
    except HiddenPathError as error:
        raise IsolationRefusedError(str(error)) from error
    except (NoCgroupsError, SeccompError, OSError) as error:
        raise IsolationRefusedError(f"isolation: tier {tier} worked in its trial, but not now: {error}") from error
    return JailExecutor(plan, canaries=canaries, num_private_slots=num_sessions)


def _reached(tier: IsolationTier, canaries: list[Canary]) -> str:
    failures = "; ".join(f"{canary.name}: {canary.detail}" for canary in canaries if not canary.passed)
    return f"this server reaches only {tier}" + (f" ({failures})" if failures else "")
