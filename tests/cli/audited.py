"""A Python that records every program that it starts, and so does every Python that it starts.

It is a script that takes the place of `sys.executable`: it needs no variable, which crewboard would rightly drop, and
no change of the environment that the tests run from.
"""

import json
import sys
from pathlib import Path
from typing import Any

_SCRIPT = """#!{python} -I
import contextlib, faulthandler, json, os, runpy, sys

# So that a crash of the interpreter says where.
faulthandler.enable()

def note(event, arguments):
    if event == "subprocess.Popen":
        program, _, _, environment = arguments
    elif event in ("os.exec", "os.posix_spawn"):
        program, _, environment = arguments
    elif event == "os.system":
        program, environment = arguments[0], None
    else:
        return
    environment = dict(os.environ if environment is None else environment)
    line = json.dumps({{"program": os.fsdecode(program), "environment": environment}})
    # In a sandbox the file cannot be written; programs that start there are confined anyway.
    with contextlib.suppress(OSError), open({log!r}, "a") as log:
        log.write(line + "\\n")

sys.addaudithook(note)
sys.executable = {script!r}
at = next(at for at, each in enumerate(sys.argv) if each in ("-m", "-c"))
isolated = "-I" in sys.argv[:at]
how, what = sys.argv[at : at + 2]
if not isolated:
    sys.path.insert(0, os.getcwd())
if how == "-m":
    sys.argv[:] = sys.argv[at + 1 :]
    runpy.run_module(what, run_name="__main__", alter_sys=True)
else:
    sys.argv[:] = ["-c", *sys.argv[at + 2 :]]
    exec(what)
"""


class Audited:
    """The script and its record, in their own folder."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "python"
        self._log = folder / "started.jsonl"
        self.python.write_text(_SCRIPT.format(python=sys.executable, log=str(self._log), script=str(self.python)))
        self.python.chmod(0o755)

    @property
    def started(self) -> list[dict[str, Any]]:
        """Return every program that was started outside a sandbox: `program`, `environment`."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]
