"""Shortening of text."""

import pytest

from crewboard.untrusted import elide_middle


@pytest.mark.parametrize(
    ("most", "head", "expected"),
    [
        (10, None, "0123456789"),
        (4, None, "01\n[6 characters left out]\n89"),
        (5, None, "01\n[5 characters left out]\n789"),
        (4, 1, "0\n[6 characters left out]\n789"),
    ],
)
def test_long_text_keeps_its_start_and_its_end(most: int, head: int | None, expected: str) -> None:
    assert elide_middle("0123456789", most, head) == expected
