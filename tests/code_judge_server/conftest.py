import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio
from jail_tiers import JUDGES
from judge_in_process import JudgeInProcess, judge_in_process
from judge_process import JudgeProcess, running_judge
from session_client import Session


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    """One judge with two slots and short limits, for every test that does not harm it."""
    limits = ["--max-cpu-time-s", "2", "--max-wall-time-s", "60", "--max-memory-mb", "256", "--max-queue-time-s", "60"]
    with running_judge(tmp_path_factory.mktemp("judge"), "--num-slots", "2", *limits) as server:
        yield server


@pytest.fixture
def session(judge: JudgeProcess) -> Iterator[Session]:
    """A Python session of the `judge` that the test has."""
    opened = Session(judge)
    yield opened
    opened.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["A", "D"])
async def used_judge(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[JudgeInProcess]:
    async with judge_in_process(tmp_path_factory.mktemp("judge"), isolation=request.param) as judge:
        yield judge


@pytest.fixture
def fresh_judge(used_judge: JudgeInProcess) -> JudgeInProcess:
    """A judge without a server, of the strongest tier and of the weakest, that has judged and compiled nothing yet."""
    used_judge.forget()
    return used_judge


@pytest.fixture(scope="session")
def judges_of_tiers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], JudgeProcess]]:
    """Judges of `JUDGES`, each started when a test first asks for it, and kept for those of other files."""
    judges: dict[str, JudgeProcess] = {}
    with contextlib.ExitStack() as stack:

        def start(name: str) -> JudgeProcess:
            if name not in judges:
                tier, _, user = name.partition(" of ")
                folder = tmp_path_factory.mktemp("judge")
                settings = ["--num-slots", "2", "--spare-slots", "0", "--max-wall-time-s", "60", "--max-sessions", "1"]
                server = running_judge(folder, *settings, isolation=tier, ordinary_user=user == "a user")
                judges[name] = stack.enter_context(server)
            return judges[name]

        yield start


@pytest.fixture(scope="session", params=JUDGES)
def judge_of_each_tier(request: pytest.FixtureRequest, judges_of_tiers: Callable[[str], JudgeProcess]) -> JudgeProcess:
    """Judges of each tier in turn, as root and as an ordinary user."""
    if request.param.endswith(" of root") and os.getuid() != 0:
        pytest.skip("the tests do not run as root")
    return judges_of_tiers(request.param)
