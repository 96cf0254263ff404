"""`dubito models`: the networks, or one of them layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dubito.cli.failure import Debug
from dubito.cli.terminal import Column, examples, print_table

if TYPE_CHECKING:
    from dubito.models.architecture import Row, Shape

__all__ = ["EXAMPLES", "models"]

EXAMPLES = examples("dubito models", "dubito models --model alexnet --classes 100 --channels 3")


def models(
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Show this network layer by layer.")] = None,
    classes: Annotated[int, typer.Option(min=1, metavar="N", help="Classes that the network tells apart.")] = 10,
    channels: Annotated[int, typer.Option(min=1, metavar="N", help="1 for gray images, 3 for colour.")] = 1,
    debug: Debug = False,
) -> None:
    """Show the networks with their layers, parameters and cost."""
    from dubito.models.architecture import ARCHITECTURES, architecture

    if model is not None:
        _print_layers(architecture(model).shapes(channels, classes))
    else:
        _print_networks({name: table.shapes(channels, classes) for name, table in ARCHITECTURES.items()})
    typer.echo(f"For {classes} classes and {channels} x 32 x 32 images; multiplications of one image, one pass.")
    typer.echo("A Bayesian network has a mean and a deviation for each weight: twice as many.")


def _print_networks(networks: dict[str, list[Shape]]) -> None:
    columns = (
        Column("network"),
        Column("rows", number=True),
        Column("weight layers", number=True),
        Column("parameters", number=True),
        Column("Bayesian", number=True),
        Column("multiplications", number=True),
    )
    rows = []
    for name, shapes in networks.items():
        weights = sum(shape.weights for shape in shapes)
        cost = sum(shape.multiplications for shape in shapes)
        layers = sum(shape.weights > 0 for shape in shapes)
        rows.append((name, f"{len(shapes)}", f"{layers}", f"{weights:,}", f"{2 * weights:,}", f"{cost:,}"))
    print_table(columns, rows)


def _print_layers(shapes: list[Shape]) -> None:
    columns = (
        Column("row", number=True),
        Column("type"),
        Column("width", number=True),
        Column("stride", number=True),
        Column("pad", number=True),
        Column("input"),
        Column("output"),
        Column("parameters", number=True),
        Column("multipl.", number=True),
    )
    rows = [
        (
            f"{number}",
            *_describe(shape.row, shape.output),
            _dimensions(shape.input),
            _dimensions(shape.output),
            f"{shape.weights:,}" if shape.weights else "",
            f"{shape.multiplications:,}" if shape.multiplications else "",
        )
        for number, shape in enumerate(shapes, start=1)
    ]
    total = f"{sum(s.weights for s in shapes):,}", f"{sum(s.multiplications for s in shapes):,}"
    print_table(columns, [*rows, ("", "total", "", "", "", "", "", *total)])


def _describe(row: Row, output: tuple[int, ...]) -> tuple[str, str, str, str]:
    """Type, width, stride and padding, as in the paper's appendix."""
    from dubito.models.architecture import Convolution, MaxPooling

    if isinstance(row, Convolution):
        return f"conv {row.kernel}x{row.kernel}", f"{row.width}", f"{row.stride}", f"{row.padding}"
    if isinstance(row, MaxPooling):
        return f"pool {row.kernel}x{row.kernel}", "", f"{row.stride}", ""
    return "linear", f"{output[0]}", "", ""


def _dimensions(shape: tuple[int, ...]) -> str:
    return "x".join(str(side) for side in shape)
