"""From a request's body to images and options: multipart/form-data, or JSON with images in base64."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from dubito.serving.images import decode_base64
from dubito.serving.limits import Limits
from dubito.serving.refusal import RefusedError

if TYPE_CHECKING:
    from starlette.datastructures import Headers

_MANY = ("noise", "rotation")
_SHOWN = 60
"""Characters of a wrong value that are repeated in a sentence."""
_VALUES = 100_000
"""Values of a JSON body; images are one each."""


def _numbers(value: Any) -> Any:
    """One number or several: 0.1, [0, 0.1], and in a form also "0,0.1" or "[0, 0.1]"."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.strip().removeprefix("[").removesuffix("]").split(",")
    if isinstance(value, list):
        return [part for item in value for part in (_numbers(item) if isinstance(item, str) else [item])]
    return [value]


def _no_truth(value: Any) -> Any:
    """Refuse true and false, which Python would take for 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "Input should be a number")
    return value


_Number = BeforeValidator(_no_truth)
_Gamma = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False), _Number]
_Degrees = Annotated[float, Field(ge=-360, le=360, allow_inf_nan=False), _Number]
_Several = BeforeValidator(_numbers)


class Options(BaseModel):
    """What a request may ask for besides its images."""

    model_config = ConfigDict(extra="forbid")

    samples: Annotated[
        int | None,
        Field(ge=1, description="Draws of the weights; only for the methods weights and local."),
        _Number,
    ] = None
    method: Annotated[
        Literal["auto", "weights", "local", "moments", "mean"],
        Field(
            description="weights (draws of the weights), local (draws of activations), moments (means and variances, "
            "no draws) or mean (mean weights only). auto is the default of the server, see /model."
        ),
    ] = "auto"
    per_class: Annotated[bool, Field(description="Also give both uncertainties of each class.")] = False
    calibrated: Annotated[
        bool,
        Field(
            description="Calibrate probabilities, confidence and entropy, and add a conformal set with the coverage "
            "in /model."
        ),
    ] = False
    conformal: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="Also give a set of classes that contains the true one this often, such as 0.9. An empty set "
            "means that no class fits.",
        ),
        _Number,
    ] = None
    draws: Annotated[bool, Field(description="Also give the probabilities of each draw, at most 100.")] = False
    noise: Annotated[
        list[_Gamma] | None,
        _Several,
        Field(
            description="Standard deviation of noise added to the pixels (0 to 1). Several numbers give a curve for "
            "one image."
        ),
    ] = None
    rotation: Annotated[
        list[_Degrees] | None,
        _Several,
        Field(description="Rotation in degrees, counter-clockwise. Several numbers give a curve for one image."),
    ] = None
    seed: Annotated[
        int | None,
        Field(ge=0, lt=2**62, description="Random seed of the draws and the noise; 0 by default."),
        _Number,
    ] = None
    preview: Annotated[bool, Field(description="Also give the image as the network sees it.")] = False


@dataclass(frozen=True)
class PredictionRequest:
    """The files of a request, undecoded, and its options."""

    files: list[bytes]
    options: Options

    @cached_property
    def points(self) -> list[tuple[float | None, float | None]]:
        """Noise and rotation of each prediction: one image may have several, several have one each."""
        given: list[list[Any]] = [self.options.noise or [None], self.options.rotation or [None]]
        count = max(len(values) for values in given)
        noise, rotation = (values * count if len(values) == 1 else values for values in given)
        points = list(zip(noise, rotation, strict=True))
        return points if len(self.files) == 1 else points * len(self.files)


async def parse_request(body: bytes, headers: Headers, limits: Limits) -> PredictionRequest:
    """Read a request from its body, or refuse it with a sentence that says what is wrong."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        files, fields = _from_json(body, limits)
    elif kind == "multipart/form-data":
        files, fields = await _from_form(body, headers, limits)
    else:
        given = f"The content type is {kind[:_SHOWN]!r}" if kind else "There is no content type"
        raise RefusedError(415, f"{given}, but must be multipart/form-data or application/json.")
    if not files:
        raise RefusedError(400, "The request has no images: send at least one as 'images'.")
    try:
        options = Options.model_validate(fields)
    except ValidationError as error:
        raise RefusedError(422, _sentence(error)) from None
    request = PredictionRequest(files, options)
    _check(request, limits)
    return request


def request_schema() -> dict[str, Any]:
    """The schema of the request body, for the OpenAPI description."""
    options = Options.model_json_schema()
    kinds = {
        "multipart/form-data": {"type": "string", "format": "binary"},
        "application/json": {"type": "string", "description": "base64 or a data: URL"},
    }
    content = {}
    for kind, file in kinds.items():
        images = {"images": {"type": "array", "items": file, "minItems": 1}}
        content[kind] = {
            "schema": {"type": "object", "required": ["images"], "properties": images | options["properties"]}
        }
    return {"required": True, "content": content}


def _from_json(body: bytes, limits: Limits) -> tuple[list[bytes], dict[str, Any]]:
    if sum(body.count(sign) for sign in b"[{,") > _VALUES:  # each takes far more memory than its character
        raise RefusedError(413, f"The body is JSON with more than {_VALUES:,} values; send fewer.")
    try:
        content = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except RefusedError:
        raise
    except (ValueError, RecursionError) as error:
        reason = f" ({error.msg} at character {error.pos})" if isinstance(error, json.JSONDecodeError) else ""
        raise RefusedError(400, f"The body is not valid JSON{reason}.") from None
    if not isinstance(content, dict):
        raise RefusedError(400, 'The body must be a JSON object, such as {"images": ["..."]}.')
    images = content.pop("images", [])
    images = [images] if isinstance(images, str) else images
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise RefusedError(400, "images must be a list of strings: each an image file in base64, or a data: URL.")
    _check_count(len(images), limits)
    return [decode_base64(text, number, len(images)) for number, text in enumerate(images, start=1)], content


def _refuse_constant(name: str) -> float:
    raise RefusedError(400, f"The body is not valid JSON ({name} is no JSON number).")


async def _from_form(body: bytes, headers: Headers, limits: Limits) -> tuple[list[bytes], dict[str, Any]]:
    from starlette.datastructures import UploadFile
    from starlette.formparsers import MultiPartException, MultiPartParser

    async def stream() -> AsyncIterator[bytes]:
        yield body

    parser = MultiPartParser(
        headers,
        stream(),  # type: ignore[arg-type]
        max_files=limits.max_images + 1,
        max_fields=len(Options.model_fields) * (limits.max_images + 1),
        max_part_size=limits.max_body_bytes,
    )
    parser.spool_max_size = limits.max_body_bytes + 1  # the body is in memory already, a file would gain nothing
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            _check_count(limits.max_images + 1, limits)
        raise RefusedError(400, f"The body is not valid multipart/form-data: {error.message.rstrip('.')}.") from None
    except Exception:  # the parser raises nearly anything on bytes that lie about themselves
        raise RefusedError(400, "The body is not valid multipart/form-data.") from None
    files: list[bytes] = []
    fields: dict[str, Any] = {}
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name not in ("images", "images[]"):
                    raise RefusedError(400, f"The form has a file named {name[:_SHOWN]!r}, but files must be 'images'.")
                files.append(await value.read())
            elif name in ("images", "images[]"):
                raise RefusedError(400, "images is a field without a file name, but must be sent as files.")
            elif name in _MANY:
                fields.setdefault(name, []).append(value)
            elif name in fields:
                raise RefusedError(422, f"The field {name[:_SHOWN]!r} is given twice.")
            else:
                fields[name] = value
    finally:
        await form.close()
    _check_count(len(files), limits)
    return files, fields


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong, in one sentence."""
    first = error.errors(include_url=False, include_context=False)[0]
    name = str(first["loc"][0])[:_SHOWN] if first["loc"] else "the body"
    if first["type"] == "extra_forbidden":
        return f"There is no option {name!r}; there are {', '.join(Options.model_fields)}."
    given = repr(first["input"])
    given = given if len(given) <= _SHOWN else given[:_SHOWN] + "..."
    expected = first["msg"].removeprefix("Input ").rstrip(".").replace("should", "must", 1)
    expected = expected if expected.startswith("must") else f"is wrong: {expected}"
    return f"{name} is {given}, but {expected}."


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.max_images:
        raise RefusedError(
            413, f"The request has more than {limits.max_images} images; split it into several requests."
        )


def _check(request: PredictionRequest, limits: Limits) -> None:
    """Refuse options that do not fit each other, the images or the limits."""
    options = request.options
    lengths = {name: len(getattr(options, name) or [0]) for name in _MANY}
    points = max(lengths.values())
    if [] in (options.noise, options.rotation):
        raise RefusedError(422, "noise or rotation is an empty list, but must hold at least one number.")
    if points > 1:
        if len(request.files) > 1:
            raise RefusedError(
                422, f"Several levels of noise or rotation need exactly one image, not {len(request.files)}."
            )
        if points > limits.max_images:
            raise RefusedError(
                413, f"noise or rotation has {points} numbers, but at most {limits.max_images} are allowed."
            )
        if min(lengths.values()) not in (1, points):
            raise RefusedError(
                422,
                f"noise has {lengths['noise']} numbers and rotation {lengths['rotation']}, but both must have as many, "
                "or one of them one.",
            )
    if options.samples is not None and options.samples > limits.max_samples:
        raise RefusedError(422, f"samples is {options.samples}, but must be at most {limits.max_samples}.")
    if options.draws and options.method in ("moments", "mean"):
        raise RefusedError(
            422,
            f"method is {options.method!r}, which makes no draws: use the method weights or local.",
        )
