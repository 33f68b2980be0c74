"""Data files: prompts and demonstrations."""
