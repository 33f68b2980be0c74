"""The executor protocol, and what every executor needs."""
