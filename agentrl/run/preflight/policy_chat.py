"""Tries the policy's tokenizer and chat template in the driver, before any process starts.

The tokenizer is loaded without torch, and weights are not read, so that a driver stays small.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.schema.run import ModelSection, RunConfig
from agentrl.errors import ConfigError
from agentrl.models.tokenizer import light_tokenizer_class, read_model_file
from agentrl.run.preflight.report import CheckReport, CheckSubject
from agentrl.tools.base import ToolConfig, ToolSchema
from agentrl.tools.builder import read_tool_schema
from agentrl.tools.function_tool import FUNCTION_TOOL, FunctionTool
from agentrl.tools.jupyter_tool import JUPYTER_TOOL, JUPYTER_TOOL_SCHEMA
from agentrl.tools.python_tool import PYTHON_TOOL, PYTHON_TOOL_SCHEMA

_SHOWN_TOKENS = 3
_UNKNOWN_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "some_tool",
        "description": "Stands for a tool that only its worker can describe.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}


def known_schemas(tools: Sequence[ToolConfig]) -> list[dict[str, Any]]:
    """Return the schemas that are known without building a class of the user's, which may start anything."""
    schemas: list[ToolSchema] = []
    for tool in tools:
        if tool.tool_schema is not None:
            schemas.append(read_tool_schema(tool.tool_schema))
        elif tool.class_name == PYTHON_TOOL:
            schemas.append(PYTHON_TOOL_SCHEMA)
        elif tool.class_name == JUPYTER_TOOL:
            schemas.append(JUPYTER_TOOL_SCHEMA)
        elif tool.class_name == FUNCTION_TOOL:
            schemas.append(FunctionTool(tool.config, None).schema)
    return [schema.as_template_dict() for schema in schemas]


def schemas_of(tools: Sequence[ToolConfig]) -> list[dict[str, Any]]:
    """Return the known schemas, and one that stands for the others."""
    known = known_schemas(tools)
    return known if len(known) == len(tools) else [*known, dict(_UNKNOWN_TOOL)]


def check_policy_chat(
    model: ModelSection, schemas: Sequence[Mapping[str, Any]], *, without_torch: bool = True
) -> ChatTokens:
    """Return the token side of the policy, after a prompt, a call and its result have been rendered and read back.

    Args:
        model: the policy.
        schemas: of the tools, in the form of chat templates; without any, the template need not know tools.
        without_torch: load the class that the tokenizer's files name, which is enough for a check; to train on the result,
            let `AutoTokenizer` choose.

    Raises:
        ConfigError: tokenizer, template and model do not fit each other or the tools.
    """
    tokenizer_class = light_tokenizer_class(model.path) if without_torch else None
    tokens = ChatTokens.of_model(model, [dict(schema) for schema in schemas], tokenizer_class)
    _refuse_tokens_outside(model.path, tokens)
    return tokens


def check_chat_of_run(config: RunConfig, tools: Sequence[ToolConfig]) -> ChatTokens:
    """Return the token side of a run's policy; with an environment, its template must append a user's message to an answer.

    Raises:
        ConfigError: as `check_policy_chat`, or the template does not append one.
    """
    tokens = check_policy_chat(config.model, schemas_of(tools))
    if config.agent_loop.environment is not None:
        tokens.require_user_turns()
    return tokens


def check_chat(subject: CheckSubject, report: CheckReport) -> None:
    """Try tokenizer and chat template, and render the first prompt of every stage.

    Raises:
        ConfigError: tokenizer, template, model, tools and prompts do not fit each other.
    """
    tokens = check_chat_of_run(subject.config, subject.tools)
    ends = ", ".join(f"`{end}`" for end in tokens.ends)
    calls = f"; calls have the format `{tokens.format_name}`" if tokens.format_name else ""
    for prompts in subject.training:
        [length] = tokens.prompt_lengths(prompts.all()[:1]).values()
        report.note(f"chat template: the first prompt has {length} tokens; a turn ends with {ends}{calls}")


def _refuse_tokens_outside(path: str, tokens: ChatTokens) -> None:
    """Refuse a tokenizer whose tokens have no row in the model's embedding."""
    config = read_model_file(path, "config.json")
    rows = config.get("text_config", config).get("vocab_size")
    outside = [] if rows is None else tokens.tokens_from(rows)
    if outside:
        shown = ", ".join(f"`{token}`" for token in outside[:_SHOWN_TOKENS])
        more = f" and {len(outside) - _SHOWN_TOKENS} more" if len(outside) > _SHOWN_TOKENS else ""
        raise ConfigError(
            f"model.path: {path}: its tokenizer has tokens beyond the {rows} rows of the embedding (`vocab_size`): "
            f"{shown}{more}. Resize the model (`resize_token_embeddings`) and save it, or remove these tokens"
        )
