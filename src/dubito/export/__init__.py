"""A trained network as one file that needs no dubito: bytes of images in, probabilities and uncertainties out.

- ``moments``: one deterministic pass of means and variances, see :mod:`dubito.prediction.moments`;
- ``draws``: draws of the weights, or of dropout's masks, inside the graph, for runtimes with a random operator;
- ``mean``: the network of the posterior means, which knows no epistemic uncertainty.

The graph normalises the images itself. Class names and how to read an image travel in the file.
"""

from dubito.export.description import Description, What
from dubito.export.formats import Format, export
from dubito.export.graph import OUTPUTS
from dubito.export.onnx_model import OnnxModel

__all__ = ["OUTPUTS", "Description", "Format", "OnnxModel", "What", "export"]
