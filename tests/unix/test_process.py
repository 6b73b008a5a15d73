"""What a process asks of the C library."""

import subprocess
import sys

import pytest

_FREE_ALL_BUT_THE_LAST = """
import psutil
from crewboard.unix import process
process.give_back_large_buffers()
# A buffer as of a large file, after which the library would keep those up to its size.
bytearray(8_000_000)
before = psutil.Process().memory_info().rss
buffers = [bytearray(200_000) for _ in range(100)]
# No memory before the last one can be cut off the end of the heap.
del buffers[:-1]
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the setting is one of glibc")
def test_freed_buffers_are_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", _FREE_ALL_BUT_THE_LAST], capture_output=True, check=True)
    assert int(done.stdout) < 2_000_000
