"""Questions to the index of a run, answered as plain data for pages.

A page of rows carries a cursor: the sort value and row of its last entry, and the newest row at the time of the first page. So
the pages of a live run have no row twice and leave none out.
"""

import base64
import binascii
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from numpy import histogram

from agentrl.data.prompts import id_without_epoch
from agentrl.errors import AgentRLError

PAGE_ROWS = 80
NEWEST = "newest"
"""Order in which trajectories were recorded."""
_COLUMNS = (
    "trajectory_id, prompt_id, sample_index, reward, is_masked, termination, failure_class, failure_cause, num_tokens, "
    "num_response_tokens, num_turns, num_tool_calls, num_failed_tool_calls, num_retries, policy_version, started_at, "
    "wall_time_s, generate_s, engine_queue_s, tool_s, judge_queue_s, reward_s"
)
SORTABLE = frozenset(column.strip() for column in _COLUMNS.split(",")) | {"step", "fate", NEWEST}
_FATE = (
    "(SELECT fate FROM fates WHERE NOT is_validation AND fates.step = trajectories.step "
    "AND fates.trajectory_id = trajectories.trajectory_id)"
)
_PLACE = f"trajectories.rowid AS row, files.name AS file, offset, trajectories.step, is_validation, {_FATE} AS fate"
_FROM = "trajectories JOIN files USING (file_id)"
_NUM_BINS = 24
_MAX_CLUSTERS = 50
_MAX_HISTORY = 2000
"""Trajectories of a prompt whose rewards are shown over the steps."""
_MAX_SQUARES = 20_000
"""Trajectories of a step whose rewards are shown as squares."""


class BadQueryError(AgentRLError):
    """A request that cannot be answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Condition on trajectories; absent parts hold for all."""

    step: int | None = None
    is_validation: bool = False
    min_reward: float | None = None
    max_reward: float | None = None
    termination: str = ""
    fate: str = ""
    """Use in the update."""
    failed_calls: bool = False
    """Keep those with a failed tool call."""
    text: str = ""
    """Part of the prompt's id or the trajectory's."""
    failure: tuple[str, str] | None = None
    """Class and cause of the last failure."""

    def where(self) -> tuple[str, dict[str, Any]]:
        """Return the condition in SQL, and its values."""
        parts = {
            "step = :step AND is_validation = :is_validation": self.step is not None,
            "reward >= :min_reward": self.min_reward is not None,
            "reward <= :max_reward": self.max_reward is not None,
            "termination = :termination": bool(self.termination),
            f"{_FATE} = :fate": bool(self.fate),
            "num_failed_tool_calls > 0": self.failed_calls,
            "instr(lower(prompt_id || ' ' || trajectory_id), lower(:text))": bool(self.text),
            "failure_class != '' AND failure_class = :failure_class AND failure_cause = :failure_cause": self.failure
            is not None,
        }
        values = {
            "step": self.step,
            "is_validation": int(self.is_validation),
            "min_reward": self.min_reward,
            "max_reward": self.max_reward,
            "termination": self.termination,
            "fate": self.fate,
            "text": self.text,
            "failure_class": self.failure[0] if self.failure else "",
            "failure_cause": self.failure[1] if self.failure else "",
        }
        return " AND ".join(part for part, is_used in parts.items() if is_used) or "1", values


def step_files(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the recorded steps, in order: `step_000001`, ..., `validation_000000`, ..."""
    return [
        row["name"].removesuffix(".atr")
        for row in connection.execute("SELECT name FROM files WHERE name LIKE '%.atr' ORDER BY name")
    ]


def trajectory_page(
    connection: sqlite3.Connection, where: Filter, *, sort: str, descending: bool, cursor: str
) -> dict[str, Any]:
    """Return the rows after `cursor`, the next cursor, and at first also the number of rows.

    Raises:
        BadQueryError: the column or the cursor is unknown.
    """
    if sort not in SORTABLE:
        raise BadQueryError(f"sort: no column `{sort}`")
    where_all, values = where.where()
    condition = where_all
    values |= {"limit": PAGE_ROWS}
    key = "trajectories.rowid" if sort == NEWEST else f"coalesce({_FATE if sort == 'fate' else sort}, -1e308)"
    order = "DESC" if descending else "ASC"
    if cursor:
        values["newest"], values["value"], values["row"] = _decoded(cursor)
        condition += f" AND ({key}, trajectories.rowid) {'<' if descending else '>'} (:value, :row)"
    else:
        values["newest"] = connection.execute("SELECT coalesce(max(rowid), 0) FROM trajectories").fetchone()[0]
    condition += " AND trajectories.rowid <= :newest"
    found = connection.execute(
        f"SELECT {_PLACE}, {_COLUMNS}, {key} AS sort_value FROM {_FROM} WHERE {condition} "
        f"ORDER BY {key} {order}, trajectories.rowid {order} LIMIT :limit",
        values,
    ).fetchall()
    rows = [_row(row) for row in found]
    next_cursor = None
    if len(found) == PAGE_ROWS:
        next_cursor = _encoded([values["newest"], found[-1]["sort_value"], found[-1]["row"]])
    page: dict[str, Any] = {"rows": rows, "next": next_cursor}
    if not cursor:
        page["count"] = connection.execute(f"SELECT count(*) FROM trajectories WHERE {where_all}", values).fetchone()[0]
    return page


def step_summary(connection: sqlite3.Connection, step: int, *, is_validation: bool) -> dict[str, Any]:
    """Return the groups of a step with their rewards, histograms, and counts by termination."""
    rows = connection.execute(
        "SELECT prompt_id, offset, reward, termination, num_response_tokens, wall_time_s, num_tool_calls, "
        "num_failed_tool_calls, is_masked FROM trajectories WHERE step = ? AND is_validation = ? ORDER BY prompt_id, "
        "sample_index, rowid",
        (step, int(is_validation)),
    ).fetchall()
    groups: dict[str, list[list[Any]]] = {}
    for row in rows[:_MAX_SQUARES]:
        groups.setdefault(row["prompt_id"], []).append([row["offset"], row["reward"]])
    terminations: dict[str, int] = {}
    for row in rows:
        terminations[row["termination"]] = terminations.get(row["termination"], 0) + 1
    fates = connection.execute(
        "SELECT fate, count(*) FROM fates WHERE step = ? AND ? GROUP BY fate", (step, not is_validation)
    )
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    return {
        "num_trajectories": len(rows),
        "num_groups": len({row["prompt_id"] for row in rows}),
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        "num_without_reward": len(rows) - len(rewards),
        "num_calls": sum(row["num_tool_calls"] for row in rows),
        "num_failed_calls": sum(row["num_failed_tool_calls"] for row in rows),
        "groups": [{"prompt_id": prompt_id, "rewards": members} for prompt_id, members in groups.items()],
        "terminations": terminations,
        "fates": dict(map(tuple, fates)),
        "histograms": {
            "reward": _histogram(rewards),
            "response tokens": _histogram([row["num_response_tokens"] for row in rows]),
            "seconds": _histogram([row["wall_time_s"] for row in rows]),
        },
    }


def trajectory_place(connection: sqlite3.Connection, file: str, offset: int) -> dict[str, Any]:
    """Return the row at a place, with its neighbours in the file and the offset of its prompt.

    Raises:
        BadQueryError: no trajectory is there.
    """
    row = connection.execute(
        f"SELECT {_PLACE}, {_COLUMNS}, file_id FROM {_FROM} WHERE files.name = ? AND offset = ?",
        (f"{file}.atr", offset),
    ).fetchone()
    if row is None:
        raise BadQueryError(f"{file}: no trajectory at byte {offset}")
    file_id, prompt_id = row["file_id"], row["prompt_id"]
    prompt = connection.execute(
        "SELECT max(offset) FROM prompts WHERE file_id = ? AND prompt_id = ?", (file_id, prompt_id)
    ).fetchone()[0]
    near = "SELECT {} FROM trajectories WHERE file_id = ? AND offset {} ?"
    before = connection.execute(near.format("max(offset)", "<"), (file_id, offset)).fetchone()[0]
    after = connection.execute(near.format("min(offset)", ">"), (file_id, offset)).fetchone()[0]
    return _row(row) | {"prompt_offset": prompt, "before": before, "after": after}


def group_places(connection: sqlite3.Connection, file: str, prompt_id: str) -> list[dict[str, Any]]:
    """Return the rows of a group, in the order of their samples."""
    found = connection.execute(
        f"SELECT {_PLACE}, {_COLUMNS} FROM {_FROM} WHERE files.name = ? AND prompt_id = ? ORDER BY sample_index, offset",
        (f"{file}.atr", prompt_id),
    )
    return [_row(row) for row in found]


def failure_clusters(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return failed attempts by class and cause, the most frequent first, with their counts by step."""
    failed = "FROM trajectories WHERE failure_class != ''"
    clusters = connection.execute(
        f"SELECT failure_class, failure_cause, count(*) AS count, sum(reward IS NULL) AS num_lost {failed} "
        "GROUP BY failure_class, failure_cause ORDER BY count(*) DESC LIMIT ?",
        (_MAX_CLUSTERS,),
    ).fetchall()
    found = []
    for cluster in clusters:
        steps = connection.execute(
            f"SELECT step, count(*) {failed} AND failure_class = ? AND failure_cause = ? AND NOT is_validation GROUP BY step",
            (cluster["failure_class"], cluster["failure_cause"]),
        )
        found.append({**dict(cluster), "steps": [list(row) for row in steps]})
    return found


def group_rewards(connection: sqlite3.Connection, file: str, prompt_id: str) -> list[tuple[int, float | None]]:
    """Return offset and reward of each trajectory of a group, in the order of their samples."""
    found = connection.execute(
        "SELECT offset, reward FROM trajectories JOIN files USING (file_id) WHERE files.name = ? AND prompt_id = ? "
        "ORDER BY sample_index, offset",
        (f"{file}.atr", prompt_id),
    )
    return [(row["offset"], row["reward"]) for row in found]


def prompt_history(connection: sqlite3.Connection, prompt_id: str) -> list[dict[str, Any]]:
    """Return the rewards of a prompt's trajectories by step, in order; of many, the newest.

    From the second epoch on, the id of a training prompt ends with the epoch; each step comes with the id that it has there.
    """
    base = id_without_epoch(prompt_id)
    found = connection.execute(
        "SELECT files.name AS file, prompt_id, offset, reward FROM trajectories JOIN files USING (file_id) "
        "WHERE prompt_id = ? OR (prompt_id > ? AND prompt_id < ?) "
        "ORDER BY step DESC, is_validation DESC, sample_index DESC, offset DESC LIMIT ?",
        (base, f"{base}@epoch", f"{base}@epoci", _MAX_HISTORY),
    )
    steps: dict[tuple[str, str], list[list[Any]]] = {}
    for row in reversed(found.fetchall()):
        place = (row["file"].removesuffix(".atr"), row["prompt_id"])
        steps.setdefault(place, []).append([row["offset"], row["reward"]])
    return [{"file": file, "prompt_id": name, "rewards": rewards} for (file, name), rewards in steps.items()]


def _row(row: sqlite3.Row) -> dict[str, Any]:
    values = {name: row[name] for name in row.keys() if name not in ("sort_value", "file_id")}  # noqa: SIM118
    values["file"] = values["file"].removesuffix(".atr")
    return values


def _histogram(values: Sequence[float]) -> dict[str, list[float]]:
    if not values:
        return {"edges": [], "counts": []}
    counts, edges = histogram(values, bins=_NUM_BINS)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _encoded(position: list[Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode()


def _decoded(cursor: str) -> tuple[int, Any, int]:
    try:
        newest, value, row = orjson.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, binascii.Error) as error:
        raise BadQueryError("cursor: not from a page of this table") from error
    return newest, value, row
