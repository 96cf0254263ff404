"""Where a training ran: commit, versions, hardware, seed and command."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("dubito", "torch", "numpy", "pytorch-lightning", "safetensors")


def commit() -> str | None:
    """The commit of this code, with ``+changes`` if files were changed since; None outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # dubito may be installed inside somebody else's checkout
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def environment(seed: int) -> dict[str, Any]:
    """What a run records about the machine and the software that it was trained with."""
    from dubito.threads import rounding

    return {
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        **{name: value for name, value in rounding().items() if name != "torch"},
        "versions": {package: version_of(package) for package in PACKAGES},
        "seed": seed,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
