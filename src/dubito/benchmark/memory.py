"""The largest resident memory of this process since it was last asked to forget it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak() -> None:
    """Start anew, from what is resident now; systems other than Linux cannot, and keep the largest so far."""
    if _CLEAR.exists():
        _CLEAR.write_text("5")


def peak() -> float:
    """Megabytes."""
    if _STATUS.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
        if found:
            return int(found[1]) * 1024 / 1e6
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / 1e6 if sys.platform == "darwin" else largest * 1024 / 1e6
