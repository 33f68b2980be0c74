"""One update of the policy: credit, objective, optimiser."""
