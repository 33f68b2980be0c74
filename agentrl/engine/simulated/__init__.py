"""An engine without a model, for simulated runs."""
