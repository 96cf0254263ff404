"""Freed memory that a process keeps."""

import platform
import subprocess
import sys

import pytest

from dubito import memory

SCRIPT = """
import resource, sys, torch
from dubito.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def work():
    torch.ones(10_000_000)  # 40 MB, 9,766 pages of 4 kB
for _ in range(20):  # until the heap has grown
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is meant")
def test_memory_that_was_freed_is_used_again_without_the_system_s_help():
    """Ten times 40 MB: by default every page is fetched anew (large pages make them fewer), kept memory needs none."""
    faults = {
        how: int(subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, check=True).stdout)
        for how in ("keep", "leave")
    }
    assert faults["keep"] < 100
    assert faults["leave"] > 3 * faults["keep"] + 100


THREAD = """
import re, runpy, sys, threading
memory = runpy.run_path(sys.argv[2])
memory["keep_freed_memory"]()
if sys.argv[1] == "one":
    memory["use_one_heap"]()
def resident():
    return int(re.findall(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[0]) / 1000
def work():
    kept = [bytes(range(256)) * 4000 for _ in range(40)]  # a megabyte each
    return len(kept)
before = resident()
thread = threading.Thread(target=lambda: (work(), freed.set(), end.wait()))
freed, end = threading.Event(), threading.Event()
thread.start()
freed.wait()
memory["give_back_memory"]()
print(resident() - before)
end.set()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is meant")
def test_what_a_thread_has_freed_can_be_given_back_if_it_has_no_heap_of_its_own():
    grown = {
        how: float(
            subprocess.run([sys.executable, "-c", THREAD, how, memory.__file__], capture_output=True, check=True).stdout
        )
        for how in ("one", "each")
    }
    assert grown["one"] < 10 < 30 < grown["each"]


def test_other_systems_are_left_alone(monkeypatch):
    import ctypes

    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # no mallopt
    memory.keep_freed_memory()
    memory.use_one_heap()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", None)
    memory.keep_freed_memory()
    memory.use_one_heap()
