"""The rollout service: the agent loop, tools, judge and reward behind HTTP, for any trainer."""
