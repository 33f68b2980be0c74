"""The commands: `python -m agentrl.runners.NAME config.yaml [section.key=value ...]`."""

from importlib.util import find_spec

_MISSING = [name for name in ("ray", "rich", "torch", "transformers") if find_spec(name) is None]
if _MISSING:
    raise SystemExit(f"error: the runners need {', '.join(_MISSING)}, which `pip install 'agentrl[train]'` brings")
