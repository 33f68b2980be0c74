"""The judge over HTTP: the native endpoints, and the guards of every endpoint.

`native_api` has the endpoints under `/v1`, `verdict_replies` writes their replies, `http_guards` and `body_limit` bound
requests, `http_errors` writes refusals.
"""
