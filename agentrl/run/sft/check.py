"""Answers, before anything is trained: what would a warm start learn from?"""

from itertools import groupby

from rich.console import Console
from rich.text import Text

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.schema.sft import SftConfig
from agentrl.run.sft.data import TokenisedDialogue
from agentrl.run.sft.run import SftDirectory, inputs_of, num_steps_of, read_inputs, resolved

_SHOWN_CHARACTERS = 4000
_OPEN, _CLOSE = "⟦", "⟧"
"""Marks around what is trained."""


def check(config: SftConfig) -> None:
    """Read and tokenise every row, and print the counts and one dialogue as the model sees it; builds no model.

    Raises:
        ConfigError: what is wrong, where, and the way out.
    """
    console = Console()

    def note(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False, highlight=False)

    config = resolved(config, console)
    data = read_inputs(config)
    note(f"training: {data.training.describe()}")
    if data.validation is not None:
        note(f"held-out: {data.validation.describe()}")
    num_dialogues = len(data.training.dialogues)
    num_steps, size = num_steps_of(config, num_dialogues), config.training.examples_per_step
    note(f"steps: {num_steps:,} of {size:,} dialogues, {num_steps * size / num_dialogues:.2f} passes over them")
    note(SftDirectory(config).try_out(inputs_of(config)))
    example = data.training.dialogues[0]
    note(f"\n{example.where}, as the model sees it; {_OPEN}what is trained{_CLOSE}:\n")
    console.print(rendered(example, data.tokens), soft_wrap=True)
    note("\nok (nothing was built: neither the model's weights nor its memory were looked at)")


def rendered(dialogue: TokenisedDialogue, tokens: ChatTokens) -> Text:
    """Return a dialogue as text, with marks around what is trained."""
    text = Text()
    pairs = zip(dialogue.response_mask.tolist(), dialogue.token_ids.tolist(), strict=True)
    for is_trained, run in groupby(pairs, key=lambda pair: pair[0]):
        part = tokens.decode_all([token_id for _, token_id in run])
        text.append(f"{_OPEN}{part}{_CLOSE}" if is_trained else part, style="green" if is_trained else "")
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + Text(f"... (of {len(text):,} characters)", style="dim")
    return text
