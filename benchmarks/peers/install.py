"""Install the peers into the environment of this interpreter: `python -m benchmarks.peers.install`.

Each by itself, so that one that cannot be had keeps out no other; why stands in failures.json beside the interpreter's
folder, and in the benchmark's table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from dubito.files import write_atomically

REQUIREMENTS = Path(__file__).parent / "requirements.txt"
FAILURES = Path(sys.prefix) / "failures.json"


def requirements(text: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def reason(output: str) -> str:
    """The line of pip's output that says why."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip said nothing"])[0].removeprefix("ERROR:").strip()


def install(requirement: str) -> str | None:
    """None, or why it failed."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", requirement]
    done = subprocess.run(pip, capture_output=True, text=True)
    return None if done.returncode == 0 else reason(done.stderr)


def failures() -> dict[str, str]:
    """Why packages could not be installed, by their names."""
    return json.loads(FAILURES.read_text(encoding="utf-8")) if FAILURES.exists() else {}


def main() -> None:
    failed = {}
    for requirement in requirements(REQUIREMENTS.read_text(encoding="utf-8")):
        print(f"Installing {requirement} ...", flush=True)
        why = install(requirement)
        if why is not None:
            failed[requirement.partition("==")[0]] = why
            print(f"  failed: {why}")
    write_atomically(FAILURES, json.dumps(failed, indent=2) + "\n")


if __name__ == "__main__":
    main()
