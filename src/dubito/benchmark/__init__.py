"""What networks cost: time and memory of training steps and predictions, as multiples of the frequentist twin's.

Every system runs in a process of its own. Processes take turns (A, B, C, A, B, C, ...), so that all see the same
machine, and a ratio compares times of the same round.
"""

from dubito.benchmark.rounds import Comparison, Ratio, compare, ratios
from dubito.benchmark.systems import OURS, Frequentist, System
from dubito.benchmark.work import Measure, PlainNetwork, Work, measures_of
from dubito.benchmark.workers import Worker, open_workers

__all__ = [
    "OURS",
    "Comparison",
    "Frequentist",
    "Measure",
    "PlainNetwork",
    "Ratio",
    "System",
    "Work",
    "Worker",
    "compare",
    "measures_of",
    "open_workers",
    "ratios",
]
