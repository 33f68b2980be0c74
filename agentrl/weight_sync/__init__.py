"""How new weights reach the engines."""
