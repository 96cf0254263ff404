"""Serving: a trained run over HTTP, with the uncertainty of every answer.

    limits.py          what the server accepts at most
    refusal.py         answers that are errors: a status and one sentence
    request.py         from a request's body to images and options
    decoding.py        from untrusted bytes to images
    changes.py         noise and rotation, for the sliders of the page
    batching.py        concurrent requests share forward passes
    model.py           the network that answers
    validation.py      what is usual: the uncertainties of held-out images
    answer.py          from a prediction to JSON
    guard.py           what surrounds every request: hosts, the key, headers, counting
    traffic.py         what is in work, and how bodies are read
    measuring.py       what /metrics tells
    documentation.py   what /docs tells
    application.py     the end points
    server.py          the process: sockets, signals, shutdown

FastAPI and uvicorn are imported when used: `pip install 'dubito[serve]'`.
"""
