"""A decoder with a head of one output: a critic, or a reward model."""

from typing import cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.errors import ConfigError
from agentrl.training.packing.packed_tokens import PackedTokens
from agentrl.training.packing.sequences import TokenisedExample
from agentrl.training.scoring.token_logprobs import scored_states


class ScalarModel(nn.Module):
    """A backbone of transformers with a linear head of one output."""

    def __init__(self, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Return the head's output at each scored token of the row, before its successor, float32."""
        values = self.head(scored_states(self.backbone, tokens)).squeeze(-1).float()
        # FSDP hooks its backward pass to the output, and warns of views.
        return tokens.gather(values).clone()


def value_model(causal_lm: PreTrainedModel) -> ScalarModel:
    """Return a critic on the backbone of a language model; its head starts at zero, so first values are 0."""
    backbone = cast(PreTrainedModel, causal_lm.base_model)
    head = nn.Linear(backbone.config.get_text_config().hidden_size, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return ScalarModel(backbone, head).eval()


def classifier_model(classifier: PreTrainedModel) -> ScalarModel:
    """Return a sequence classifier of one label as a `ScalarModel`.

    Raises:
        ConfigError: it has more labels, or a head of another kind.
    """
    head = getattr(classifier, "score", None)
    if not isinstance(head, nn.Linear) or head.out_features != 1:
        raise ConfigError(
            f"`reward.model.path`: {type(classifier).__name__} with {classifier.config.num_labels} labels; a reward model is a "
            "decoder with a linear `score` of one label (`num_labels: 1`)"
        )
    return ScalarModel(classifier.base_model, head).eval()


def whole_sequence(token_ids: list[int]) -> TokenisedExample:
    """Return a sequence with only its last token scored; a filler follows it, because packing drops the last token."""
    return TokenisedExample(token_ids=[*token_ids, token_ids[-1]], response_mask=[0] * len(token_ids) + [1])
