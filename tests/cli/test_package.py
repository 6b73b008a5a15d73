"""The packages that `make package` built into dist/: its files, its description, and the demo of the wheel alone."""

import contextlib
import email.policy
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import EmailMessage
from email.parser import BytesParser
from functools import partial
from pathlib import Path

import pexpect
import pyte
import pytest

import crewboard
from tests.cli.shell import clean_environment
from tests.crew import eventually
from tests.docs.pages import ROOT
from tests.system import need_program
from tests.terminal.screen import Screen

pytestmark = pytest.mark.package

NAME = f"crewboard-{crewboard.__version__}"
WHEEL = ROOT / f"dist/{NAME}-py3-none-any.whl"
SDIST = ROOT / f"dist/{NAME}.tar.gz"
BESIDE = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "SECURITY.md", "pyproject.toml"}
"""Files of the sdist beside the two packages; hatchling adds .gitignore."""

RECORDS = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


def committed(folder: str) -> set[str]:
    """Return the files below a folder that git knows."""
    need_program("git")
    listed = subprocess.run(["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.split("\0")) - {""}


@pytest.fixture(scope="module")
def metadata() -> EmailMessage:
    with zipfile.ZipFile(WHEEL) as wheel:
        message = BytesParser(policy=email.policy.default).parsebytes(wheel.read(f"{NAME}.dist-info/METADATA"))
    assert isinstance(message, EmailMessage)
    return message


def test_the_wheel_holds_the_packages_and_nothing_else() -> None:
    with zipfile.ZipFile(WHEEL) as wheel:
        names = set(wheel.namelist())
    packages = {name.partition("/")[2] for name in committed("core/crewboard") | committed("tui/crewboard_tui")}
    manual = f"{NAME}.data/data/share/man/man1/crewboard.1"
    assert names == packages | {f"{NAME}.dist-info/{record}" for record in RECORDS} | {manual}


def test_the_sdist_holds_the_sources_and_nothing_else() -> None:
    with tarfile.open(SDIST) as sdist:
        names = {name.removeprefix(f"{NAME}/") for name in sdist.getnames()}
    assert names == committed("core") | committed("tui") | committed("docs/crewboard.1") | BESIDE


def test_the_description_has_no_link_that_leads_nowhere(metadata: EmailMessage) -> None:
    description = metadata.get_content()
    assert "make demo" in description
    assert re.findall(r"!\[|\]\((?!https?:)", description) == []


def test_the_metadata_name_the_licence_and_the_version(metadata: EmailMessage) -> None:
    assert metadata["Version"] == crewboard.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Description-Content-Type"] == "text/markdown"


@pytest.mark.timeout(400)
def test_the_wheel_alone_shows_its_demo(tmp_path: Path) -> None:
    installed, scratch, home = tmp_path / "installed", tmp_path / "scratch", tmp_path / "home"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", installed], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(installed / "bin/python"), "-qq", "--disable-pip-version-check"]
    # As uvx does it, and pipx does not: what is used is compiled when it is used first.
    subprocess.run([*pip, "install", "--no-compile", str(WHEEL)], cwd=tmp_path, check=True)
    scratch.mkdir()
    home.mkdir()
    environment = clean_environment(
        HOME=str(home),
        TMPDIR=str(scratch),
        TERM="xterm-256color",
        LANG="C.UTF-8",
        PATH=f"{installed}/bin:{os.defpath}",
        PYTHONFAULTHANDLER="1",
    )
    screen = Screen(80, 24)
    stream = pyte.ByteStream(screen)
    child = pexpect.spawn(
        str(installed / "bin/crewboard"), ["demo"], cwd=str(home), env=environment, dimensions=(24, 80), timeout=60
    )

    def shows(words: str) -> bool:
        with contextlib.suppress(pexpect.TIMEOUT):
            stream.feed(child.read_nonblocking(65_536, timeout=0.05))
        return words in "\n".join(screen.display)

    with contextlib.closing(child):
        for words in ("scout", "courier", "killed by SIGKILL"):
            eventually(partial(shows, words), f"{words} on the board", seconds=60)
        child.send("q")
        child.expect("The demo is over")
        child.expect(pexpect.EOF)
    assert child.exitstatus == 0
    eventually(lambda: not list(scratch.iterdir()), "nothing left")
