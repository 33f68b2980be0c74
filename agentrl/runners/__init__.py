"""The commands: `python -m agentrl.runners.NAME config.yaml [section.key=value ...]`."""
