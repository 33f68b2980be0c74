"""An HTTP endpoint with the latest metrics of a run, for Prometheus.

`rollout/reward_mean` is the gauge `agentrl_rollout_reward_mean`. A metric that a step does not have keeps its last value, so
that the accuracy is there between validations.
"""

import logging
import re
import socket
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentrl.config.schema.observability import ObservabilitySection
from agentrl.errors import ConfigError

logger = logging.getLogger(__name__)

_ODD = re.compile(r"\W", re.ASCII)


def exported_name(metric: str) -> str:
    """Return the name under which Prometheus gets a metric.

    >>> exported_name("rollout/reward_mean")
    'agentrl_rollout_reward_mean'
    """
    return f"agentrl_{_ODD.sub('_', metric)}"


class MetricsEndpoint(Collector):
    """Gauges of the latest values, served by a thread of their own."""

    def __init__(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            OSError: the port is taken, or the host is not this machine's.
        """
        self._gauges: dict[str, tuple[str, float]] = {}
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(self)
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.port = self._server.server_port
        """The port that it listens on."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Serve these values from now on."""
        values = {"step": float(step), **metrics}
        self._gauges = self._gauges | {exported_name(name): (name, value) for name, value in values.items()}

    def collect(self) -> Iterable[Metric]:
        """Yield a gauge for each metric."""
        for exported, (name, value) in self._gauges.items():
            yield GaugeMetricFamily(exported, f"`{name}` of metrics.jsonl", value=value)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def check_port(section: ObservabilitySection) -> None:
    """Check that the endpoint could listen.

    Raises:
        ConfigError: why it cannot.
    """
    host, port = section.prometheus_host, section.prometheus_port
    if not port:
        return
    try:
        family = socket.getaddrinfo(host, port)[0][0]
        with socket.create_server((host, port), family=family):
            pass
    except OSError as error:
        raise ConfigError(
            f"observability.prometheus_port: nothing can listen on {host}:{port}: {error.strerror}. Name another port, "
            "or 0 for a free one."
        ) from error


def serve_metrics(section: ObservabilitySection) -> MetricsEndpoint | None:
    """Start the endpoint that the section asks for; if it cannot listen, warn, and go on without."""
    host, port = section.prometheus_host, section.prometheus_port
    if port is None:
        return None
    try:
        endpoint = MetricsEndpoint(host, port)
    except OSError as error:
        logger.warning("metrics for Prometheus: %s:%d cannot be used: %s; the run goes on", host, port, error)
        return None
    logger.info("metrics for Prometheus: http://%s:%d/metrics", host, endpoint.port)
    return endpoint
