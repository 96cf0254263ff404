"""Residual networks (He et al. 2016; Zagoruyko & Komodakis 2016) as plain torch modules.

| name | for | blocks | widths |
| --- | --- | --- | --- |
| ``resnet20``, ``resnet32``, ``resnet56`` | small images | 3, 5, 9 in each of 3 stages | 16, 32, 64 |
| ``resnet18``, ``resnet34``, ``resnet50`` | any images | 2-2-2-2, 3-4-6-3, 3-4-6-3 (bottlenecks) | 64 to 512 |
| ``wide_resnet16_4`` | small images | 2 in each of 3 stages, normalised before each convolution | 64, 128, 256 |

`resnet18` and larger start with a 7x7 convolution of stride 2 and pooling; for images of up to 64 pixels, with a 3x3
one. Parameters are named as in torchvision (``layer1.0.conv1``, ``layer2.0.downsample.0``, ``fc``), those of the wide
network as in its authors' PyTorch code (``block1.layer.0.convShortcut``), so that public checkpoints load.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from dubito.models.parts import activation_layer, norm_layer
from dubito.models.registry import Builder, Inference, Plan, register

SMALL_IMAGE = 64
"""Up to so many pixels, `resnet18` and larger keep the resolution in their first layer."""


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, which the normalisation after it would remove."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


def _dropout(plan: Plan) -> nn.Module:
    """What stands between the convolutions of a block: dropout if the network is trained with it."""
    return nn.Dropout(plan.dropout) if plan.inference is Inference.DROPOUT else nn.Identity()


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, plan: Plan) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn1 = norm_layer(plan.norm, width)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = norm_layer(plan.norm, width)
        self.activation = activation_layer(plan.activation)
        self.dropout = _dropout(plan)
        self.downsample = _shortcut(inputs, width, stride, plan)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = self.dropout(self.activation(self.bn1(self.conv1(x))))
        return self.activation(self.bn2(self.conv2(y)) + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, beside a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, plan: Plan) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = norm_layer(plan.norm, width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = norm_layer(plan.norm, width)
        self.conv3 = _convolution(width, 4 * width, 1)
        self.bn3 = norm_layer(plan.norm, 4 * width)
        self.activation = activation_layer(plan.activation)
        self.dropout = _dropout(plan)
        self.downsample = _shortcut(inputs, 4 * width, stride, plan)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = self.activation(self.bn1(self.conv1(x)))
        y = self.dropout(self.activation(self.bn2(self.conv2(y))))
        return self.activation(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


def _shortcut(inputs: int, outputs: int, stride: int, plan: Plan) -> nn.Sequential | None:
    """A 1x1 convolution where a block changes the shape, else None: the input itself."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), norm_layer(plan.norm, outputs))


class ResNet(nn.Module):
    """A residual network of several stages; each stage but the first halves the resolution."""

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        blocks: tuple[int, ...],
        first_width: int,
        plan: Plan,
        *,
        small_stem: bool,
    ) -> None:
        super().__init__()
        kernel, stride = (3, 1) if small_stem else (7, 2)
        self.conv1 = _convolution(plan.in_channels, first_width, kernel, stride)
        self.bn1 = norm_layer(plan.norm, first_width)
        self.activation = activation_layer(plan.activation)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, 1)
        width = first_width
        self.stages = [f"layer{number}" for number in range(1, len(blocks) + 1)]
        for stage, (name, count) in enumerate(zip(self.stages, blocks, strict=True)):
            layers: list[nn.Module] = []
            for number in range(count):
                inner = first_width * 2**stage
                layers.append(block(width, inner, 2 if stage and not number else 1, plan))
                width = inner * block.expansion
            self.add_module(name, nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, plan.num_outputs)
        _initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for a batch of images of any size."""
        x = self.maxpool(self.activation(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class PreactivatedBlock(nn.Module):
    """Two 3x3 convolutions, each after normalisation and activation, beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, plan: Plan) -> None:
        super().__init__()
        self.bn1 = norm_layer(plan.norm, inputs)
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn2 = norm_layer(plan.norm, width)
        self.conv2 = _convolution(width, width, 3)
        self.activation = activation_layer(plan.activation)
        self.dropout = _dropout(plan)
        self.convShortcut = None if inputs == width else nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = self.activation(self.bn1(x))
        shortcut = x if self.convShortcut is None else self.convShortcut(y)
        return shortcut + self.conv2(self.dropout(self.activation(self.bn2(self.conv1(y)))))


class _Stage(nn.Module):
    """Some blocks one after the other, below the name ``layer``."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.layer = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """The output of the last block."""
        return self.layer(x)


class WideResNet(nn.Module):
    """A wide residual network of three stages with (depth - 4) / 6 blocks each."""

    def __init__(self, depth: int, factor: int, plan: Plan) -> None:
        super().__init__()
        count = (depth - 4) // 6
        widths = [16, 16 * factor, 32 * factor, 64 * factor]
        self.conv1 = _convolution(plan.in_channels, widths[0], 3)
        stages = []
        for inputs, width, stride in zip(widths[:-1], widths[1:], (1, 2, 2), strict=True):
            first = PreactivatedBlock(inputs, width, stride, plan)
            stages.append(_Stage(first, *(PreactivatedBlock(width, width, 1, plan) for _ in range(count - 1))))
        self.block1, self.block2, self.block3 = stages
        self.bn1 = norm_layer(plan.norm, widths[-1])
        self.activation = activation_layer(plan.activation)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], plan.num_outputs)
        _initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for a batch of images of any size."""
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.activation(self.bn1(x))), 1))


def _initialize(network: nn.Module) -> None:
    """He's initialisation of the convolutions, by their outputs."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and not layer.weight.is_meta:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")


def _for_small_images(blocks: int, plan: Plan) -> nn.Module:
    return ResNet(BasicBlock, (blocks,) * 3, 16, plan, small_stem=True)


def _for_any_images(block: type[BasicBlock | Bottleneck], blocks: tuple[int, ...], plan: Plan) -> nn.Module:
    return ResNet(block, blocks, 64, plan, small_stem=plan.image_size <= SMALL_IMAGE)


SMALL: dict[str, Builder] = {
    "resnet20": partial(_for_small_images, 3),
    "resnet32": partial(_for_small_images, 5),
    "resnet56": partial(_for_small_images, 9),
    "wide_resnet16_4": partial(WideResNet, 16, 4),
}
LARGE: dict[str, Builder] = {
    "resnet18": partial(_for_any_images, BasicBlock, (2, 2, 2, 2)),
    "resnet34": partial(_for_any_images, BasicBlock, (3, 4, 6, 3)),
    "resnet50": partial(_for_any_images, Bottleneck, (3, 4, 6, 3)),
}

for _size, _builders in ((32, SMALL), (224, LARGE)):
    for _name, _builder in _builders.items():
        register(_name, activation="relu", norm="batch", image_size=_size, channels_last=True)(_builder)
