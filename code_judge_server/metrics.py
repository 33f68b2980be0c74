"""The metrics at `/metrics`, for Prometheus."""

from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from code_judge_server import __version__
from code_judge_server.sandbox.executor import Executor
from code_judge_server.schemas import Health, Verdict, VerdictStatus

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


class Metrics:
    """Metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        verdicts = Counter(
            "code_judge_verdicts", "Verdicts given, by status", labelnames=["status"], registry=self.registry
        )
        self._verdicts = {status: verdicts.labels(status=status.value) for status in VerdictStatus}
        self._shared = Counter(
            "code_judge_shared_verdicts",
            "Verdicts given to submissions that were sent again, without judging them again",
            registry=self.registry,
        )
        self._queue_time = self._times("queue_time", "From the receipt of a submission to its start")
        self._wall_time = self._times("program_wall_time", "Wall clock of one submission's programs")
        self._cpu_time = self._times("program_cpu_time", "CPU time of one submission's programs")
        self._requests = Counter(
            "code_judge_http_requests",
            "HTTP requests answered",
            labelnames=["method", "path", "status"],
            registry=self.registry,
        )
        self._request_time = Histogram(
            "code_judge_http_request_seconds",
            "From the receipt of a request to the end of its reply",
            labelnames=["path"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._connections = Gauge("code_judge_open_connections", "Connections of clients", registry=self.registry)
        self._closed_connections = Counter(
            "code_judge_closed_connections",
            "Connections closed because there were too many, to make room or for want of it",
            registry=self.registry,
        )

    def count_judged(self, verdict: Verdict) -> None:
        """Count the times of a judged submission."""
        self._queue_time.observe(verdict.queue_time_s)
        self._wall_time.observe(verdict.wall_time_s)
        self._cpu_time.observe(verdict.cpu_time_s)

    def count_verdict(self, verdict: Verdict) -> None:
        """Count a verdict that is delivered to a client."""
        self._verdicts[verdict.status].inc()

    def count_shared(self) -> None:
        """Count a submission that shares an earlier verdict."""
        self._shared.inc()

    def count_request(self, *, method: str, path: str, status: int, time_s: float) -> None:
        """Count an HTTP request; `path` is the path of its route, which bounds the number of labels."""
        self._requests.labels(method, path, str(status)).inc()
        self._request_time.labels(path).observe(time_s)

    def count_closed_connection(self) -> None:
        """Count a connection that was closed because of the limit."""
        self._closed_connections.inc()

    def watch_connections(self, num_open: Callable[[], int]) -> None:
        """Report the number of connections, read at each scrape."""
        self._connections.set_function(num_open)

    def watch(self, health: Callable[[], Health], executor: Executor) -> None:
        """Report the state of the server too, read at each scrape."""
        self.registry.register(_StateCollector(health, executor))

    def page(self) -> bytes:
        """Return the text page for Prometheus."""
        return generate_latest(self.registry)

    def _times(self, name: str, meaning: str) -> Histogram:
        return Histogram(f"code_judge_{name}_seconds", meaning, buckets=_SECONDS, registry=self.registry)


class _StateCollector(Collector):
    def __init__(self, health: Callable[[], Health], executor: Executor) -> None:
        self._health = health
        self._executor = executor

    def describe(self) -> Iterable[Metric]:
        return ()  # the executor has not started when this is registered

    def collect(self) -> Iterable[Metric]:
        health, load = self._health(), self._executor.load()
        labels = {"version": __version__, "tier": health.isolation, "memory_enforcement": health.memory_enforcement}
        yield InfoMetricFamily("code_judge_server", "The server, and how far it isolates programs", labels)
        canaries = GaugeMetricFamily("code_judge_canary_passed", "Whether a canary passed at start", labels=["canary"])
        for canary in health.canaries:
            canaries.add_metric([canary.name], canary.passed)
        yield canaries
        gauges = {
            "slots": (health.num_slots, "Programs that compute at once"),
            "running": (health.num_running, "Submissions that are being judged"),
            "asleep": (load.num_asleep, "Programs that run, but neither use a core nor wait for one"),
            "queue_length": (health.queue_length, "Submissions that wait for a slot"),
            "queue_capacity": (health.queue_capacity, "Submissions that may wait"),
            "estimated_wait_seconds": (health.estimated_wait_s, "Wait of a submission of a new client that came now"),
            "draining": (health.status == "draining", "Whether the server is stopping"),
        }
        for name, (value, meaning) in gauges.items():
            yield GaugeMetricFamily(f"code_judge_{name}", meaning, value)
        yield CounterMetricFamily(
            "code_judge_rebuilt_slots", "Slots that died and were replaced", load.num_rebuilt_slots
        )
