"""Fixtures of the gateway's tests."""

import pytest

from tests.agent_loop.gateway.gateway_stage import GatewayStage


@pytest.fixture(scope="module")
def stage() -> GatewayStage:
    """A gateway with a template of Qwen."""
    return GatewayStage()
