"""Formats of tool calls in the text of a policy: one grammar each, and the detection of a chat template's own."""
