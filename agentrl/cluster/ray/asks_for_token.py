"""Tests whether a Ray cluster asks for a token: `python -m agentrl.cluster.ray.asks_for_token HOST:PORT`.

A separate process, because Ray decides once per process whether to use a token, and logs a refusal as an error.
"""

import sys
from typing import Any, cast

from ray import _raylet
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray.exceptions import AuthenticationError, RpcError

ANSWERS, ASKS_FOR_TOKEN, NO_RAY = 0, 3, 4
"""Exit status."""


def main() -> int:
    """Send a request without a token; print the reason if no Ray answers."""
    try:
        address = canonicalize_bootstrap_address_or_die(sys.argv[1])
        cast(Any, _raylet).GcsClient(address=address).internal_kv_keys(b"")
    except AuthenticationError:
        return ASKS_FOR_TOKEN
    except (RpcError, ConnectionError, ValueError) as error:
        sys.stdout.write(str(error))
        return NO_RAY
    return ANSWERS


if __name__ == "__main__":
    sys.exit(main())
