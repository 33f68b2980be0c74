"""The metrics at `/metrics`, for Prometheus."""

from collections.abc import Iterable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentrl.serve.rollouts import RolloutService
from agentrl.serve.weights import PolicyWeights
from agentrl.types import Termination

_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


class ServiceMetrics(Collector):
    """Metrics of one service, read when somebody asks."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, rollouts: RolloutService, weights: PolicyWeights) -> None:
        self._rollouts, self._weights = rollouts, weights
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._first_line = Histogram(
            "agentrl_first_trajectory_seconds",
            "From the receipt of a request to its first trajectory",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._registry.register(self)

    def note_first_line(self, seconds: float) -> None:
        """Count the time to a request's first trajectory."""
        self._first_line.observe(seconds)

    def render(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics that are counted elsewhere."""
        ended = CounterMetricFamily("agentrl_trajectories", "Trajectories sent, by termination", labels=["termination"])
        for termination in Termination:
            ended.add_metric([termination], self._rollouts.finished[termination])
        yield ended
        yield GaugeMetricFamily("agentrl_open_requests", "Open requests", value=self._rollouts.num_requests)
        yield GaugeMetricFamily("agentrl_open_trajectories", "Unfinished trajectories", value=self._rollouts.num_open)
        yield GaugeMetricFamily("agentrl_policy_version", "Version of the policy", value=self._weights.version)
