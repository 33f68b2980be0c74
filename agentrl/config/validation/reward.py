"""Checks of the section `reward`."""

import re
from collections import Counter
from collections.abc import Iterator

from agentrl.config.schema.reward import RewardPartSection, RewardSection
from agentrl.config.validation.unused_keys import changed
from agentrl.types import ENVIRONMENT_REWARD_METRIC, TOOL_REWARD_METRIC

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_GIVEN = (TOOL_REWARD_METRIC, ENVIRONMENT_REWARD_METRIC)
"""Metrics of every reward."""


def reward_problems(reward: RewardSection, metric: str | None) -> Iterator[str]:
    """Yield missing or ambiguous rewards, and a `selection.metric` that no part gives."""
    names = [part.name for part in reward.parts]
    if metric is not None and names and metric.partition("/")[0] not in [*names, *_GIVEN]:
        yield (
            f"`algorithm.selection.metric` is `{metric}`, and `reward.parts` give {', '.join(f'`{name}`' for name in names)}; "
            "name one of them, or `PART/NAME` for a number that a part gives"
        )
    if reward.parts:
        for key, _ in changed(reward, "class_name", "function", "config"):
            yield f"`reward.{key}` is set beside `reward.parts`; make it one of the parts, or leave one of them out"
        for index, part in enumerate(reward.parts):
            yield from _part_problems(part, f"reward.parts[{index}]")
        for name, count in Counter(part.name for part in reward.parts).items():
            if count > 1:
                yield f"`reward.parts` has {count} parts named `{name}`; give each a name of its own"
        if all(part.weight == 0 for part in reward.parts):
            yield "`reward.parts` have the weight 0 throughout, so that every reward is 0; set one above 0"
    elif reward.function is not None and changed(reward, "class_name"):
        yield f"`reward.class_name` and `reward.function` ({reward.function}) are both set; leave one of them out"


def _part_problems(part: RewardPartSection, where: str) -> Iterator[str]:
    if not _NAME.fullmatch(part.name) or part.name == "score":
        yield (
            f"`{where}.name` is {part.name!r}, and must be letters, digits, `_`, `.` or `-`, and not `score`: it names a metric"
        )
    if (part.class_name is None) == (part.function is None):
        yield f"`{where}` must have either `class_name` or `function`"
