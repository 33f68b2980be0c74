"""Checks of model folders before anything loads them."""
