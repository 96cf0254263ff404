"""From a network or a run to a running server: `dubito serve` and `dubito.serve` are this function."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from dubito.errors import DubitoError, OptionError, missing
from dubito.harmless import say
from dubito.memory import use_one_heap
from dubito.runs.run import Run
from dubito.saving.loading import is_saved, load
from dubito.serving.limits import Limits


def serve(
    model: nn.Module | Run | str | os.PathLike[str],
    *,
    validation: Iterable[tuple[Tensor, Tensor]] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    samples: int = 10,
    method: str = "auto",
    api_key: str | None = None,
    allow_hosts: Sequence[str] = (),
    limits: Limits | None = None,
    checkpoint: str = "best",
    device: str | torch.device = "cpu",
) -> None:
    """Serve predictions over HTTP, with a page to try them, until Ctrl-C or SIGTERM.

    Args:
        model: any network with a description of its images (:func:`dubito.attach_data`), or a run or its folder.
        validation: for a network: pairs of inputs, as it takes them, and labels of images that its training has not
            seen. Answers are compared with them, and the page has examples of them.
        host: where to listen; 0.0.0.0 is everywhere.
        port: 0 for any that is free.
        samples: draws, unless a request says otherwise.
        method: ``weights``, ``local``, ``moments`` or ``mean``; ``auto`` is ``weights``.
        api_key: the key that requests must send in the header X-API-Key.
        allow_hosts: other host names that requests may use, for a proxy.
        limits: the largest requests that are accepted.
        checkpoint: of a run: ``best`` or ``last``.
        device: where the network computes.
    """
    if api_key is not None and not (api_key and api_key.isascii() and api_key.isprintable()):
        raise OptionError("--api-key must be printable ASCII characters, and at least one.")
    _require_packages()
    from dubito.serving.application import Service
    from dubito.serving.guard import Access
    from dubito.serving.model import ServedModel
    from dubito.serving.server import bind, hosts_of, is_loopback, serve_until_signal
    from dubito.serving.validation import Usual, find_usual

    use_one_heap()
    limits = limits or Limits()
    opened: Run | nn.Module
    fitted: Path | None = None
    if isinstance(model, (str, os.PathLike)) and is_saved(Path(model)):
        opened, fitted = load(model), Path(model)
    else:
        opened = Run.open(model) if isinstance(model, (str, os.PathLike)) else model
    with bind(host, port) as listening:  # now, so that a port in use is told before anything is computed
        # Softplus outputs underflow to denormals, which cost a CPU several times an ordinary number.
        torch.set_flush_denormal(True)
        served = ServedModel(opened, samples, method, checkpoint, device, fitted, limits.max_kept_bytes)
        usual: Usual | None
        try:
            usual = find_usual(served, validation, progress=True)
        except DubitoError as error:
            say(f"Answers are not compared with validation images, and the page has no samples: {error}", err=True)
            usual = None
        if few := served.warning(served.method, served.predictors(served.method, samples).samples):
            say(f"Warning: {few}", err=True)
        if not is_loopback(listening) and api_key is None:
            say(
                f"Warning: {host} can be reached from other machines and no key is set, so anyone there can use this "
                "server; set DUBITO_API_KEY, or leave --host at 127.0.0.1.",
                err=True,
            )

        def started() -> None:
            place = f"[{host}]" if ":" in host else host
            say(f"Serving {served.title} at http://{place}:{listening.getsockname()[1]}")
            say("Ctrl-C stops.")

        access = Access(hosts_of(listening, host, list(allow_hosts)), api_key)
        service = Service(served, usual, limits)
        left = serve_until_signal(service, access, listening, started)
    if left:
        raise DubitoError(f"Stopped before {left} request{'s were' if left > 1 else ' was'} answered.")
    unread = service.traffic.given_up
    exception = f", but {unread} of their clients did not read the answer in time" if unread else ""
    say(f"Stopped; all accepted requests have been answered{exception}.")


def _require_packages() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing("Serving", error.name, "serve") from None
