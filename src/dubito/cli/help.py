"""Commands whose help shows what is typed: names, choices and defaults, but no types of Python."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption


class Command(TyperCommand):
    """A command with plain help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The arguments and options, without the type that Typer would show of flags and arguments."""
        return [_plain(parameter) for parameter in super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line, in which what is required has no braces: RUN IMAGES..."""
        return [piece.translate(_NO_BRACES) for piece in super().collect_usage_pieces(ctx)]


class Group(TyperGroup):
    """A group of commands with plain help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options, without the type that Typer would show of flags."""
        return [_plain(parameter) for parameter in super().get_params(ctx)]


_NO_BRACES = str.maketrans("", "", "{}")


def _plain(parameter: Any) -> Any:
    if isinstance(parameter, TyperArgument):
        parameter.display_type = lambda ctx: ""  # type: ignore[method-assign]
    elif isinstance(parameter, TyperOption) and parameter.is_flag:
        parameter.metavar = ""
    return parameter
