"""Requests that no client of ours would send, generated from the OpenAPI page."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from judge_process import WITHOUT_MODULES, JudgeProcess, running_judge
from schemathesis.core.result import Ok

_PHASES = (
    Phase.explicit,
    Phase.generate,
)  # a failing request is not shrunk: that takes longer than the tests
_CHECKS = [
    HealthCheck.function_scoped_fixture,
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    """A judge with isolation, as the fuzzer's programs may do anything."""
    limits = ["--max-cpu-time-s", "0.5", "--max-wall-time-s", "1", "--max-memory-mb", "128", "--compile-time-s", "5"]
    folder = tmp_path_factory.mktemp("fuzzed")
    with running_judge(
        folder, "--num-slots", "2", "--max-body-bytes", str(8 * 1024 * 1024), *limits, *WITHOUT_MODULES, isolation="B"
    ) as server:
        yield server


def fuzz(server: JudgeProcess, *, max_examples: int) -> list[str]:
    """Send valid and invalid requests from its OpenAPI page; return the endpoints that were tried."""

    def send(case: schemathesis.Case) -> None:
        response = case.call(timeout=200)
        assert response.status_code < 500 or response.status_code == 503, response.text
        if response.status_code == 400:
            assert response.json()["detail"]

    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    configured = settings(
        max_examples=max_examples,
        derandomize=True,  # the same requests in every run: chance belongs to a soak, where a finding throws no other work away
        deadline=None,
        database=None,
        phases=_PHASES,
        suppress_health_check=_CHECKS,
    )
    for operation in operations:
        for mode in (
            schemathesis.GenerationMode if operation.method == "post" else [schemathesis.GenerationMode.POSITIVE]
        ):
            configured(given(case=operation.as_strategy(generation_mode=mode))(send))()
    return [operation.label for operation in operations]


@pytest.mark.slow
def test_no_request_breaks_the_server(fuzzed: JudgeProcess) -> None:
    tried = fuzz(fuzzed, max_examples=5)
    assert {
        "POST /v1/submissions/batch",
        "POST /v1/submissions",
        "POST /run",
        "POST /run_code",
        "GET /v1/health",
    } <= set(tried)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_no_request_of_many_breaks_the_server(fuzzed: JudgeProcess) -> None:
    fuzz(fuzzed, max_examples=50)
