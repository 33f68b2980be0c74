import pickle

from agentrl.judge.stats import JudgeStats


def test_stats_of_several_clients_add_up() -> None:
    total = sum([JudgeStats(num_submissions=2, queue_wait_s=[0.1]), JudgeStats(num_submissions=3)], JudgeStats())
    assert total == JudgeStats(num_submissions=5, queue_wait_s=[0.1])


def test_the_95th_percentile_is_the_nearest_rank() -> None:
    # Nearest rank of 1..20 at 0.95: ceil(0.95 * 20) = the 19th value.
    metrics = JudgeStats(round_trip_s=[float(value) for value in range(20, 0, -1)]).metrics()
    assert metrics["judge/round_trip_s_p95"] == 19.0
    assert metrics["judge/round_trip_s_mean"] == 10.5


def test_without_verdicts_there_are_counts_and_no_times() -> None:
    assert JudgeStats(num_retries=1).metrics() == {
        "judge/submissions": 0.0,
        "judge/requests": 0.0,
        "judge/retries": 1.0,
        "judge/unavailable": 0.0,
        "judge/dropped_hosts": 0.0,
    }


def test_stats_cross_processes() -> None:
    stats = JudgeStats(num_requests=1, round_trip_s=[0.5])
    assert pickle.loads(pickle.dumps(stats)) == stats
