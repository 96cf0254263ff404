"""The end points: /predict, /model, /health, /metrics, the page and the documentation."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from torch import Tensor

from dubito import __version__
from dubito.data import add_pixel_noise
from dubito.evaluation.thumbnails import data_uri
from dubito.memory import give_back_memory
from dubito.serving.answer import predictions
from dubito.serving.batching import Batcher, Job, Predicted
from dubito.serving.documentation import documentation
from dubito.serving.guard import Access, Guard
from dubito.serving.images import count_pixels, decode_images, rotate, to_bytes
from dubito.serving.limits import Limits
from dubito.serving.metrics import CONTENT_TYPE, Measures
from dubito.serving.model import DRAWING, ServedModel
from dubito.serving.refusal import REFUSALS, Refusal, RefusedError, busy
from dubito.serving.request import PredictionRequest, parse_request, request_schema
from dubito.serving.traffic import LARGE, Pixels, Traffic, Upload
from dubito.serving.validation import Usual, verdict_rule

PAGE = Path(__file__).parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""The page's files; others are not served."""
DECODERS = 2
"""Threads that decode images."""


class Service:
    """A model with what is needed to answer requests: its queue, counters and threads."""

    def __init__(self, model: ServedModel, usual: Usual | None = None, limits: Limits | None = None) -> None:
        self.model = model
        self.usual = usual
        self.limits = limits or Limits()
        self.traffic = Traffic(self.limits)
        self.measures = Measures()
        self.batcher = Batcher(model.predict, self.limits, lambda: self.traffic.arriving, self.measures.observe_batch)
        self.measures.watch(lambda: self.batcher.waiting, lambda: self.traffic.in_work)
        self._pixels = Pixels(self.limits.max_pixels)
        self._decoders = ThreadPoolExecutor(DECODERS, "dubito-decode")
        self._examples = usual.example_list(model.class_names) if usual else []

    def close(self, finish: bool = True) -> None:
        """End the threads, after they have answered what is in the queue; without `finish` that is given up."""
        self.batcher.close(finish)
        self._decoders.shutdown(cancel_futures=not finish)

    def rest(self) -> None:
        """Give back memory that a server which is not asked does not need."""
        self.model.predictors.forget()
        give_back_memory()

    def describe(self, api_key: bool, trusted: bool) -> dict[str, Any]:
        """What /model tells; the examples, which are images of the data, only those who are trusted."""
        names = ("max_images", "max_samples", "max_draws", "max_body_bytes", "max_pixels")
        return {
            **self.model.describe(),
            **{name: value for name, value in asdict(self.limits).items() if name in names},
            "api_key": api_key,
            "verdict_rule": verdict_rule(self.model.false_alarm),
            "validation": self.usual and self.usual.describe(self.model.false_alarm),
            "examples": self._examples if trusted else [],
        }

    async def answer(self, request: PredictionRequest, upload: Upload, deadline: float) -> dict[str, Any]:
        """The answer to a request; its upload is let go as soon as its images are decoded."""
        options, points = request.options, request.points
        method = self._method(request)
        drawn = method in DRAWING
        with self.traffic.prepare():
            images, previews = await self._decode(request, deadline)
            request.files.clear()
            upload.let_go()
            samples, seed = (options.samples or self.model.samples, options.seed or 0) if drawn else (1, 0)
            job = Job(images, method, samples, deadline, seed, options.draws)
            self._check_work(job)
            future = asyncio.wrap_future(self.batcher.submit(job))
        try:
            predicted: Predicted = await asyncio.wait_for(future, deadline - time.monotonic())
        except asyncio.TimeoutError:
            raise busy("The server is busy and had no answer in time; try again later.") from None
        answers = predictions(self.model, self.usual, options, predicted)
        for answer, (noise, rotation) in zip(answers, points, strict=True):
            answer |= {} if noise is None else {"noise": noise}
            answer |= {} if rotation is None else {"rotation": rotation}
        for answer, preview in zip(answers, previews, strict=False):
            answer["preview"] = preview
        whole = {
            "model": self.model.name,
            "method": method,
            "samples": predicted.prediction.samples if drawn else None,
            "predictions": answers,
        }
        warning = self.model.warning(method, predicted.prediction.samples)
        return {**whole, "warning": warning} if warning else whole

    def _method(self, request: PredictionRequest) -> str:
        options = request.options
        method = self.model.choose(options.method, options.draws or options.samples is not None)
        if method not in self.model.methods:
            raise RefusedError(422, f"method is {method!r}, but this model has only {', '.join(self.model.methods)}.")
        if self.usual is None and (options.calibrated or options.conformal is not None):
            name = "calibrated" if options.calibrated else "conformal"
            raise RefusedError(
                422, f"{name} needs the model's validation record, and this server has none; leave the option out."
            )
        return method

    def _check_work(self, job: Job) -> None:
        draws = len(job.images) * job.samples
        if draws > self.limits.max_draws:
            raise RefusedError(
                422,
                f"{len(job.images)} images with {job.samples} draws each are {draws:,} draws, but a request may have "
                f"at most {self.limits.max_draws:,}; ask for fewer.",
            )

    async def _decode(self, request: PredictionRequest, deadline: float) -> tuple[Tensor, list[str]]:
        """What `_prepare` gives, once its pixels have their turn."""
        loop = asyncio.get_running_loop()
        pixels = await loop.run_in_executor(self._decoders, count_pixels, request.files, self.limits.max_pixels)
        try:
            await asyncio.wait_for(self._pixels.take(pixels), deadline - time.monotonic())
        except asyncio.TimeoutError:
            raise busy("The server is busy with many large images; try again later.") from None
        self.traffic.grown |= pixels > LARGE
        try:
            return await loop.run_in_executor(self._decoders, self._prepare, request)
        finally:
            self._pixels.give(pixels)

    def _prepare(self, request: PredictionRequest) -> tuple[Tensor, list[str]]:
        """The images as the network takes them, and what they look like if that was asked for."""
        decoded = decode_images(request.files, self.model.data)
        sources = decoded * len(request.points) if len(decoded) == 1 else decoded
        seed = request.options.seed or 0
        changed = [
            add_pixel_noise(rotate(image, rotation or 0), noise or 0, torch.Generator().manual_seed(seed))
            for image, (noise, rotation) in zip(sources, request.points, strict=True)
        ]
        previews = [data_uri(to_bytes(image)) for image in changed] if request.options.preview else []
        return self.model.prepare(torch.stack(changed)), previews


def application(service: Service, access: Access | None = None) -> Guard:
    """The ASGI application that serves a model."""
    access = access or Access()
    app = FastAPI(
        title=f"dubito: {service.model.name}",
        version=__version__,
        description="Predictions with aleatoric and epistemic uncertainty.",
        docs_url=None,
        redoc_url=None,
    )
    _add_model(app, service, access)
    _add_page(app, service)
    _add_failures(app)
    paths = {"/", "/predict", "/model", "/health", "/metrics", "/docs", "/openapi.json"}
    return Guard(app, access, service.limits, service.traffic, service.measures, paths)


def _add_model(app: FastAPI, service: Service, access: Access) -> None:
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"description": meaning, "model": Refusal} for status, meaning in REFUSALS.items()
    }

    @app.post("/predict", response_model=None, responses=refusals, openapi_extra={"requestBody": request_schema()})
    async def predict(request: Request) -> Response:
        """Predict the class of images, with the uncertainty of every answer."""
        if request.query_params:
            name = next(iter(request.query_params))[:30]
            raise RefusedError(400, f"The address has ?{name}=..., but options go into the body, beside the images.")
        client = request.client.host if request.client else ""
        service.traffic.require_room(client)  # now, because reading and decoding would be in vain
        service.batcher.require_room()
        with Upload(service.traffic, service.limits) as upload:
            body = await upload.read(request.stream(), request.headers.get("content-length"))
            with service.traffic.admit(client):
                deadline = time.monotonic() + service.limits.request_timeout
                parsed = await parse_request(body, request.headers, service.limits)
                del body
                return JSONResponse(await service.answer(parsed, upload, deadline))

    @app.get("/model", response_model=None)
    async def model(request: Request) -> Response:
        """What the model is, what it accepts, and how uncertain it usually is."""
        trusted = access.knows(dict(request.scope["headers"]))
        return JSONResponse(service.describe(access.api_key is not None, trusted))

    @app.get("/health", response_model=None)
    async def health() -> Response:
        """Whether the server takes requests, and how many images wait."""
        stopping = service.traffic.stopping
        content = {"status": "stopping" if stopping else "ok", "queue": service.batcher.waiting}
        return JSONResponse(content, 503 if stopping else 200, {"Retry-After": "1"} if stopping else None)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return PlainTextResponse(service.measures.text(), media_type=CONTENT_TYPE)


def _add_page(app: FastAPI, service: Service) -> None:
    # Names are looked up here and never joined to a path: nothing else can be read.
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in KINDS}
    fresh = {"Cache-Control": "no-cache"}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return await static("index.html")

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return FileResponse(files[name], media_type=KINDS[files[name].suffix], headers=fresh)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return await static("favicon.svg")

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return HTMLResponse(documentation(app, service.model, service.limits, str(request.base_url)), headers=fresh)

    @app.get("/docs.css", include_in_schema=False)
    async def style() -> Response:
        return await static("docs.css")


def _add_failures(app: FastAPI) -> None:
    def failed(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
        return JSONResponse({"error": sentence}, status, headers)

    @app.exception_handler(RefusedError)
    async def refused(request: Request, error: RefusedError) -> Response:
        return failed(error.status, str(error), error.headers)

    @app.exception_handler(ClientDisconnect)
    async def disconnected(request: Request, error: ClientDisconnect) -> Response:
        return failed(400, "The connection ended before the request's body had arrived.")

    @app.exception_handler(HTTPException)
    async def impossible(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        place = request.url.path[:100]
        if error.status_code == HTTPStatus.NOT_FOUND:
            return failed(404, f"There is no {place} here; see /docs.", headers)
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            return failed(405, f"{place} does not accept {request.method[:20]}; see /docs.", headers)
        return failed(error.status_code, f"{str(error.detail).rstrip('.')}.", headers)
