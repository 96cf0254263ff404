"""`dubito serve`: a run over HTTP, with a page to try it on."""

from __future__ import annotations

from typing import Annotated

from dubito.cli.failure import Debug, Trust
from dubito.cli.options import AnyNetwork, Checkpoint, Device, choose_device, option, setting
from dubito.cli.terminal import examples
from dubito.errors import OptionError

EXAMPLES = examples(
    "dubito serve runs/first",
    "dubito serve zoo:lenet5-mnist",
    "dubito serve runs/mnist --port 8080 --samples 30",
    "DUBITO_API_KEY=... dubito serve runs/mnist --host 0.0.0.0",
    "curl -F images=@photo.png http://127.0.0.1:8000/predict",
    note="Open /docs of the running server for the API. The same image always gets the same answer, "
    "unless a request sets another seed. Ctrl-C or SIGTERM stops the server after it has "
    "answered the requests it accepted.",
)


def serve(
    run: AnyNetwork,
    host: Annotated[
        str,
        setting("ADDRESS", "Address to listen on. 0.0.0.0 makes the server reachable from other machines."),
    ] = "127.0.0.1",
    port: Annotated[int, setting("N", "Port to listen on; 0 for any free one.", min=0, max=65535)] = 8000,
    samples: Annotated[int, setting("N", "Draws of the weights, unless a request sets them.", min=1)] = 10,
    method: Annotated[
        str, setting("NAME", "How to predict: weights, local, moments or mean; auto is weights.")
    ] = "auto",
    api_key: Annotated[
        str | None,
        setting(
            "KEY",
            "Key that requests must send in the header X-API-Key. Set it in the environment: other users "
            "of this machine can see the command line.",
            envvar="DUBITO_API_KEY",
            show_default=False,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Further host name that requests may use, for example of a proxy. A server on 127.0.0.1 otherwise "
            "answers only 127.0.0.1 and localhost.",
        ),
    ] = None,
    max_images: Annotated[int, setting("N", "Limit: images in a request.", min=1)] = 64,
    max_samples: Annotated[int, setting("N", "Limit: draws in a request.", min=1)] = 1000,
    max_body: Annotated[float, setting("MB", "Limit: size of a request.")] = 16,
    max_pixels: Annotated[
        float, setting("MILLIONS", "Limit: pixels in a request, and pixels decoded at the same time.")
    ] = 25,
    max_uploads: Annotated[float, setting("MB", "Limit: size of all requests in memory.")] = 128,
    max_kept: Annotated[
        float,
        setting("MB", "Limit: memory for the weights of requests with other draws, seeds or methods."),
    ] = 256,
    max_batch: Annotated[int, setting("N", "Limit: images in one forward pass.", min=1)] = 64,
    max_wait: Annotated[float, setting("MS", "How long a batch waits for requests that are just arriving.", min=0)] = 5,
    max_queue: Annotated[int, setting("N", "Limit: images in the queue; more are refused with 503.", min=1)] = 256,
    max_requests: Annotated[int, setting("N", "Limit: requests handled at the same time.", min=1)] = 256,
    max_connections: Annotated[int, setting("N", "Limit: open connections.", min=1)] = 512,
    client_share: Annotated[
        float,
        setting("SHARE", "Limit: share of requests and connections for one address. Use 1 behind a proxy."),
    ] = 0.5,
    body_timeout: Annotated[float, setting("SECONDS", "Time limit for a request to arrive.")] = 15,
    idle_timeout: Annotated[float, setting("SECONDS", "Time limit between requests of a connection.")] = 15,
    timeout: Annotated[float, setting("SECONDS", "Time limit to answer a request.")] = 60,
    write_timeout: Annotated[float, setting("SECONDS", "Time limit for a client to receive an answer.")] = 20,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Serve predictions over HTTP, with a page to try them."""
    from dubito.serving.limits import Limits
    from dubito.serving.running import serve as run_server

    limits = Limits(
        max_images=max_images,
        max_samples=max(samples, max_samples),
        max_body_bytes=_millions("--max-body", max_body),
        max_pixels=_millions("--max-pixels", max_pixels),
        max_upload_bytes=_millions("--max-uploads", max_uploads),
        max_kept_bytes=_millions("--max-kept", max_kept),
        max_batch=max_batch,
        max_wait=max_wait / 1000,
        max_queue=max_queue,
        max_requests=max_requests,
        max_connections=max_connections,
        client_share=client_share,
        body_timeout=body_timeout,
        idle_timeout=idle_timeout,
        request_timeout=timeout,
        write_timeout=write_timeout,
    )
    run_server(
        run,
        host=host,
        port=port,
        samples=samples,
        method=method,
        api_key=api_key,
        allow_hosts=allow_host or [],
        limits=limits,
        checkpoint=checkpoint,
        device=choose_device(device),
    )


def _millions(name: str, value: float) -> int:
    if not 0 < value < 1e6:
        raise OptionError(f"{name} is {value:g}, but must be positive.")
    return max(1, round(value * 1e6))
