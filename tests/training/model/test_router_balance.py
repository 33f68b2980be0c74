"""The routers' auxiliary loss matches plain transformers over the sequences of a row without sharing."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, multiprocessing
from transformers import AutoModelForCausalLM

from agentrl.config.schema.run import ActorSection, ModelSection, RolloutSection, RunConfig
from agentrl.errors import ConfigError
from agentrl.training.actor import Actor
from agentrl.training.model.decoder import decoder_layers, load_model
from agentrl.training.model.router_balance import require_router_loss
from agentrl.training.model.router_replay import replay_routing
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packed_tokens import PackedTokens
from agentrl.training.packing.packing import empty_tokens, pack_examples
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel, open_store
from agentrl.training.scoring.token_logprobs import score_tokens
from agentrl.training.update.update_plan import plan_update
from agentrl.types import Trajectory
from tests.training.architecture_cases import tiny_config
from tests.training.router_ranks import rows_of, run_process
from tests.training.training_cases import alone, make_policy, step_groups

COEFFICIENT = 0.7
WITH_LOSS = ("mixtral", "qwen3_moe", "qwen3_moe with a dense layer", "olmoe")


@pytest.fixture
def context() -> Iterator[Parallel]:
    parallel = Parallel(alone())
    yield parallel
    parallel.close()


def trajectories() -> list[Trajectory]:
    """Return five trajectories for each of three prompts."""
    return [trajectory.ref for group in step_groups() for trajectory in group.trajectories]


def transformers_loss(model: Any, sequences: list[Trajectory]) -> Tensor:
    """Return cross-entropy of the sampled tokens plus auxiliary loss from the model's own forward pass.

    The last token of each sequence, which predicts nothing, is masked like padding.
    """
    longest = max(len(trajectory.token_ids) for trajectory in sequences)

    def padded(rows: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])

    labels = [
        [
            token if sampled else -100
            for token, sampled in zip(trajectory.token_ids, trajectory.response_mask, strict=True)
        ]
        for trajectory in sequences
    ]
    return model(
        input_ids=padded([trajectory.token_ids for trajectory in sequences], 0),
        attention_mask=padded([[1] * (len(trajectory.token_ids) - 1) + [0] for trajectory in sequences], 0),
        labels=padded(labels, -100),
        output_router_logits=True,
    ).loss


@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize("kind", WITH_LOSS)
def test_router_loss_and_gradient_match_transformers(kind: str, share_prefixes: bool, tmp_path: Path):
    config = tiny_config(kind)
    config.router_aux_loss_coef = COEFFICIENT
    folder = str(make_policy(tmp_path, config))
    plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    expected = transformers_loss(plain, trajectories())
    expected.backward()
    model = load_model(ModelSection(path=folder))
    [row] = pack_examples(trajectories(), Packing(max_tokens=10_000, share_prefixes=share_prefixes))
    assert bool(row.layout.prefixes) == share_prefixes
    scores = score_tokens(model, row, temperature=1.0, router_loss=True)
    assert scores.router_loss is not None
    loss = COEFFICIENT * scores.router_loss / row.num_tokens - scores.logprobs_N.mean()
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert (ours.grad - theirs.grad).norm() <= 1e-4 * theirs.grad.norm(), name


def updated(folder: str, coefficient: float, context: Parallel) -> dict[str, float]:
    """Return the metrics of one update with all trajectories in one row."""
    section = ActorSection(router_aux_loss_coef=coefficient)
    config = RunConfig(model=ModelSection(path=folder), actor=section, rollout=RolloutSection(max_response_tokens=64))
    actor = Actor(config, "actor")
    actor.setup(context)
    try:
        [(shard, refs)] = plan_update(step_groups(), step=1, num_ranks=1, num_mini_batches=1)
        return actor.update(shard, [trajectory.ref for trajectory in refs], [TokenInputs()] * len(refs))
    finally:
        actor.close()


def test_an_update_adds_the_weighted_router_loss_and_reports_it(context: Parallel, tmp_path: Path):
    folder = str(make_policy(tmp_path, tiny_config("mixtral")))
    model = load_model(ModelSection(path=folder))
    [row] = pack_examples(trajectories(), Packing(max_tokens=10_000))
    router_sum = score_tokens(model, row, temperature=1.0, router_loss=True).router_loss
    assert router_sum is not None
    without, with_loss = updated(folder, 0.0, context), updated(folder, COEFFICIENT, context)
    assert "actor/router_aux_loss" not in without
    assert with_loss["actor/router_aux_loss"] == pytest.approx(router_sum.item() / row.num_tokens, rel=1e-5)
    added = with_loss["actor/loss"] - without["actor/loss"]
    assert added == pytest.approx(COEFFICIENT * with_loss["actor/router_aux_loss"], rel=1e-4)
    assert with_loss["actor/grad_norm"] != pytest.approx(without["actor/grad_norm"], rel=1e-3)


def test_an_empty_row_adds_nothing(tmp_path: Path):
    model = load_model(ModelSection(path=str(make_policy(tmp_path, tiny_config("olmoe")))))
    router_sum = score_tokens(model, empty_tokens(), temperature=1.0, router_loss=True).router_loss
    assert router_sum is not None
    router_sum.backward()
    assert router_sum.item() == 0
    assert all(weight.grad is None or not weight.grad.any() for weight in model.parameters())


@pytest.mark.parametrize("kind", ["qwen3", "deepseek_v3"])
def test_a_model_without_a_router_loss_is_refused(kind: str, context: Parallel, tmp_path: Path):
    folder = str(make_policy(tmp_path, tiny_config(kind)))
    with pytest.raises(
        ConfigError, match=rf"router_aux_loss_coef` is set, but `model.path`: .*\(`{kind}`\) has no aux"
    ):
        updated(folder, COEFFICIENT, context)


@pytest.mark.parametrize("kind", ["minimax_m2", "gpt_oss", "granitemoe", "qwen2_moe", "ernie4_5_moe"])
def test_other_mixtures_have_the_router_loss(kind: str, tmp_path: Path):
    model = load_model(ModelSection(path=str(make_policy(tmp_path, tiny_config(kind)))))
    require_router_loss(model, "here")
    [row] = pack_examples(trajectories()[:3], Packing(max_tokens=10_000))
    router_sum = score_tokens(model, row, temperature=1.0, router_loss=True).router_loss
    assert router_sum is not None
    assert 0 < router_sum.item() / row.num_tokens < 4  # 4 if all tokens go to the same two of four experts


def loss_of_parts(model: Any, row: PackedTokens, num_parts: int) -> Tensor:
    """Return the loss times the number of tokens, summed over equal parts of a row, by transformers' function."""
    decoded: Any = model.get_decoder()(
        input_ids=row.token_ids_T[None],
        position_ids=row.position_ids_T[None],
        use_cache=False,
        layout=row.layout,
        output_router_logits=True,
    )
    function = sys.modules[type(model).__module__].load_balancing_loss_func
    size = -(-len(row.token_ids_T) // num_parts)
    by_layer = [logits.split(size) for logits in decoded.router_logits]
    parts = zip(*by_layer, row.uses_T.split(size), strict=True)
    losses = [function(tuple(logits), 4, 2, uses[None]) * uses.sum() for *logits, uses in parts]
    return torch.stack(losses).sum()


@pytest.mark.slow
@pytest.mark.timeout(600)  # two new processes, on busy machines
@pytest.mark.parametrize("sequence_parallel_size", [1, 2])
def test_two_ranks_have_the_token_weighted_router_loss_and_replay_routing(sequence_parallel_size: int, tmp_path: Path):
    folder = str(make_policy(tmp_path / "policy", tiny_config("mixtral")))
    store = open_store("127.0.0.1")
    arguments = (store.port, folder, sequence_parallel_size, str(tmp_path))
    multiprocessing.spawn(run_process, args=arguments, nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    model = load_model(ModelSection(path=folder))
    shares = 2 // sequence_parallel_size
    rows = [row for share in range(shares) for row in rows_of(share, shares)]
    assert len(rows) > shares
    balance = torch.stack([loss_of_parts(model, row, sequence_parallel_size) for row in rows]).sum()
    logprobs = torch.cat([score_tokens(model, row, temperature=1.0).logprobs_N for row in rows]).sum()
    expected = (balance - logprobs) / sum(row.num_tokens for row in rows)
    expected.backward()
    replaying = load_model(ModelSection(path=folder))
    replay_routing(replaying, decoder_layers(replaying), "here")
    for rank in range(2):
        total, gradients, logprobs_N = torch.load(tmp_path / f"{rank}.pt")
        assert total == pytest.approx(expected.item(), rel=1e-5)
        for name, weight in model.named_parameters():
            assert weight.grad is not None
            assert (gradients[name] - weight.grad).norm() <= 1e-4 * weight.grad.norm(), name
        row = rows_of(rank // sequence_parallel_size, shares)[0]
        alone_N = score_tokens(replaying, row, temperature=1.0).logprobs_N
        assert (logprobs_N - alone_N).abs().max() < 1e-4
        assert (alone_N - score_tokens(model, row, temperature=1.0).logprobs_N).abs().max() > 0.01
