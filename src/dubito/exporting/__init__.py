"""A trained network as one file that needs no dubito: bytes of images in, probabilities and uncertainties out.

- ``draws``: the drawn networks of ``dubito.Predictor(network, samples, seed=0)``, so that the file gives the same
  numbers as the predictor, every time;
- ``moments``: one pass of means and variances, see :mod:`dubito.prediction.moments`;
- ``mean``: the network of the posterior means, which has no epistemic uncertainty.

The graph normalises the images itself. The file also holds the class names and how to read an image.
"""

from dubito.exporting.description import FITTED, Description, What
from dubito.exporting.formats import Format, export, export_bytes
from dubito.exporting.graph import OUTPUTS
from dubito.exporting.onnx_model import OnnxModel

__all__ = ["FITTED", "OUTPUTS", "Description", "Format", "OnnxModel", "What", "export", "export_bytes"]
