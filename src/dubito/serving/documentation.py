"""The page /docs: how to use the server, made from the OpenAPI description; it loads nothing from other sites."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from dubito.serving.refusal import REFUSALS
from dubito.serving.request import Options
from dubito.serving.validation import verdict_rule

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dubito.serving.limits import Limits
    from dubito.serving.model import ServedModel


def documentation(app: FastAPI, model: ServedModel, limits: Limits, address: str) -> str:
    """The page as HTML; `address` is where the server was found."""
    address = escape(address.rstrip("/"))
    paths = _table(
        (f"<code>{method.upper()} {escape(path)}</code>", escape(description.get("description", "")))
        for path, methods in app.openapi()["paths"].items()
        for method, description in methods.items()
    )
    options = _table(
        (f"<code>{escape(name)}</code>", escape(str(field.description))) for name, field in Options.model_fields.items()
    )
    statuses = _table((f"<code>{status}</code>", escape(meaning)) for status, meaning in REFUSALS.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>dubito: the API of {escape(model.name)}</title>
<link rel="icon" href="/static/favicon.svg"><link rel="stylesheet" href="/docs.css">
<script type="module" src="/static/docs.js"></script></head><body>
<h1>The API of {escape(model.name)}</h1>
<p><a href="/">The page</a> · <a href="/openapi.json">OpenAPI description</a> · <a href="/metrics">metrics</a></p>
<p>Send images as a form:</p>
<pre>curl -F images=@photo.png -F samples=30 -F per_class=true {address}/predict</pre>
<p>or as JSON, with the images in base64:</p>
<pre>curl -H 'Content-Type: application/json' -d '{{"images": ["iVBORw0..."], "samples": 30}}' {address}/predict</pre>
<p>If the server has a key, send it in the header <code>X-API-Key</code>.</p>
<h2 id="try-title">Try it</h2>
{_form(model, limits)}
<h2>Addresses</h2>{paths}
<h2>Options of /predict</h2>{options}
<h2>What the answer means</h2>
<p>Aleatoric uncertainty: the image itself is ambiguous. Epistemic uncertainty: the network has not seen enough images
like it. <code>percentile</code> compares both with the validation images: 0.9 means larger than for 90 % of them.
{escape(verdict_rule(model.false_alarm))}</p>
<p>Percentiles and conformal sets come from the run's validation record: predictions by 10 draws of the weights. With
fewer draws the epistemic uncertainty is smaller (of T independent draws, the share 1/T is missing); with one draw it is
0. Calibrated probabilities are p<sup>1/T</sup>, normalised, where T is the temperature in the record; they do not
change uncertainties, draws or conformal sets.</p>
<p>With a decision rule, each prediction has <code>decision</code> and <code>reason</code>. If a request asks for fewer
draws than the rule was fitted to, <code>warning</code> says what that means.</p>
<p>The same image with the same options always gets the same answer up to rounding, alone or together with other images
and requests. The methods <code>weights</code> and <code>local</code> use random draws: another <code>seed</code> gives
slightly different numbers. The methods <code>moments</code> and <code>mean</code> use none, so <code>samples</code> has
no effect; <code>mean</code> has no epistemic uncertainty. The option <code>noise</code> uses the seed too.</p>
<h2>Limits</h2>
<p>A request may have {limits.max_images} images, {limits.max_samples:,} draws for each image and {limits.max_draws:,}
in total, {limits.max_body_bytes:,} bytes and {limits.max_pixels:,} pixels. Images are PNG, JPEG, WebP, BMP or GIF (its
first frame).</p>
<h2>Errors</h2>
<p>An error is answered with <code>{{"error": "one sentence"}}</code> and one of these codes:</p>{statuses}
</body></html>
"""


def _form(model: ServedModel, limits: Limits) -> str:
    """A form that sends images to /predict from this page."""
    methods = "".join(f"<option>{escape(method)}</option>" for method in ("", *model.methods))
    return f"""<form id="try" aria-labelledby="try-title"><fieldset>
<label>Images <input type="file" name="images" accept="image/*" multiple required></label>
<label>samples <input data-option type="number" name="samples" min="1" max="{limits.max_samples}"
  placeholder="{model.samples}"></label>
<label>method <select data-option name="method">{methods}</select></label>
<label>seed <input data-option type="number" name="seed" min="0" placeholder="0"></label>
<label><input data-option type="checkbox" name="per_class"> per_class</label>
<label><input data-option type="checkbox" name="calibrated"> calibrated</label>
<label>Key <input type="password" name="key" autocomplete="off" placeholder="if the server has one"></label>
<button type="submit">Send</button></fieldset>
<pre id="command"></pre><pre id="answer" aria-live="polite" hidden></pre></form>"""


def _table(rows: Any) -> str:
    return "<table>" + "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows) + "</table>"
