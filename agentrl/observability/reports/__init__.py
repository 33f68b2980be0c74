"""Reports for a person: failures, rewards, tools, and the outcome of a run."""
