"""Hugging Face folders: weights, names, tokenizers, and what their attention supports."""
