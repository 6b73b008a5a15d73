"""How long the offline model takes to read a long sentence, against one a quarter as long."""

import time

import pytest

from crewboard.offline.phrasebook import understand

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench")]


@pytest.mark.parametrize(
    ("item", "end"),
    [("x y, ", "but not z"), ('"a", ', "but not z"), ("x and ", "(not z)"), ('"a" ', ""), ("x y, ", "z")],
)
def test_a_long_list_of_tasks_is_read_in_time_that_its_length_takes(item: str, end: str) -> None:
    def took(text: str) -> float:
        """Return the seconds of the processor, which other processes hardly change."""
        understand.cache_clear()
        began = time.process_time()
        understand(text, lead=True)
        return time.process_time() - began

    short, long = (f"Add tasks {item * (size // len(item))}{end}" for size in (2000, 8000))
    # Patterns are compiled once.
    took(short)
    ratio = min(took(long) for _ in range(3)) / min(took(short) for _ in range(3))
    print(f"8 kB take {ratio:.1f} times as long as 2 kB")
    assert ratio < 8, "it grows with the square"
