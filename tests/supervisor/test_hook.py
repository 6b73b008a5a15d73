"""The user's hook: told of each new and each settled need exactly once, and of nothing that it should not know."""

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crewboard.commands import messages
from crewboard.protocol import requests, supervisor_client
from crewboard.records.base import JsonValue
from crewboard.records.team import ToldNeeds
from crewboard.store import codec
from crewboard.supervisor.hook import Hook, events_due, read_hook
from crewboard.unix import process
from tests.crew import Crew, eventually
from tests.docs.pages import ROOT

NOON = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))
HOOK = Hook(("/bin/true",))


def needs(*names: str) -> dict[str, dict[str, Any]]:
    return {f"death {name} ": {"kind": "death", "agent": name} for name in names}


class Told:
    """A hook that is told what happens as time goes on, and what is recorded of that."""

    def __init__(self, hook: Hook = HOOK) -> None:
        self.hook = hook
        self.told = ToldNeeds()

    def at(self, seconds: float, *names: str) -> list[str]:
        events, after = events_due(self.told, needs(*names), self.hook, NOON + seconds)
        # What a supervisor that is killed now leaves is what its successor reads.
        self.told = codec.decode(codec.encode(after), ToldNeeds)
        return [f"{event['event']} {event['agent']}" for event in events]


def test_a_need_is_told_once_when_it_comes_and_once_when_it_goes() -> None:
    told = Told()
    assert told.at(0, "a") == ["new a"]
    assert told.at(10, "a") == []
    assert told.at(20) == ["settled a"]
    assert told.at(30) == []
    assert told.at(40, "a") == ["new a"]


def test_what_comes_within_five_seconds_is_told_together_worst_first() -> None:
    told = Told()
    assert told.at(0, "b") == ["new b"]
    assert told.at(1, "c", "b") == []
    assert told.at(4.9, "a", "c") == []
    assert told.at(5, "a", "c") == ["new a", "new c", "settled b"]


def test_a_clock_that_is_set_back_does_not_silence_the_hook() -> None:
    told = Told()
    told.at(3600, "a")
    assert told.at(0, "a", "b") == ["new b"]


def test_one_reminder_follows_after_its_time() -> None:
    told = Told(Hook(("/bin/true",), remind_after=600))
    assert told.at(0, "a") == ["new a"]
    assert told.at(599, "a") == []
    assert told.at(600, "a", "b") == ["reminder a", "new b"]
    assert told.at(2000, "a", "b") == ["reminder b"]
    assert told.at(9000, "a", "b") == []


def test_in_quiet_hours_nothing_is_told_and_afterwards_what_is_left() -> None:
    told = Told(Hook(("/bin/true",), quiet=(22 * 60, 7 * 60)))
    assert told.at(0, "a") == ["new a"]
    assert told.at(11 * 3600, "b", "c") == []
    assert told.at(18 * 3600, "c") == []
    assert told.at(19 * 3600, "c") == ["new c", "settled a"]


@pytest.mark.parametrize(
    ("quiet", "hour", "is_quiet"),
    [((22 * 60, 7 * 60), 23, True), ((22 * 60, 7 * 60), 6, True), ((22 * 60, 7 * 60), 7, False),
     ((12 * 60, 14 * 60), 13, True), ((12 * 60, 14 * 60), 11, False), (None, 3, False)],
)  # fmt: skip
def test_quiet_hours_may_span_midnight(quiet: tuple[int, int] | None, hour: int, is_quiet: bool) -> None:
    now = time.mktime((2026, 11, 20, hour, 30 if is_quiet else 0, 0, 0, 0, -1))
    assert Hook(("/bin/true",), quiet).is_quiet(now) == is_quiet


def configured(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "hook.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_hook_is_read(tmp_path: Path) -> None:
    text = 'command = ["sh", "-c", "cat"]\nquiet = "22:00-7:30"\nremind_after = 30\n'
    hook = read_hook(configured(tmp_path, text))
    assert hook is not None
    assert hook.command[0].endswith("/sh")
    assert (hook.command[1:], hook.quiet, hook.remind_after) == (("-c", "cat"), (1320, 450), 1800)
    assert read_hook(tmp_path / "missing.toml") is None


@pytest.mark.parametrize(
    "text",
    ["command = 'cat'", "command = []", "command = [1]", "remind_after = 1", "command = [", 'command = ["no-program"]',
     'command = ["cat"]\nquiet = "late"', 'command = ["cat"]\nquiet = "25:00-07:00"',
     'command = ["cat"]\ntimeout = 0', 'command = ["cat"]\nremind_after = -1',
     'command = ["cat"]\nremind_after = true'],
)  # fmt: skip
def test_a_hook_that_cannot_be_used_is_refused_with_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"hook\.toml"):
        read_hook(configured(tmp_path, text))


def test_a_hook_with_reminders_turned_off_is_read(tmp_path: Path) -> None:
    hook = read_hook(configured(tmp_path, 'command = ["cat"]\nremind_after = 0\n'))
    assert hook is not None
    assert hook.remind_after == 0


def test_a_hook_of_a_workspace_or_of_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="other users can change it"):
        read_hook(configured(tmp_path, 'command = ["cat"]', 0o666))
    work = tmp_path / "work"
    (work / ".crewboard").mkdir(parents=True)
    with pytest.raises(ValueError, match="in a workspace"):
        read_hook(configured(work, 'command = ["cat"]'))
    script = work / "tell.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    for command in (f'["{script}"]', f'["sh", "{script}"]'):
        with pytest.raises(ValueError, match="in a workspace"):
            read_hook(configured(tmp_path, f"command = {command}"))


class Receiver(http.server.ThreadingHTTPServer):
    """A web server that keeps what it is sent."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


NEED = {
    "event": "new", "team": "default", "root": "/src/shop", "kind": "plan", "agent": "api", "since": 1.0,
    "request_id": "plan-1f3a", "summary": "plan: rotate the keys – now",
}  # fmt: skip


def example(words: str, url: str) -> str:
    """Return the program of the guide that holds these words, with its address replaced."""
    text = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    found: list[str] = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    program = next(each for each in found if words in each)
    return re.sub(r'"https://[^"]*"', f'"{url}/path"', program)


def run_example(words: str, url: str) -> None:
    lines = "".join(json.dumps(each) + "\n" for each in (NEED, {**NEED, "event": "settled", "agent": "docs"}))
    subprocess.run([sys.executable, "-c", example(words, url)], input=lines.encode(), check=True, timeout=30)


def test_the_example_for_ntfy_posts_the_needs(receiver: Receiver) -> None:
    run_example("ntfy", receiver.url)
    ((path, headers, body),) = receiver.got
    assert path == "/path"
    assert headers["Title"] == "shop: api needs you"
    assert headers["Priority"] == "high"
    assert (
        body.decode()
        == "new plan of api: plan: rotate the keys – now\nsettled plan of docs: plan: rotate the keys – now"
    )


@pytest.mark.long
def test_the_example_for_a_chat_posts_the_needs(receiver: Receiver) -> None:
    run_example("webhook", receiver.url)
    ((_, headers, body),) = receiver.got
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body)["text"].splitlines()[0] == "new plan of api: plan: rotate the keys – now"


@pytest.fixture
def hooked(
    crew_on: Callable[..., Crew], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> tuple[Crew, Path]:
    """Return a team whose user has a hook, and the folder in which the hook notes what it is told."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.setenv("CHAT_TOKEN", "a-secret-of-the-user")
    folder = home / "crewboard"
    folder.mkdir()
    script = folder / "tell.sh"
    script.write_text(f'cat >> "{folder}/told"; env > "{folder}/env"\n')
    configured(folder, f'command = ["sh", "{script}"]\n')
    return crew_on(), folder


def lines_in(folder: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (folder / "told").read_text().splitlines()]
    except FileNotFoundError:
        return []


def deaths_in(folder: Path) -> list[dict[str, Any]]:
    """Return what the hook was told of deaths; a result may come before or after them."""
    return [each for each in lines_in(folder) if each["kind"] == "death"]


def is_death_told(crew: Crew) -> bool:
    told = crew.directory.told.load_or_none()
    return told is not None and any(each.need["kind"] == "death" for each in told.needs.values())


def test_the_hook_hears_of_each_need_once_also_over_a_supervisor_restart(hooked: tuple[Crew, Path]) -> None:
    crew, folder = hooked
    crew.run("scout", "explore", "say hello")
    crew.kill("scout")
    eventually(lambda: deaths_in(folder), "the death")
    os.kill(crew.supervisor_pid(), signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(crew.directory), "the end of the supervisor")
    supervisor_client.wake_supervisor(crew.directory)
    messages.acknowledge(crew.team, "scout")
    eventually(lambda: len(deaths_in(folder)) > 1, "that the death is settled")
    new, settled = deaths_in(folder)
    assert (new["event"], new["kind"], new["agent"]) == ("new", "death", "scout")
    assert (settled["event"], settled["kind"], settled["agent"]) == ("settled", "death", "scout")
    assert new["root"] == str(crew.root)
    environment = (folder / "env").read_text()
    assert "a-secret-of-the-user" not in environment
    assert "a-key-of-the-tests" not in environment


def test_a_hook_is_told_no_invisible_character(hooked: tuple[Crew, Path]) -> None:
    crew, folder = hooked
    crew.run("scout", "explore", "say hello")
    asks: dict[str, JsonValue] = {"question": "bientôt\N{RIGHT-TO-LEFT OVERRIDE}\N{ZERO WIDTH SPACE}\x1b[2J?"}
    requests.ask(crew.directory, "ask-1", "question", "scout", "operator", asks, crew.team.now())
    supervisor_client.wake_supervisor(crew.directory)
    eventually(lambda: [each for each in lines_in(folder) if each["kind"] == "question"], "the question")
    (told,) = (each["summary"] for each in lines_in(folder) if each["kind"] == "question")
    assert told == "asks: bientôt<U+202E><U+200B>\u241b[2J?"


@pytest.mark.long
def test_a_hook_that_hangs_is_killed_and_the_next_need_is_told(hooked: tuple[Crew, Path]) -> None:
    crew, folder = hooked
    script = folder / "tell.sh"
    configured(folder, f'command = ["sh", "{script}"]\ntimeout = 3\n')
    told = script.read_text()
    script.write_text(f'echo $$ > "{folder}/pid"; sleep 600 & wait\n')
    crew.run("scout", "explore", "say hello")
    crew.kill("scout")
    eventually(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip(), "the hanging hook")
    pid = int((folder / "pid").read_text())
    script.write_text(told)
    eventually(lambda: not process.start_ticks(pid), "its end")
    # On a busy machine, one that does not hang may take longer, too.
    configured(folder, f'command = ["sh", "{script}"]\n')
    # The hook may hang with the result alone, and a death that is settled before it was told is not told.
    eventually(lambda: is_death_told(crew), "the record of the death")
    messages.acknowledge(crew.team, "scout")
    eventually(lambda: lines_in(folder), "what is told next")
