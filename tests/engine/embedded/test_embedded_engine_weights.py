"""New weights, sleep and wake. Reference: a fresh engine on the new weights, or a float32 forward pass of them."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.engine.embedded.engine import TransformersEngine
from agentrl.errors import EngineError
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher
from tests.engine.engine_driver import ask_greedily, freeze, thaw, until_generated, until_present

Start = Callable[..., Awaitable[TransformersEngine]]
Save = Callable[..., str]
PROMPT = [random.Random(0).randrange(64) for _ in range(40)]
V_PROJ = "model.layers.0.self_attn.v_proj.weight"


def weights_of(folder: str) -> dict[str, torch.Tensor]:
    """The parameters as an actor publishes them: tied ones once."""
    return {name: p.data for name, p in AutoModelForCausalLM.from_pretrained(folder).named_parameters()}


@pytest.fixture
def publisher() -> Iterator[SharedMemoryPublisher]:
    publisher = SharedMemoryPublisher()
    yield publisher
    publisher.close()


def logprobs_reference(folder: str, tokens: list[int], start: int) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        logprobs = model(input_ids=torch.tensor([tokens])).logits[0, start - 1 : -1].log_softmax(-1)
    return logprobs.gather(1, torch.tensor(tokens[start:])[:, None])[:, 0]


@pytest.mark.parametrize("tied", [False, True])
async def test_after_load_weights_the_engine_equals_a_fresh_one(
    save_model: Save, start_engine: Start, publisher: SharedMemoryPublisher, tied: bool
) -> None:
    old, new = save_model(seed=0, tied=tied), save_model(seed=1, tied=tied)
    engine, fresh = await start_engine(old), await start_engine(new)
    await engine.load_weights(publisher.publish(weights_of(new).items()), version=1)
    updated, expected = await ask_greedily(engine, PROMPT), await ask_greedily(fresh, PROMPT)
    assert updated.token_ids == expected.token_ids
    torch.testing.assert_close(updated.logprobs, expected.logprobs, atol=1e-6, rtol=0)
    assert updated.version_spans == ((0, 1),)
    assert (await engine.stats()).policy_version == 1


async def test_a_parked_prefix_of_old_weights_is_never_reused(
    save_model: Save, start_engine: Start, publisher: SharedMemoryPublisher
) -> None:
    old, new = save_model(seed=0), save_model(seed=1)
    engine, fresh = await start_engine(old), await start_engine(new)
    await ask_greedily(engine, PROMPT)
    await engine.load_weights(publisher.publish(weights_of(new).items()), version=1)
    assert (await ask_greedily(engine, PROMPT)).token_ids == (await ask_greedily(fresh, PROMPT)).token_ids
    assert (await engine.stats()).num_cached_tokens == 0


async def test_requests_after_an_update_find_nothing_of_those_that_ran_through_it(
    save_model: Save, start_engine: Start, publisher: SharedMemoryPublisher
) -> None:
    old, new = save_model(seed=0), save_model(seed=1)
    engine, fresh = await start_engine(old), await start_engine(new)
    task = asyncio.create_task(ask_greedily(engine, PROMPT, 150, name="t1"))
    await until_generated(engine, 10)
    await freeze(engine)
    await engine.load_weights(publisher.publish(weights_of(new).items()), version=1)
    await thaw(engine)
    sibling = await ask_greedily(engine, PROMPT, name="sibling")
    assert sibling.token_ids == (await ask_greedily(fresh, PROMPT)).token_ids
    second = PROMPT + (await task).token_ids + [1, 2, 3]
    assert (await ask_greedily(engine, second, name="t2")).token_ids == (await ask_greedily(fresh, second)).token_ids


async def test_every_token_is_stamped_with_the_version_that_sampled_it(
    save_model: Save, start_engine: Start, publisher: SharedMemoryPublisher
) -> None:
    old, new = save_model(seed=0), save_model(seed=1)
    engine = await start_engine(old)
    task = asyncio.create_task(ask_greedily(engine, PROMPT, 150))
    await until_generated(engine, 10)
    await freeze(engine)
    num_old = (await engine.stats()).num_generated_tokens
    await engine.load_weights(publisher.publish(weights_of(new).items()), version=5)
    await thaw(engine)
    completion = await task
    assert completion.version_spans == ((0, 0), (num_old, 5))
    for folder, span in ((old, slice(0, num_old)), (new, slice(num_old, 150))):
        expected = logprobs_reference(folder, PROMPT + completion.token_ids, len(PROMPT))
        torch.testing.assert_close(torch.tensor(completion.logprobs[span]), expected[span], atol=1e-5, rtol=0)


async def test_weights_whose_publisher_is_gone_change_nothing(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model(seed=0))
    before = await ask_greedily(engine, PROMPT)
    gone = SharedMemoryPublisher()
    source = gone.publish(weights_of(save_model(seed=1)).items())
    gone.close()
    with pytest.raises(EngineError, match="publish"):
        await engine.load_weights(source, version=1)
    assert (await ask_greedily(engine, PROMPT)).token_ids == before.token_ids


@pytest.mark.parametrize(
    ("break_them", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), r"missing `model\.norm\.weight`"),
        (lambda w: w.update(strange=torch.zeros(1)), "unknown `strange`"),
        (
            lambda w: w.update({"model.norm.weight": torch.zeros(3)}),
            r"`model\.norm\.weight` has shape \[3\], not \[32\]",
        ),
    ],
)
async def test_weights_that_do_not_fit_are_named_and_change_nothing(
    save_model: Save,
    start_engine: Start,
    publisher: SharedMemoryPublisher,
    break_them: Callable[[dict], object],
    message: str,
) -> None:
    engine = await start_engine(save_model(seed=0))
    before = await ask_greedily(engine, PROMPT)
    weights = weights_of(save_model(seed=1))
    break_them(weights)
    with pytest.raises(EngineError, match=message):
        await engine.load_weights(publisher.publish(weights.items()), version=1)
    assert (await ask_greedily(engine, PROMPT)).token_ids == before.token_ids
    assert (await engine.stats()).policy_version == 0


async def test_nan_logits_are_an_engine_error_and_leave_no_trace(
    save_model: Save, start_engine: Start, publisher: SharedMemoryPublisher
) -> None:
    folder = save_model()
    engine = await start_engine(folder, max_concurrent_trajectories=2)
    before = await ask_greedily(engine, PROMPT)
    good = weights_of(folder)
    bad = good | {V_PROJ: torch.full_like(good[V_PROJ], torch.nan)}
    await engine.load_weights(publisher.publish(bad.items()), version=1)
    with pytest.raises(EngineError, match="NaN or infinity"):
        await ask_greedily(engine, PROMPT)
    await engine.load_weights(publisher.publish(good.items()), version=2)
    # Attention over the longer neighbour's length reads what the failed request left behind the short one, masked.
    short = asyncio.create_task(ask_greedily(engine, PROMPT[:2], name="short"))
    await asyncio.sleep(0)
    long = await ask_greedily(engine, PROMPT, name="long")
    assert long.token_ids == before.token_ids
    assert len((await short).token_ids) == 30


async def test_requests_that_run_when_the_engine_falls_asleep_go_on_after_wake(
    save_model: Save, start_engine: Start, publisher: SharedMemoryPublisher
) -> None:
    folder = save_model()
    engine = await start_engine(folder)
    undisturbed = await ask_greedily(engine, PROMPT, 150)
    start = (await engine.stats()).num_generated_tokens
    task = asyncio.create_task(ask_greedily(engine, PROMPT, 150))
    await until_generated(engine, start + 10)
    await engine.sleep()
    assert (await engine.stats()).kv_tokens_used == 0
    assert not engine._scheduler.model.cache.layers
    await engine.wake(("weights",))
    await engine.load_weights(publisher.publish(weights_of(folder).items()), version=0)
    await asyncio.sleep(0.05)
    assert not task.done()
    await engine.wake(("kv_cache",))
    assert (await task).token_ids == undisturbed.token_ids


def memory_of_weights(engine: TransformersEngine) -> int:
    return sum(p.untyped_storage().nbytes() for p in engine._scheduler.model._model.parameters())


async def test_who_wakes_after_its_weights_were_dropped_waits_for_new_ones(
    save_model: Save, start_engine: Start, publisher: SharedMemoryPublisher
) -> None:
    folder = save_model(tied=True)
    engine = await start_engine(folder)
    before = await ask_greedily(engine, PROMPT)
    source = publisher.publish(weights_of(folder).items())
    await engine.load_weights(source, version=1)
    await engine.sleep()
    assert memory_of_weights(engine) == 0
    await engine.wake(("weights", "kv_cache"))
    held = asyncio.create_task(ask_greedily(engine, PROMPT))
    await until_present(engine, 1)
    assert (await engine.stats()).num_generated_tokens == len(before.token_ids)
    await engine.load_weights(source, version=2)  # it had them, and has them no longer
    assert (await held).token_ids == before.token_ids
    assert (await engine.stats()).num_cached_tokens == 0


@pytest.mark.parametrize("wakes_first", [(), ("weights",)])
async def test_who_waits_for_a_sleeping_engine_is_answered_by_the_weights_that_came_before_it_woke(
    save_model: Save, start_engine: Start, publisher: SharedMemoryPublisher, wakes_first: tuple[str, ...]
) -> None:
    old, new = save_model(seed=0), save_model(seed=1)
    engine, fresh = await start_engine(old), await start_engine(new)
    await ask_greedily(engine, PROMPT, name="parked")
    await engine.sleep()
    held = asyncio.create_task(ask_greedily(engine, PROMPT))
    await until_present(engine, 1)
    await engine.wake(wakes_first)
    assert (memory_of_weights(engine) > 0) == bool(wakes_first)
    await engine.load_weights(publisher.publish(weights_of(new).items()), version=1)
    assert not engine._scheduler.model.cache.layers
    await engine.wake(("kv_cache",))
    completion = await held
    assert completion.token_ids == (await ask_greedily(fresh, PROMPT)).token_ids
    assert completion.version_spans == ((0, 1),)
