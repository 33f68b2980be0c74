"""The commands: `python -m agentrl.runners.NAME config.yaml [section.key=value ...]`."""

import os
import signal
import sys
from importlib.util import find_spec
from types import FrameType

_MISSING = [name for name in ("ray", "rich", "torch", "transformers") if find_spec(name) is None]
if _MISSING:
    raise SystemExit(f"error: the runners need {', '.join(_MISSING)}, which `pip install 'agentrl[train]'` brings")


def exit_on_interrupt(number: int, frame: FrameType | None) -> None:
    """End this process in one line: while its modules are imported, nothing has started that has to be ended."""
    after_echo = b"\n" if os.isatty(2) else b""  # of `^C`
    os.write(2, after_echo + b"stopped by SIGINT before anything was started\n")
    os._exit(128 + number)


# Python puts this there while it imports the packages of `python -m agentrl.runners.NAME`, and in no other case.
if sys.argv[:1] == ["-m"]:
    signal.signal(signal.SIGINT, exit_on_interrupt)  # until `make_parser`
