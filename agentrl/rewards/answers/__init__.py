"""Answers of a policy: finding, reading and comparing them."""
