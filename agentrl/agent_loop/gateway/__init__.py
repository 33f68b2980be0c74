"""The gateway: agents written elsewhere call the policy over HTTP, and every call is recorded token for token."""
