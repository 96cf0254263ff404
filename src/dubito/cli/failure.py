"""How a command ends when something goes wrong: one sentence on stderr and an exit code, or a traceback if asked."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, TextIO

import typer

from dubito.errors import DubitoError, DubitoWarning
from dubito.harmless import say

FAILED, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes: an error, a wrong command line, Ctrl-C."""

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What Typer raises for a wrong command line; it has no public name."""

# `guarded` looks for it among the arguments, because it must work even when they cannot be parsed; here it is only
# declared, so that it is allowed before and after the command and help shows it.
Debug = Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error, and all warnings.")]


def _trust(asked: bool) -> bool:
    if asked:
        from dubito.models.trust import trust_all

        trust_all()
    return asked


Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        callback=_trust,
        help="Allow running the function (package.module:function) that builds the network of someone else's run.",
    ),
]


def guarded(command: Callable[[list[str]], Any], arguments: Sequence[str]) -> int:
    """Run a command and give its exit code; whatever it raises becomes one sentence on stderr."""
    given = list(arguments)
    options = given[: given.index("--")] if "--" in given else given
    debug = "--debug" in options
    with warnings.catch_warnings():
        warnings.showwarning = partial(_show_warning, debug)
        if not debug:
            # Nobody on the command line can act on the warnings of libraries.
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", DubitoWarning)
        try:
            code = command(given)
        except KeyboardInterrupt:
            code = INTERRUPTED
        except Exception as error:
            if debug:
                say(traceback.format_exc().rstrip(), err=True)
            elif not _lost_main_process(error):
                _complain(sentence(error))
            return USAGE if isinstance(error, UsageError) else FAILED
    if code == INTERRUPTED and is_main_process():
        _complain("Interrupted.")
    return code if isinstance(code, int) else 0


def sentence(error: Exception) -> str:
    """What went wrong, in one line.

    >>> sentence(FileNotFoundError(2, "No such file or directory", "a.yaml"))
    'a.yaml: No such file or directory.'
    """
    text = " ".join(str(error).split())
    if isinstance(error, UsageError):
        return _usage(error)
    if isinstance(error, DubitoError):
        return text
    if isinstance(error, MemoryError) or "out of memory" in text or "allocate memory" in text:
        return "There is not enough memory; try a smaller --batch-size."
    if isinstance(error, OSError) and error.strerror:
        place = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return f"{place}{error.strerror}."
    return f"{type(error).__name__}: {text.rstrip('.')}; this is a bug in dubito, --debug shows where."


def is_main_process() -> bool:
    """Whether this process prints to the user; the other processes of a distributed training stay quiet."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def _lost_main_process(error: Exception) -> bool:
    """Whether another process only noticed that the main one has ended, which prints its own error."""
    return not is_main_process() and any(word in str(error) for word in ("closed by peer", "reset by peer"))


def _usage(error: Any) -> str:
    text = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{text}; see `{context.command_path if context else 'dubito'} --help`."


def _complain(text: str) -> None:
    rank = os.environ.get("LOCAL_RANK", "0")
    say(text if is_main_process() else f"Process {rank}: {text}", err=True)


def _show_warning(
    debug: bool,
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    whole = warnings.formatwarning(message, category, filename, lineno, line)
    say(whole.rstrip() if debug else f"Warning: {message}", err=True)
