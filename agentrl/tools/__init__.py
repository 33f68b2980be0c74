"""What the policy can call: the `Tool` protocol, YAML loading, execution."""
