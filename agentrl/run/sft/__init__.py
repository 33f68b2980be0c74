"""A warm start from demonstrations: its data, its check and its run."""
