"""Questions about edited images: one edit of a painting, or two in a row, and what the result looks like."""

import random
from dataclasses import dataclass
from functools import cache
from itertools import product

from agentrl.types import Message
from examples.image_edit.image_worker import apply_edit, describe, paint_gallery

GALLERY = paint_gallery(64)
"""Gallery of the size in `run.yaml`, on which the answers depend."""
SYSTEM_PROMPT = "You may edit images. End with <answer>\\boxed{contrast}</answer>."
WORDINGS = {
    "blur": ("blur {image}", "make {image} softer"),
    "sharpen": ("sharpen {image}", "make {image} crisper"),
    "edges": ("find the edges of {image}", "outline {image}"),
    "transfer_colours": ("give {image} the colours of {colours_of}", "paint {image} as {colours_of} is"),
}
"""The ways to ask for each operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One call of the tool: `Edit(operation="blur", image="sea")`."""

    operation: str
    image: str
    colours_of: str | None = None

    @property
    def arguments(self) -> dict[str, str]:
        """Arguments of the tool call."""
        colours = {} if self.colours_of is None else {"colours_of": self.colours_of}
        return {"operation": self.operation, "image": self.image} | colours


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One question, such as `Blur the sea, then outline the result. What is the contrast?`, and the edits that answer it."""

    question: str
    edits: tuple[Edit, ...]

    @property
    def messages(self) -> list[Message]:
        """Prompt of the policy."""
        return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": self.question}]

    @property
    def answer(self) -> str:
        """The contrast of the last image, as the tool writes it."""
        return str(results(self.edits)[-1]["contrast"])


@cache
def results(edits: tuple[Edit, ...]) -> tuple[dict[str, object], ...]:
    """Return what the worker answers to each of the edits of an episode."""
    images, answers = dict(GALLERY), list[dict[str, object]]()
    for number, edit in enumerate(edits, start=1):
        name = f"image_{number}"
        images[name] = apply_edit(images, edit.operation, edit.image, edit.colours_of)
        answers.append({"image": name, **describe(images[name])})
    return tuple(answers)


def all_problems() -> list[Problem]:
    """Return every question, in an order that is always the same and tells nothing."""
    first = [edit for image in GALLERY for edit in _edits_of(image)]
    second = _edits_of("image_1")
    problems = [problem for edit in first for problem in _worded(edit)]
    problems += [problem for pair in product(first, second) for problem in _worded(*pair)]
    random.Random(1).shuffle(problems)
    return problems


def _edits_of(image: str) -> list[Edit]:
    plain = [Edit(operation=operation, image=image) for operation in ("blur", "sharpen", "edges")]
    others = [name for name in GALLERY if name != image]
    return plain + [Edit(operation="transfer_colours", image=image, colours_of=name) for name in others]


def _worded(*edits: Edit) -> list[Problem]:
    """Word the same edits in each way."""
    problems = []
    for wordings in product(*(WORDINGS[edit.operation] for edit in edits)):
        asked = [
            wording.format(image=_spoken(edit.image), colours_of=_spoken(edit.colours_of or ""))
            for wording, edit in zip(wordings, edits, strict=True)
        ]
        request = ", then ".join(asked)
        question = f"{request[0].upper()}{request[1:]}. What is the contrast?"
        problems.append(Problem(question=question, edits=edits))
    return problems


def _spoken(name: str) -> str:
    return "the result" if name == "image_1" else f"the {name}"
