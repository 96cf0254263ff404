"""The page /docs: how to use the server, made from the OpenAPI description; it loads nothing from other sites."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from dubito.serving.refusal import REFUSALS
from dubito.serving.request import Options
from dubito.serving.validation import RULE

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dubito.serving.limits import Limits
    from dubito.serving.model import ServedModel

__all__ = ["STYLE", "documentation"]

STYLE = """:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }
pre, code { font: 14px/1.5 ui-monospace, monospace }
pre { padding: .8rem; overflow-x: auto; border: 1px solid #8886; border-radius: 6px }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884 }
"""


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
<title>dubito: how to ask {escape(model.name)}</title>
<link rel="icon" href="/static/favicon.svg"><link rel="stylesheet" href="/docs.css"></head><body>
<h1>How to ask {escape(model.name)}</h1>
<p><a href="/">The page</a> · <a href="/openapi.json">OpenAPI description</a> · <a href="/metrics">metrics</a></p>
<pre>curl -F images=@photo.png -F samples=30 -F per_class=true {address}/predict</pre>
<p>or as JSON, with images in base64:</p>
<pre>curl -H 'Content-Type: application/json' -d '{{"images": ["iVBORw0..."], "samples": 30}}' {address}/predict</pre>
<p>A server with a key needs it in the header <code>X-API-Key</code>.</p>
<h2>End points</h2>{paths}
<h2>Options of /predict</h2>{options}
<h2>What the answer means</h2>
<p>Aleatoric uncertainty: the image itself is ambiguous. Epistemic uncertainty: the network has not seen enough images
like it. <code>percentile</code> says where both stand among the images that the training held out. {escape(RULE)}
Percentiles and conformal sets come from the run's validation record: predictions by 10 draws of weights. An answer
with fewer draws has less epistemic uncertainty (with T independent draws the share 1/T is missing), with one draw none.
Calibrated probabilities are p<sup>1/T</sup>, normalised, with the temperature T of the record; uncertainties, draws and
conformal sets are the same with them and without.</p>
<p>The same image with the same options always gets the same answer up to rounding, alone or together with other images
and requests. The methods <code>weights</code> and <code>local</code> draw: another <code>seed</code> gives other draws,
and so slightly different numbers. The methods <code>moments</code> and <code>mean</code> draw nothing, and
<code>samples</code> does not matter to them; <code>mean</code> knows no epistemic uncertainty. The noise of the option
<code>noise</code> follows the seed too.</p>
<h2>Limits</h2>
<p>{limits.max_images} images, {limits.max_samples:,} draws of each and {limits.max_draws:,} of all,
{limits.max_body_bytes:,} bytes and {limits.max_pixels:,} pixels in a request; PNG, JPEG, WebP, BMP or GIF, of which the
first frame counts.</p>
<h2>Errors</h2><p>An error is <code>{{"error": "one sentence"}}</code> with one of these:</p>{statuses}
</body></html>
"""


def _table(rows: Any) -> str:
    return "<table>" + "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows) + "</table>"
