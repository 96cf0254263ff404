"""Shares in the words of a sentence."""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """A share in percent, with two digits, and more near 100 %.

    >>> percent(0.0834), percent(0.25), percent(0.996), percent(0.99999), percent(0.0), percent(1.0)
    ('8.3 %', '25 %', '99.6 %', '99.999 %', '0 %', '100 %')
    """
    value = 100 * share
    if 99 < value < 100:
        return f"{100 - float(f'{100 - value:.1g}'):.10g} %"
    return f"{value:.2g} %" if value < 10 else f"{value:.0f} %"


def promise(bound: float) -> str:
    """A bound in words that never promise more than it does.

    >>> promise(0.0151), promise(0.0001), promise(0.3416)
    ('at most 1 in 66 is', 'at most 1 in 10,000 is', 'at most 35 % are')
    """
    if bound > 0.2:
        return f"at most {math.ceil(round(100 * bound, 9))} % are"
    return f"at most 1 in {math.floor(round(1 / bound, 6)):,} is" if bound > 0 else "none is"
