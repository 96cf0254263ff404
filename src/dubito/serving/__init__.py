"""Serving: a trained run over HTTP, with the uncertainty of every answer.

    limits.py          the largest requests that the server accepts
    refusal.py         answers that are errors: a status and one sentence
    request.py         from a request's body to images and options
    images.py          from untrusted bytes to images; rotation, for a slider of the page
    batching.py        concurrent requests share forward passes
    model.py           the network that answers
    validation.py      how uncertain the network usually is: predictions of held-out images
    answer.py          from a prediction to JSON
    guard.py           checks around every request: hosts, the key, headers, counting
    traffic.py         counts what is in work, what uploads take, and what is open, and makes room
    metrics.py         the metrics of /metrics
    documentation.py   the page /docs
    application.py     the end points
    server.py          the process: sockets, signals, shutdown
    running.py         from a network or a run to a running server

FastAPI and uvicorn are imported when used: `pip install 'dubito[serve]'`.
"""
