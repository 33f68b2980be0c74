"""The ways a program can end, as its parent sees them (standard library only: the slots use it too)."""

from enum import StrEnum


class Ending(StrEnum):
    """The cause of a program's end."""

    EXITED = "exited"
    """The program ended itself: see its exit code or signal."""
    CPU_TIME = "cpu_time"
    WALL_TIME = "wall_time"
    MEMORY = "memory"
    OUTPUT = "output"
    TASKS = "tasks"
    """Too many processes and threads."""
    CANCELLED = "cancelled"
    """Nobody waits for the outcome."""
