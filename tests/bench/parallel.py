"""Many processes at once: each runs one function of `tests.bench.acts` many times, all from the same moment."""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

_RUN = """
import sys
sys.path.insert(0, {root!r})
from tests.bench import acts
act = acts.{act}(*sys.argv[1:])
sys.stdout.write("x"); sys.stdout.flush()
sys.stdin.read(1)
done = sum(bool(act(number)) for number in range({times}))
print(done)
"""


def rate(act: str, processes: int, times: int, *arguments: object) -> tuple[float, int]:
    """Return the calls per second of `processes` processes with `times` calls each, and how many succeeded."""
    code = _RUN.format(root=str(ROOT), act=act, times=times)
    crowd = [
        subprocess.Popen(
            [sys.executable, "-I", "-c", code, *map(str, arguments), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for number in range(processes)
    ]
    for each in crowd:
        assert each.stdout is not None
        assert each.stdout.read(1) == b"x"
    began = time.perf_counter()
    for each in crowd:
        assert each.stdin is not None
        each.stdin.write(b"g")
        each.stdin.flush()
    done = [int(each.communicate()[0]) for each in crowd]
    return processes * times / (time.perf_counter() - began), sum(done)
