"""The script of the guide runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import clean_environment
from tests.docs.pages import ROOT


@pytest.mark.long
def test_the_script_of_the_guide_drives_a_team(tmp_path: Path) -> None:
    guide = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    script = re.search(r"<!-- script: drive-a-team -->\n```python\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    assert script is not None
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**clean_environment(), "PATH": programs}
    done = subprocess.run(
        [sys.executable, "-c", script[1]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["survey", "writer"]
    assert (tmp_path / "hello.md").read_text() == "hello"
