import os

import pytest
from pydantic import ValidationError

from code_judge_server.settings import Settings
from code_judge_server.settings_table import settings_table


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"host": "0.0.0.0"}, ("host", "CODE_JUDGE_TOKEN")),
        ({"queue_capacity": 10}, ("queue_capacity", "max_batch_items")),
        ({"max_body_bytes": 2**30, "request_memory_mb": 512}, ("max_body_bytes", "request_memory_mb")),
        ({"default_cpu_time_s": 5, "max_cpu_time_s": 4}, ("default_cpu_time_s", "max_cpu_time_s")),
        ({"default_wall_time_s": 30, "max_cpu_time_s": 10}, ("default_wall_time_s", "max_wall_time_s")),
        ({"default_memory_mb": 1024, "max_memory_mb": 512}, ("default_memory_mb", "max_memory_mb")),
        ({"token": "two words"}, ("token",)),
        ({"token": ""}, ("token",)),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_their_names(
    settings: dict[str, object], named: tuple[str, ...]
) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings.model_validate(settings)
    assert all(name in str(refused.value) for name in named)


def test_absent_limits_take_the_default_or_the_maximum() -> None:
    settings = Settings(default_cpu_time_s=1, max_cpu_time_s=4, default_memory_mb=64, max_memory_mb=128)
    assert (settings.default_limits.cpu_time_s, settings.max_limits.cpu_time_s) == (1, 4)
    assert (settings.default_limits.wall_time_s, settings.max_limits.wall_time_s) == (8, 8)
    assert (settings.default_limits.memory_bytes, settings.max_limits.memory_bytes) == (64 * 2**20, 128 * 2**20)


def test_slots_are_one_more_than_cores() -> None:
    assert Settings().slot_count == len(os.sched_getaffinity(0)) + 1
    assert Settings(num_slots=7).slot_count == 7


def test_spare_slots_follow_the_slots_unless_they_are_named() -> None:
    assert Settings(num_slots=4).total_slots == 12
    assert Settings(num_slots=4, spare_slots=0).total_slots == 4


@pytest.mark.parametrize("width", [80, 128])
def test_the_table_names_every_setting_its_default_and_its_meaning(width: int) -> None:
    table = settings_table(width)
    assert all(len(line) <= width for line in table.splitlines())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in table
        assert field.description, f"`{name}` has no line of documentation"
        assert field.description.split()[0] in table
    assert "8088" in table
