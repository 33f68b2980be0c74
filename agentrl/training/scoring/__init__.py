"""Log-probabilities, entropies and scores of tokens."""
