"""Clients of equal servers, judges or OpenAI servers: requests, failures, and the choice of a server."""
