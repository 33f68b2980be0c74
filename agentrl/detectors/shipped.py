"""The detectors that come with agentrl."""

from agentrl.detectors.base import Detector, FunctionDetector
from agentrl.detectors.dialogue import ignored_error, response_tokens
from agentrl.detectors.programs import constant_print, copied_answer
from agentrl.detectors.wording import empty_reasoning, language_switch, repeated_text

_FUNCTIONS = (
    ("repeated_text", "a passage repeats itself at least four times in a row", repeated_text),
    ("copied_answer", "the answer comes from a program that had it as a literal", copied_answer),
    ("constant_print", "a call's program only prints constants", constant_print),
    ("empty_reasoning", "every block of reasoning is empty", empty_reasoning),
    ("language_switch", "text in a script that the prompt does not use", language_switch),
    ("long_response", "more tokens than nine of ten trajectories of the first step", response_tokens),
    ("ignored_error", "after a failed call, the same call or a bare answer", ignored_error),
)

SHIPPED: tuple[Detector, ...] = tuple(
    FunctionDetector(name=name, meaning=meaning, function=function) for name, meaning, function in _FUNCTIONS
)
