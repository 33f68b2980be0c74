"""`python -m agentrl.tools init | check | call`, see `agentrl.runners.tools`."""

from agentrl.runners.tools import main

raise SystemExit(main())
