"""Selection, advantages and losses: pure functions."""
