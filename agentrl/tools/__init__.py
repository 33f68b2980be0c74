"""Tools of the policy: the `Tool` protocol, YAML loading, execution."""
