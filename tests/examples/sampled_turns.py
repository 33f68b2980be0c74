"""One turn of an example's policy for each prompt, with transformers' own sampling: no engine of this project takes part."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.types import Message


def policy_on_one_thread(example: Path) -> Iterator[PreTrainedModel]:
    """Yield the policy of an example; another number of threads rounds sums differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(example / "policy")
    torch.set_num_threads(threads)


@torch.no_grad()
def sample_turns(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    tokens: ChatTokens,
    prompts: Sequence[list[Message]],
    *,
    start: str,
    temperature: float,
) -> list[str]:
    """Sample one turn per prompt that begins with `start`; 0 is greedy."""
    start_ids = tokenizer.encode(start, add_special_tokens=False)
    all_ids = [tokens.prompt(prompt) + start_ids for prompt in prompts]
    width = max(map(len, all_ids))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in all_ids])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in all_ids])
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    # `generate` is typed for mixed-in use only; through `Any` it is the plain method.
    output = cast(Any, policy).generate(input_ids=ids, attention_mask=mask, max_new_tokens=40, **sampling)
    return [start + text for text in tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)]
