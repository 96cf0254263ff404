"""The description of its images that a network carries, as it carries its head.

A network of a run has it from the run. With it a network takes photographs: they are prepared as in its training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn

from dubito.errors import OptionError
from dubito.models.ensemble import Ensemble
from dubito.runs.description import DataDescription

ModuleType = TypeVar("ModuleType", bound=nn.Module)
_ATTRIBUTE = "data_description"


def attach_data(model: ModuleType, data: DataDescription | None = None, **fields: Any) -> ModuleType:
    """Describe the images of a network, so that it can read image files and name its classes; returns the network.

    Args:
        model: any network.
        data: a description, such as `data` of a run; or give its fields.
        fields: `class_names`, `size` (pixels a side), `mean` and `std` (of each channel, for pixels in [0, 1]; without
            them pixels stay in [0, 1]), `channels` (3 unless `mean` says otherwise), and whatever else a
            :class:`~dubito.runs.description.DataDescription` has.

    >>> network = attach_data(nn.Flatten(), class_names=["cat", "dog"], size=64, mean=[0.5], std=[0.2])
    >>> data_of(network).channels, data_of(network).size
    (1, 64)
    """
    setattr(model, _ATTRIBUTE, describe_data(model, **fields) if data is None else data)
    return model


def data_of(model: object) -> DataDescription | None:
    """The description that a network carries, if any; an ensemble without one has that of its first member."""
    found = getattr(model, _ATTRIBUTE, None)
    if found is None and isinstance(model, Ensemble):
        return data_of(model.members[0])
    return found if isinstance(found, DataDescription) else None


def require_data(data: DataDescription | None, what: str) -> DataDescription:
    """The description that a network carries; an error if it carries none, which `what` needs."""
    if data is None:
        raise OptionError(
            f"{what} needs to know what the images of the network are like: call "
            "dubito.attach_data(network, class_names=..., size=..., mean=..., std=...)."
        )
    return data


def describe_data(
    model: nn.Module,
    *,
    class_names: Sequence[str] | None = None,
    size: int | None = None,
    channels: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **more: Any,
) -> DataDescription:
    """A description from its fields; what is left out comes from the network, where it knows."""
    built = getattr(model, "built_as", {})
    size = size or built.get("image_size")
    if size is None:
        raise OptionError("The size of the images is not known: give it in pixels, such as size=224.")
    if class_names is None:
        count = getattr(model, "num_classes", None)
        if not isinstance(count, int):
            raise OptionError("The names of the classes are not known: give class_names=[...].")
        class_names = [str(number) for number in range(count)]
    channels = channels or (len(mean) if mean is not None else built.get("in_channels", 3))
    content = {
        **{"name": "", "padding": 0, "num_data": 0, "channels": channels, "size": size, "class_names": class_names},
        "mean": [0.0] * channels if mean is None else mean,
        "std": [1.0] * channels if std is None else std,
        **more,
    }
    try:
        return DataDescription.of(content)
    except (TypeError, ValueError) as error:
        raise OptionError(f"The description of the images makes no sense: {error}.") from None
