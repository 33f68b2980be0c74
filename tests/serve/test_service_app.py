"""The service's HTTP, with workers that play by a script."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.agent_loop.trajectory_records import TrajectoryRequest
from agentrl.errors import EngineError, WorkerError
from agentrl.trajectories.codec import decode_trajectory
from agentrl.types import Prompt, Termination, Trajectory, Turn
from tests.serve.service import PlayedWorker, lost, played, served

POLICY = str(Path("examples/arithmetic/policy").absolute())


def slow_first(request: TrajectoryRequest) -> float:
    return 0.3 if request.prompt.prompt_id == "0" else 0.0


async def test_trajectories_come_in_the_order_in_which_they_end():
    async with served(PlayedWorker(delay_s=slow_first)) as service:
        *lines, summary = await service.roll_out("a", "b", "c")
    assert [line["prompt_id"] for line in lines] == ["1", "2", "0"]
    assert summary["kind"] == "summary"


async def test_a_line_is_the_whole_record_of_a_trajectory():
    async with served() as service:
        line, _ = await service.roll_out("a")
    assert line["token_ids"] == [5, 6, 7, 8, 9]
    assert line["response_mask"] == [0, 0, 1, 0, 1]
    assert line["rollout_logprobs"] == [None, None, -0.5, None, -0.25]
    del line["policy_version"]
    assert decode_trajectory(line).turns[0].text == "hello \ud800"  # half a surrogate pair has no UTF-8


async def test_the_summary_adds_up_and_lost_trajectories_have_a_class_and_no_reward():
    def play(request: TrajectoryRequest) -> Trajectory:
        return lost(request) if request.sample_index == 1 else played(request)

    async with served(PlayedWorker(play)) as service:
        *lines, summary = await service.roll_out("a", "b", samples_per_prompt=3)
    assert summary["num_trajectories"] == len(lines) == sum(summary["terminations"].values()) == 6
    assert summary["terminations"]["infra_error"] == 2
    assert summary["num_scored"] == 4
    assert summary["reward_mean"] == 1.0
    assert summary["num_response_tokens"] == 8
    failed = [line for line in lines if line["termination"] == Termination.INFRA_ERROR]
    assert [line["reward"] for line in failed] == [None, None]
    assert {line["failures"][-1]["failure_class"] for line in failed} == {"judge"}


async def test_a_service_outlives_any_number_of_lost_trajectories():
    async with served(PlayedWorker(lost)) as service:
        for _ in range(12):
            *_, summary = await service.roll_out("a", samples_per_prompt=8)
            assert summary["terminations"]["infra_error"] == 8
        assert not service.rollouts._failure.done()


async def test_a_client_that_leaves_cancels_its_own_trajectories_only(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "agentrl.serve")
    async with served(PlayedWorker(delay_s=lambda request: 0.5)) as service:
        other = asyncio.create_task(service.roll_out("stays", samples_per_prompt=2))
        body = {"prompts": [{"prompt": "a"}, {"prompt": "b"}], "samples_per_prompt": 3}
        async with service.client.post("/v1/rollouts", json=body):
            while len(service.worker.asked) < 8:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        while service.rollouts.num_requests > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert service.rollouts.num_open == 2
        *_, summary = await other
    assert summary["num_trajectories"] == 2
    assert len(service.worker.cancelled) == 6
    assert service.rollouts.num_open == 0
    ends = [record.getMessage() for record in caplog.records if "ended" in record.message]
    assert sorted(end.partition(": ")[2] for end in ends) == [
        "ended, sent: 0, cancelled: 6",
        "ended, sent: 2, cancelled: 0",
    ]


async def test_a_client_that_reads_nothing_gives_its_room_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agentrl.serve.app._SEND_S", 0.2)
    text = "a" * (8 << 20)  # more than sockets hold

    def play(request: TrajectoryRequest) -> Trajectory:
        return replace(played(request), turns=(Turn(text=text),))

    async with served(PlayedWorker(play)) as service:
        async with service.client.post("/v1/rollouts", json={"prompts": [{"prompt": "a"}], "samples_per_prompt": 3}):
            async with asyncio.timeout(5):
                while service.rollouts.num_open:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert not service.rollouts._failure.done()


async def test_a_full_service_answers_429_and_says_when_to_try_again():
    async with served(PlayedWorker(delay_s=lambda request: 0.2), max_open=4) as service:
        open_request = asyncio.create_task(service.roll_out("a", samples_per_prompt=3))
        while not service.rollouts.num_open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        body = {"prompts": [{"prompt": "b"}], "samples_per_prompt": 2}
        async with service.client.post("/v1/rollouts", json=body) as reply:
            assert reply.status == 429
            assert 1 <= int(reply.headers["Retry-After"]) <= 60
        await open_request
        assert len(await service.roll_out("b", samples_per_prompt=2)) == 3


async def test_requests_with_the_same_ids_reserve_what_each_needs():
    async with served(PlayedWorker(delay_s=lambda request: 0.05)) as service:
        await asyncio.gather(service.roll_out("a" * 50), service.roll_out("a" * 7))
    assert sorted(request.num_prompt_tokens for request in service.worker.asked) == [7, 50]


async def test_an_error_of_the_service_is_a_503_that_says_so():
    class Gone(PlayedWorker):
        async def prompt_lengths(self, prompts: list[Prompt]) -> dict[str, int]:
            raise WorkerError("agent loop: all 1 workers died")

    async with served(Gone()) as service:
        async with service.client.post("/v1/rollouts", json={"prompts": [{"prompt": "a"}]}) as reply:
            assert reply.status == 503
            assert await reply.json() == {"error": "agent loop: all 1 workers died"}
        assert service.rollouts.num_open == 0


async def test_a_request_that_never_fits_is_refused():
    async with served(max_open=4) as service:
        body = {"prompts": [{"prompt": "b"}], "samples_per_prompt": 5}
        async with service.client.post("/v1/rollouts", json=body) as reply:
            assert reply.status == 400
            assert "service.max_open_trajectories" in (await reply.json())["error"]


async def test_rows_that_cannot_be_used_are_named():
    prompts = [{"prompt": "a"}, {"prompt": 5}, {"prompt": "b", "id": "x"}, {"prompt": "c", "id": "x"}]
    async with served() as service:
        async with service.client.post("/v1/rollouts", json={"prompts": prompts}) as reply:
            assert reply.status == 400
            assert [row["row"] for row in (await reply.json())["rows"]] == [1, 3]
        long = [{"prompt": "a"}, {"prompt": "a" * 101}]
        async with service.client.post("/v1/rollouts", json={"prompts": long}) as reply:
            assert reply.status == 400
            [row] = (await reply.json())["rows"]
        assert row["row"] == 1
        assert "data.max_prompt_tokens" in row["message"]
        assert service.rollouts.num_open == 0
        assert not service.worker.asked


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[",
        b"[]",
        b"{}",
        b'{"prompts": {}}',
        b'{"prompts": []}',
        b'{"prompts": [1]}',
        b'{"prompts": [{}], "x": 1}',
    ],
)
async def test_other_bodies_are_refused(content: bytes):
    async with served() as service:
        headers = {"Content-Type": "application/json"}
        async with service.client.post("/v1/rollouts", data=content, headers=headers) as reply:
            assert reply.status == 400
            assert (await reply.json())["error"]


async def test_seed_and_sampling_of_a_request_reach_every_trajectory():
    async with served() as service:
        await service.roll_out("a", seed=7, samples_per_prompt=2, sampling={"temperature": 0.5, "top_k": 4})
        await service.roll_out("a")
    first, second, plain = service.worker.asked
    assert (first.seed, second.seed, plain.seed) == ("7/0-0", "7/0-1", None)
    assert first.sampling is not None
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.top_k) == (0.5, 1.0, 4)
    assert plain.sampling is None
    assert first.trajectory_id != plain.trajectory_id


async def test_a_token_is_asked_for_except_by_the_probe():
    async with served(token="a-token-of-this-test") as service:
        async with service.client.get("/health") as reply:
            assert reply.status == 200
        for path in ("/v1/status", "/metrics"):
            async with service.client.get(path) as reply:
                assert reply.status == 401
            headers = {"Authorization": "Bearer a-token-of-this-test"}
            async with service.client.get(path, headers=headers) as reply:
                assert reply.status == 200


async def test_a_web_page_cannot_call_a_service_without_a_token():
    async with served() as service:
        async with service.client.get("/v1/status", headers={"Host": "evil.example"}) as reply:
            assert reply.status == 403
        async with service.client.post("/v1/rollouts", data=b"{}", headers={"Content-Type": "text/plain"}) as reply:
            assert reply.status == 415


async def test_the_load_and_the_metrics_show_what_was_done():
    async with served() as service:
        await service.roll_out("a", "b")
        async with service.client.get("/v1/status") as reply:
            status = await reply.json()
        async with service.client.get("/metrics") as reply:
            text = await reply.text()
    assert status["num_finished_trajectories"] == 2
    assert status["num_open_trajectories"] == 0
    assert status["engines"][0]["num_running"] == 0
    assert 'agentrl_trajectories_total{termination="answered"} 2.0' in text
    assert "agentrl_first_trajectory_seconds_count 1.0" in text


async def test_the_service_ends_when_nothing_can_be_rolled_out_any_more():
    async with served(PlayedWorker(delay_s=slow_first)) as service:
        service.engines.fail(EngineError("engines: all died"))
        service.rollouts._rollouts._admission.fail(EngineError("engines: all died"))
        [line] = await service.roll_out("a")
        assert line == {"kind": "error", "message": "engines: all died"}
        with pytest.raises(EngineError, match="all died"):
            await service.rollouts.until_failed()


async def test_weights_are_the_next_version_and_bad_folders_change_nothing(tmp_path: Path):
    async with served() as service:

        async def load(path: str) -> tuple[int, dict[str, object]]:
            async with service.client.post("/v1/weights", json={"path": path}) as reply:
                return reply.status, await reply.json()

        assert await load(POLICY) == (200, {"policy_version": 1})
        for path in ("examples/arithmetic/policy", str(tmp_path), "/nowhere"):
            status, answer = await load(path)
            assert status == 400, answer
        assert await load(POLICY) == (200, {"policy_version": 2})
        assert [stats.policy_version for stats in await service.engines.loads() if stats] == [2]


async def test_servers_of_others_take_no_weights():
    async with served(engine="openai") as service, service.client.post("/v1/weights", json={"path": "/x"}) as reply:
        assert reply.status == 400
        assert "rollout.engine" in (await reply.json())["error"]


async def test_the_version_of_a_line_is_the_oldest_of_its_tokens():
    def play(request: TrajectoryRequest) -> Trajectory:
        return replace(played(request), version_spans=((2, 3), (4, 4)))

    async with served(PlayedWorker(play)) as service:
        line, summary = await service.roll_out("a")
    assert line["policy_version"] == summary["policy_version_min"] == 3
