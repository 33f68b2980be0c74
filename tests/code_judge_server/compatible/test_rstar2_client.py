"""A client like rStar2-Agent's works with this server as with its own."""

import asyncio
import re
from collections.abc import Iterator

import pytest
from jail_tiers import NAMESPACE_TIERS
from judge_process import JudgeProcess, running_judge
from rstar2_client import Rstar2Client

TIME = r"\nexecution time: \d+\.\d\ds"


@pytest.fixture(scope="module")
def warm_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    settings = ["--num-slots", "2", "--max-sessions", "0", "--max-cpu-time-s", "4", "--max-batch-items", "16"]
    settings += ["--queue-capacity", "24"]  # fewer places than calls: those that find none wait
    folder = tmp_path_factory.mktemp("judge")
    with running_judge(folder, *settings, isolation=NAMESPACE_TIERS[0], with_modules=True) as judge:
        yield judge


def output(text: str) -> str:
    """Return the text that the model reads, without the time."""
    match = re.fullmatch(rf"(.*){TIME}", text, re.DOTALL)
    assert match is not None, text
    return match[1]


@pytest.mark.slow
async def test_cells_see_the_variables_of_earlier_cells(warm_judge: JudgeProcess) -> None:
    async with Rstar2Client(warm_judge.url, concurrency=2, batch_size=4) as client:
        first = await client.run_cell("import sympy\nx = sympy.Symbol('x')\nprint('made')\nsympy.integrate(x**2, x)")
        history = ["import sympy\nx = sympy.Symbol('x')\nprint('not shown again')", "1 / 0", "y = x**2"]
        second = await client.run_cell("sympy.diff(y, x)", history)
    assert output(first) == "Tool call success\nstdout: made\nx**3/3\n"
    assert output(second) == "Tool call success\nstdout: 2*x\n"


@pytest.mark.slow
async def test_failures_are_reported_with_their_reason(warm_judge: JudgeProcess) -> None:
    async with Rstar2Client(warm_judge.url, concurrency=4, batch_size=1) as client:
        raised, exited, slept, cut = await asyncio.gather(
            client.run_cell("print('so far', flush=True)\nint('a')"),
            client.run_cell("import sys\nsys.exit(3)"),
            client.run_cell("import time\ntime.sleep(60)"),
            client.run_cell("if True print(1)"),
        )
    error = "ValueError: invalid literal for int() with base 10: 'a'\n"
    assert output(raised) == f"Tool call failure\nreason: \nstdout: so far\n\nstderr: {error}"
    assert output(exited) == "Tool call failure\nreason: "
    assert output(slept) == "Tool call failure\nreason: worker_timeout\nstdout: Suicide from timeout.\n"
    assert "stderr: SyntaxError: " in cut


async def test_programs_read_their_input(warm_judge: JudgeProcess) -> None:
    async with Rstar2Client(warm_judge.url, concurrency=1, batch_size=8) as client:
        texts = await asyncio.gather(*(client.run_program("print(input()[::-1])", f"{i}a\n") for i in range(8)))
    assert [output(text) for text in texts] == [f"Tool call success\nstdout: a{i}\n" for i in range(8)]


async def test_more_calls_than_the_queue_has_places_for_all_get_their_own_answer(warm_judge: JudgeProcess) -> None:
    async with Rstar2Client(warm_judge.url, concurrency=16, batch_size=16) as client:
        texts = await asyncio.gather(*(client.run_cell(f"{i} ** 2") for i in range(200)))
        assert client.num_requests >= 200 / 16
        assert client.num_asked_again == 0, "long-batch waits for room"
    assert [output(text) for text in texts] == [f"Tool call success\nstdout: {i**2}\n" for i in range(200)]
