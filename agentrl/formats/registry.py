"""All call formats by name, and formats of the user's own by class path."""

from agentrl.config.class_path import named
from agentrl.errors import ConfigError
from agentrl.formats.actions import ActionsFormat
from agentrl.formats.base import CallFormat
from agentrl.formats.gemma import GemmaFormat
from agentrl.formats.json_calls import HermesFormat, LlamaFormat, MistralListFormat
from agentrl.formats.named_json import DEEPSEEK_V3, DEEPSEEK_V31, GPT_OSS, KIMI, MISTRAL
from agentrl.formats.pythonic import LFM2, PYTHONIC
from agentrl.formats.tagged import GLM, MINIMAX, QWEN_XML

_FORMATS: tuple[CallFormat, ...] = (
    HermesFormat(),
    QWEN_XML,
    LlamaFormat(),
    PYTHONIC,
    LFM2,
    GLM,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    KIMI,
    MISTRAL,
    MistralListFormat(),
    GPT_OSS,
    GemmaFormat(),
    MINIMAX,
    ActionsFormat(),
)
FORMATS = {grammar.name: grammar for grammar in _FORMATS}


def format_named(name: str, *, key: str) -> CallFormat:
    """Return a format by its name or, of the user's own, by its class path.

    Raises:
        ConfigError: no such format, or the class is not a `CallFormat`.
    """
    found = named(name, FORMATS, key=key)
    if isinstance(found, CallFormat):
        return found
    if not (isinstance(found, type) and issubclass(found, CallFormat)):
        known = ", ".join(f"`{known}`" for known in FORMATS)
        raise ConfigError(
            f"{key}: `{name}` is no subclass of `agentrl.formats.base.CallFormat`; built-in formats are {known}"
        )
    return found()
