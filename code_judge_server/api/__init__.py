"""The judge over HTTP: the native endpoints, and what guards every endpoint against clients.

`native_api` has the endpoints under `/v1`, `verdict_replies` how a batch is answered, `http_guards` and `body_limit` who and
how much is let in, `http_errors` how a refusal reads.
"""
