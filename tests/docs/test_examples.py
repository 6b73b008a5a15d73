"""The programs that pages show run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click import Context

from crewboard import choose_team, create_team, endpoint
from crewboard.store import mailbox
from crewboard_tui.cli.program import crewboard
from tests.cli.shell import clean_environment
from tests.docs.pages import REFERENCE, ROOT

GUIDE = ROOT / "docs/guide.md"
GATEWAYS = ROOT / "docs/gateways.md"


def _program(page: Path, words: str) -> str:
    """Return the Python program of a page that holds these words."""
    found: list[str] = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return next(program for program in found if words in program)


def test_the_sender_of_the_reference_delivers_a_message(tmp_path: Path) -> None:
    team = create_team(tmp_path, "demo").directory
    shown: dict[str, object] = {}
    exec(_program(REFERENCE / "messages.md", "def send"), shown)
    send = shown["send"]
    assert callable(send)
    send(str(team.path), "lead", "hello")
    batch = mailbox.read(team, "lead")
    assert [(message.from_, message.content) for message in batch.messages] == [("operator", "hello")]
    assert batch.damaged == 0


def test_the_python_program_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(_program(GUIDE, "read_team"), {})
    assert not choose_team(tmp_path, None).exists()


@pytest.mark.long
def test_the_script_of_the_guide_drives_a_team(tmp_path: Path) -> None:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", _program(GUIDE, "subprocess.run")],
        cwd=tmp_path,
        env={**clean_environment(), "PATH": programs},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["survey", "writer"]
    assert (tmp_path / "hello.md").read_text() == "hello"


def test_the_lines_for_each_server_name_an_address_and_a_key() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", GATEWAYS.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    exported = [dict(re.findall(r"^export (\w+)=(\S+)", block, re.MULTILINE)) for block in blocks]
    servers = [block for block in exported if "ANTHROPIC_BASE_URL" in block]
    assert len(servers) == 10
    for each in servers:
        assert endpoint.address_problem(each) is None, each
        assert endpoint.credential(each) == "ANTHROPIC_AUTH_TOKEN", each
        if not endpoint.is_private(endpoint.base_url(each)):
            assert each["ANTHROPIC_AUTH_TOKEN"] == "…"


@pytest.mark.parametrize("command", ["answer", "approve"])
def test_ids_in_help_texts_begin_as_ids_of_requests_do(command: str) -> None:
    found = crewboard.get_command(Context(crewboard), command)
    shown = (found and found.help) or ""
    ids = re.findall(rf"Example: crewboard {command} (\S+)", shown)
    assert ids
    assert all(re.fullmatch(r"(?:question|permission|plan|shutdown)-[0-9a-f]+", each) for each in ids)
