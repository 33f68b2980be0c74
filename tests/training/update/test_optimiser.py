import pytest
import torch

from agentrl.config.schema.run import ActorSection
from agentrl.training.update.optimiser import (
    apply_gradients,
    build_adamw,
    learning_rate_at,
    require_finite,
)


def test_warmup_rises_linearly_then_is_constant():
    settings = ActorSection(learning_rate=0.5, warmup_steps=4)
    rates = [learning_rate_at(step, settings, decay_steps=0) for step in range(1, 7)]
    assert rates == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
    assert learning_rate_at(1, ActorSection(learning_rate=0.5, warmup_steps=0), decay_steps=0) == 0.5


def test_cosine_falls_from_the_peak_to_the_floor():
    settings = ActorSection(learning_rate=0.2, warmup_steps=10, final_learning_rate_fraction=0.1)
    rates = [learning_rate_at(step, settings, decay_steps=110) for step in (5, 10, 60, 110, 500)]
    assert rates == pytest.approx([0.1, 0.2, 0.11, 0.02, 0.02])


def test_gradients_are_clipped_to_the_global_norm():
    model = torch.nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters())
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 4.0)
    norm = apply_gradients(model, optimiser, learning_rate=1.0, max_grad_norm=0.5, step=1)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert norm == pytest.approx(4.0 * 3**0.5)
    assert (before - after).norm().item() == pytest.approx(0.5, rel=1e-4)


def test_a_gradient_that_is_not_finite_stops_the_run_and_keeps_the_weights():
    model = torch.nn.Linear(2, 1)
    optimiser = build_adamw(model, betas=(0.9, 0.999), weight_decay=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    with pytest.raises(FloatingPointError, match="update 7: gradient norm is nan"):
        apply_gradients(model, optimiser, learning_rate=1.0, max_grad_norm=1.0, step=7)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_a_loss_that_is_not_finite_stops_the_run():
    with pytest.raises(FloatingPointError, match="update 2: loss is inf"):
        require_finite("loss", float("inf"), 2)
