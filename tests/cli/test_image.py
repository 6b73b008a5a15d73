"""The image that `make image` built, run by podman: without root inside, without a network, with files of the user."""

import contextlib
import os
import shlex
import subprocess
from hashlib import sha256
from pathlib import Path

import pexpect
import pyte
import pytest

from tests.crew import eventually
from tests.docs.pages import ROOT
from tests.terminal.screen import Screen, close

pytestmark = [pytest.mark.image, pytest.mark.timeout(300)]

PODMAN = shlex.split(os.environ.get("PODMAN", "podman"))
USER = 1000


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a folder of the user who is in the image."""
    if os.geteuid() == 0:
        os.chown(tmp_path, USER, USER)
    return tmp_path


def words(work: Path, *options: str) -> list[str]:
    mine = [] if os.geteuid() == 0 else ["--userns", f"keep-id:uid={USER},gid={USER}"]
    return [*PODMAN, "run", "--rm", "--network", "none", "-v", f"{work}:/work", *mine, *options]


def run(work: Path, *command: str, options: tuple[str, ...] = ()) -> str:
    done = subprocess.run([*words(work, *options), "crewboard", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_container_starts(work: Path) -> None:
    assert run(work, "--version").startswith("crewboard ")


def test_the_image_has_the_code_of_this_checkout(work: Path) -> None:
    print_sums = (
        "cd $(dirname $(find /opt -path '*/crewboard/__init__.py')) && find . -name '*.py' -exec sha256sum {} +"
    )
    printed = run(work, "-c", print_sums, options=("--entrypoint", "sh"))
    installed = {path: digest for digest, path in map(str.split, printed.splitlines())}
    package = ROOT / "core" / "crewboard"
    code = {f"./{each.relative_to(package)}": sha256(each.read_bytes()).hexdigest() for each in package.rglob("*.py")}
    assert installed == code


def test_no_root_is_inside(work: Path) -> None:
    assert run(work, options=("--entrypoint", "id")).startswith(f"uid={USER}(crew) gid={USER}(crew)")


def test_the_demo_needs_neither_a_key_nor_a_network(work: Path) -> None:
    assert "demo: finished as expected" in run(work, "demo", "--headless")


def test_an_agent_writes_the_users_files(work: Path) -> None:
    prompt = 'Write a file named hello.md that says "hello".'
    run(work, "--offline", "spawn", "writer", "--type", "code", "--once", "--prompt", prompt)
    assert (work / "hello.md").read_text() == "hello"
    assert (work / "hello.md").stat().st_uid == work.stat().st_uid


def test_doctor_says_which_sandbox_works_and_what_helps(work: Path) -> None:
    plain = run(work, "doctor")
    unmasked = run(work, "doctor", options=("--security-opt", "unmask=ALL"))
    assert "ok    sandbox   bubblewrap" in unmasked
    # Some versions of podman let it mount all the same.
    assert "ok    sandbox   bubblewrap" in plain or "--security-opt unmask=ALL" in plain


def test_the_dashboard_opens_in_a_terminal(work: Path) -> None:
    program, *arguments = [*words(work, "-it"), "crewboard"]
    child = pexpect.spawn(program, arguments, dimensions=(24, 80), timeout=60, encoding="utf-8")
    screen = Screen(80, 24)
    stream = pyte.Stream(screen)

    def shows(text: str) -> bool:
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
            stream.feed(child.read_nonblocking(65_536, timeout=0.1))
        return any(text in line for line in screen.display)

    try:
        eventually(lambda: shows("No agents hired yet."), "the dashboard")
        child.send("q")
        eventually(lambda: shows("opens the board again"), "the farewell")
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0
    finally:
        close(child)
