import pytest
import torch

from agentrl.config.schema.run import ActorSection
from agentrl.training.update.optimiser import (
    apply_gradients,
    build_adamw,
    learning_rate_at,
    require_finite,
    warmup,
    warmup_cosine,
)


def test_warmup_rises_linearly_then_is_constant():
    rates = [warmup(step, peak=1.0, warmup_steps=4) for step in range(1, 7)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warmup(1, peak=2.0, warmup_steps=0) == 2.0


def test_cosine_falls_from_the_peak_to_the_floor():
    def rate(step: int) -> float:
        return warmup_cosine(step, peak=2.0, warmup_steps=10, num_steps=110, final_fraction=0.1)

    assert rate(5) == 1.0
    assert rate(10) == 2.0
    assert rate(60) == pytest.approx(1.1)
    assert rate(110) == pytest.approx(0.2)
    assert rate(500) == pytest.approx(0.2)


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
    optimiser = build_adamw(model.parameters(), betas=(0.9, 0.999), weight_decay=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    with pytest.raises(FloatingPointError, match="update 7: gradient norm is nan"):
        apply_gradients(model, optimiser, learning_rate=1.0, max_grad_norm=1.0, step=7)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_a_loss_that_is_not_finite_stops_the_run():
    with pytest.raises(FloatingPointError, match="update 2: loss is inf"):
        require_finite("loss", float("inf"), 2)


def test_the_learning_rate_is_constant_or_a_cosine_of_the_step():
    constant = ActorSection(learning_rate=0.2, warmup_steps=2)
    assert [learning_rate_at(step, constant) for step in (1, 2, 100)] == [0.1, 0.2, 0.2]
    cosine = ActorSection(learning_rate=0.2, warmup_steps=2, decay_steps=10, final_learning_rate_fraction=0.5)
    rates = [learning_rate_at(step, cosine) for step in (1, 2, 6, 10, 50)]
    assert rates == pytest.approx([0.1, 0.2, 0.15, 0.1, 0.1])
