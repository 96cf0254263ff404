"""Names of classes can be shown, written and told apart."""

from __future__ import annotations

import pytest

from dubito.class_names import check_class_names
from dubito.errors import DataError


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([], "There are 0 classes"),
        ([str(number) for number in range(60_000)], "There are 60000 classes"),
        (["cat", "dog", "cat"], "Two classes are called 'cat'"),
        (["cat", ""], "empty name"),
        (["cat", " "], "empty name"),
        (["cat", 3], "of type int"),
        (["cat", "c" * 2000], "2000 characters"),
        (["cat", "\x1b[31mred"], r"'\x1b[31mred' has control characters"),
        (["cat", "two\nlines"], "control characters"),
        (["cat", "caf\udce9"], r"'caf\udce9' has control characters or is not UTF-8"),
        (["cat", "\u202egod"], "control characters"),
    ],
)
def test_names_that_cannot_be_shown_or_told_apart_are_refused(names: list[str], reason: str) -> None:
    with pytest.raises(DataError) as raised:
        check_class_names(names)
    assert reason in str(raised.value)


def test_names_of_any_language_are_taken() -> None:
    names = ["café", "猫", "نمی\u200cشود", "tench, Tinca tinca", "0", "=1+1", "a\u00a0b"]
    assert check_class_names(names) == tuple(names)
