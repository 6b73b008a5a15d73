"""The dashboard in a real terminal, with real workers."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from crewboard import Team
from crewboard.commands import messages, stop
from crewboard.protocol import requests
from crewboard.records.requests import notes_in
from crewboard.store import agents, mailbox
from crewboard.store.layout import TeamDirectory
from tests.cli.shell import clean_environment
from tests.crew import Crew, contents, eventually
from tests.model import calls, says
from tests.system import need_program
from tests.terminal.screen import Terminal

Make = Callable[..., Crew]

PLAN = calls("submit_plan", plan="# Write out.txt\n\n1. write it", files=["out.txt"], risk="none")
WRITE = calls("write_file", path="out.txt", content="hello")


def test_the_file_is_written_only_after_the_plan_is_approved(crew_on: Make) -> None:
    crew = crew_on([PLAN, WRITE, says("all done")])
    crew.hire("fixer", "code", "write it", plan=True, unsafe_no_sandbox=True)
    crew.pending("plan_approval")
    pid = crew.pid("fixer")
    with Terminal(crew.root, crew.environment) as terminal:
        terminal.shows("fixer")
        terminal.press("!", "Write out.txt")
        assert not (crew.root / "out.txt").exists()
        # The key works only when the page has been shown long enough.
        terminal.shows("a approve")
        terminal.press("a", "approved")
        eventually((crew.root / "out.txt").exists, "the file")
    crew.wait_for("fixer", "idle")
    assert crew.pid("fixer") == pid, "it outlives the dashboard"


@pytest.mark.long
def test_eight_notes_over_three_versions_of_a_plan_of_120_lines(crew_on: Make) -> None:
    # Each version has a title of its own, by which the Board tells that it is there.
    lines = ["# Files 1", "", *(f"- move file{number}.py to the store" for number in range(3, 121))]
    second = ["# Files 2", "", "Why: they are lost.", *lines[1:40], *lines[44:]]
    plans = ["\n".join(each) for each in (lines, second, ["# Files 3", *second[1:], "- tell the team"])]
    did = [{f"n{number}": f"done {number}" for number in numbers} for numbers in (range(0), range(1, 5), range(5, 9))]
    handed_in = [calls("submit_plan", plan=plan, answers=each) for plan, each in zip(plans, did, strict=True)]
    crew = crew_on([*handed_in, says("all moved")])
    crew.hire("mover", "code", "move them", plan=True, unsafe_no_sandbox=True)
    crew.pending("plan_approval")
    rounds = (("120:is this all?", "3:why first?", "41-44:leave these", "80:which store?"),
              ("3:lost how?", "60-61:together", "100:and this?", "116:and then?"))  # fmt: skip
    with Terminal(crew.root, crew.environment) as terminal:
        terminal.shows("mover")
        for version, notes in enumerate(rounds, 1):
            terminal.shows(f"plan: Files {version}")
            terminal.press("!", f"PLAN v{version}")
            for note in notes:
                terminal.shows("c note")
                terminal.press("c", "LINE:TEXT")
                terminal.press(note, note[-8:])
                terminal.child.send("\r")
                eventually(lambda terminal=terminal: "LINE:TEXT" not in terminal.text, "the note kept")  # type: ignore[misc]
            terminal.shows("a approve+notes")
            terminal.press("\x13", "denied: mover reads why")
        terminal.shows("plan: Files 3")
        terminal.press("!", "PLAN v3")
        terminal.shows("NOTES")
        while "100% read" not in terminal.text:
            terminal.child.send(" ")
        terminal.shows("a approve")
        terminal.press("a", "approved: mover continues")
    crew.wait_for("mover", "idle")
    (decided,) = [each for each in requests.load_all(crew.team.directory) if each.status == "approved"]
    told = notes_in(decided.payload)
    assert [(note.id, note.answer) for note in told] == [(f"n{number}", f"done {number}") for number in range(1, 9)]


@pytest.mark.long
def test_workers_and_half_a_thought_outlive_the_dashboard(crew: Crew) -> None:
    crew.run("scout", "explore", "hello")
    pid = crew.pid("scout")
    with Terminal(crew.root, crew.environment) as terminal:
        terminal.shows("scout")
        terminal.child.send("q")
        terminal.child.expect(pexpect.EOF)
        assert "scout" in str(terminal.child.before) or "go" in str(terminal.child.before)
        assert terminal.child.wait() == 0
    with Terminal(crew.root, crew.environment) as terminal:
        terminal.shows("idle")
        terminal.press("m", "to scout")
        terminal.press("half a thought", "half a thought")
        eventually(lambda: any(b"half a thought" in text for text in contents(terminal.state).values()), "a file")
        terminal.kill()
    assert crew.pid("scout") == pid
    with Terminal(crew.root, crew.environment) as terminal:
        terminal.shows("not sent yet, from the last time: to scout")
        terminal.press("m", "half a thought")
        terminal.shows("idle")


@pytest.mark.long
def test_a_death_shows_its_signal_and_one_key_resumes_the_agent(crew: Crew) -> None:
    crew.run("scout", "explore", "hello")
    with Terminal(crew.root, crew.environment) as terminal:
        terminal.shows("idle")
        crew.kill("scout", signal.SIGKILL)
        terminal.shows("SIGKILL")
        terminal.press("!", "scout · why")
        terminal.shows("killed by SIGKILL")
        terminal.child.send("r")
        eventually(lambda: agents.last_run(crew.agent("scout")) == 2, "the second run")
        terminal.shows("run 2")


@pytest.mark.long
def test_hiring_from_the_keyboard(crew: Crew) -> None:
    with Terminal(crew.root, crew.environment) as terminal:
        terminal.shows("n")
        terminal.press("n", "Hire an agent")
        terminal.child.send("\t")
        terminal.child.sendcontrol("s")
        terminal.shows("needs a prompt")


@pytest.mark.long
def test_the_example_prompts_work_on_the_line_to_the_lead(crew: Crew) -> None:
    """Here it is typed; `tests/cli/test_lead.py` says what each prompt leads to."""
    (crew.root / "s01_agent_loop.py").write_text("def agent_loop():\n    pass\n")
    crew.run("lead", "lead", "Hello", unsafe_no_sandbox=True)

    def sees(terminal: Terminal, prompt: str, reaches: Callable[[], object]) -> None:
        terminal.press("l", "to the lead")
        terminal.press(prompt, prompt[-12:])
        terminal.child.send("\r")
        eventually(reaches, prompt)

    def told(*words: str) -> bool:
        sent = mailbox.read(crew.directory, "operator").messages
        return any(all(word in message.content for word in words) for message in sent)

    def ended(name: str) -> bool:
        return (crew.root / f"{name}.txt").is_file() and crew.wait_for(name, "exited") is not None

    with Terminal(crew.root, crew.environment) as terminal:
        terminal.shows("lead")
        for prompt, reaches in (
            ('Create a team called "demo" for exploring this project.', lambda: told("The team is called demo now")),
            ('Spawn an explore agent named "scanner" to list all Python files.', lambda: told("s01_agent_loop.py")),
            ("List the team to see agent statuses.", lambda: told("- scanner (explore)", "I left out")),
            ("Who is on the team?", lambda: told("agents on the team")),
            (
                "Spawn alice as a backend dev. Ask her to create a file. Then request her shutdown.",
                lambda: ended("alice"),
            ),
            ("Have Carol create a file, then shut her down", lambda: ended("carol")),
            ('Broadcast "status update: phase 1 complete" to all teammates', lambda: told("phase 1 complete")),
            ("Shut everyone down.", lambda: [one.name for one in crew.view().agents if one.alive] == ["lead"]),
        ):
            sees(terminal, prompt, reaches)


@pytest.mark.long
def test_many_resizes_down_to_one_cell_do_no_harm(crew: Crew) -> None:
    crew.run("scout", "explore", "hello")
    with Terminal(crew.root, crew.environment) as terminal:
        terminal.shows("scout")
        for columns, lines in [(1, 1), (200, 60), (40, 10), (3, 80), (120, 1), (59, 24), (1, 1), (80, 24)]:
            terminal.resize(columns, lines)
        terminal.shows("scout")
        assert terminal.child.isalive()


@pytest.mark.long
def test_a_screen_comes_back_after_its_terminal_shrank_briefly(crew: Crew) -> None:
    with Terminal(crew.root, crew.environment) as terminal:
        terminal.shows("No agents hired yet")
        terminal.resize(1, 1)
        terminal.resize(80, 24)
        terminal.shows("No agents hired yet")


@pytest.mark.long
def test_the_windows_title_says_how_many_wait_and_is_given_back(crew: Crew) -> None:
    crew.run("scout", "explore", "hello")
    with Terminal(crew.root, crew.environment) as terminal:
        terminal.shows("idle")
        messages.acknowledge_results(crew.team, "scout")
        eventually(lambda: terminal.title == "default · crewboard", "the title of a quiet team")
        crew.kill("scout", signal.SIGKILL)
        eventually(lambda: terminal.title == "✖1 · default · crewboard", "the title of a team with a death")
        terminal.child.send("q")
        terminal.shows("default")
        eventually(lambda: not terminal.title, "the title gone")


@pytest.mark.long
@pytest.mark.linux("sandbox")
def test_the_screen_alone_leads_to_a_merged_change_without_a_key(tmp_path: Path) -> None:
    need_program("git")
    root = tmp_path / "project"
    root.mkdir()
    for line in ("init -q -b main --template=", "config user.name User", "config user.email user@example.invalid"):
        subprocess.run(["git", *line.split()], cwd=root, check=True)
    subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", "first"], cwd=root, check=True)
    try:
        with Terminal(root, clean_environment()) as terminal:
            terminal.shows("F  hires an agent on the offline model")
            terminal.press("F", "ready: ^s hires it")
            terminal.press("\x13", "1/3 writer waits for a yes. ! opens its plan")
            terminal.press("!", "2/3 Space reads on to the end, then a approves exactly this")
            terminal.press("G", "100% read")
            # The key works only when the page has been shown long enough, and then the agent works on.
            terminal.shows("a approve")
            while "2/3" in terminal.text:
                terminal.child.send("a")
            terminal.shows("3/3 8 shows its work, a merges it into your branch")
            assert not (root / "hello.md").exists()
            terminal.press("8", "merges cleanly")
            terminal.press("a", "would commit +1")
            terminal.press("a", "all merged")
            eventually(lambda: "3/3" not in terminal.text, "no more to do")
        assert (root / "hello.md").read_text() == "hello"
    finally:
        stop.delete(Team(TeamDirectory(root / ".crewboard/default")), now=True)


@pytest.mark.long
def test_one_key_shows_a_team_at_work_and_comes_back(tmp_path: Path) -> None:
    with Terminal(tmp_path, clean_environment()) as terminal:
        terminal.shows("No agents hired yet")
        terminal.press("O", "reviewer")
        terminal.press("q", "No agents hired yet")
        terminal.press("q", "opens the board again")


LATE_SIGNAL = """
import asyncio
from textual.drivers.linux_driver import LinuxDriver
continues = LinuxDriver._sigcont_application
LinuxDriver._sigcont_application = lambda driver, *_: asyncio.get_running_loop().call_soon(continues, driver)
"""
"""Lets SIGCONT act later, as where the system gives it to another thread than the first."""


@pytest.mark.long
@pytest.mark.parametrize("patch", ["", LATE_SIGNAL], ids=["", "late"])
def test_ctrl_z_suspends_until_the_shell_continues_it(tmp_path: Path, patch: str) -> None:
    with Terminal(tmp_path, {}, in_shell=True, patch=patch) as terminal:
        terminal.shows("No agents hired yet")
        eventually(lambda: "crewboard" in terminal.title, "the dashboard's title")
        terminal.child.sendcontrol("z")
        terminal.shows("Stopped")
        assert "crewboard" not in terminal.title
        terminal.press("echo $((6*7))\r", "42")
        terminal.child.send("fg\r")
        eventually(lambda: "Stopped" not in terminal.text and "live" in terminal.text, "the dashboard")
        eventually(lambda: "crewboard" in terminal.title, "the dashboard's title")
        terminal.press("?", "Keys that work here")
        # The first one closes the help.
        terminal.press("qq", "opens the board again")
        # Its process ends, too.
        terminal.press("echo $((7*7))\r", "49")


@pytest.mark.long
def test_ctrl_z_is_refused_where_nothing_would_continue_it(tmp_path: Path) -> None:
    with Terminal(tmp_path, {}) as terminal:
        terminal.shows("No agents hired yet")
        terminal.child.sendcontrol("z")
        terminal.shows("suspend: no shell here that would continue it")


@pytest.mark.long
@pytest.mark.parametrize(
    ("locale", "is_ascii"),
    [
        ("C", True),
        pytest.param("de_DE.ISO-8859-1", True, marks=pytest.mark.long),
        # It is installed where the terminal is, not here.
        pytest.param("xx_XX.UTF-8", False, marks=pytest.mark.long),
    ],
)
def test_the_locale_decides_whether_glyphs_are_ascii(tmp_path: Path, locale: str, is_ascii: bool) -> None:
    with Terminal(tmp_path, {"LC_ALL": locale}) as terminal:
        terminal.shows("No agents hired yet")
        terminal.shows("live")
        assert terminal.text.isascii() == is_ascii, terminal.text


@pytest.mark.long
def test_a_dashboard_that_breaks_does_not_end_as_if_it_was_left(tmp_path: Path) -> None:
    breaks = "import crewboard_tui.app as a; a.CrewboardApp._tick = lambda self: 1 / 0; "
    command = ["-I", "-c", f"{breaks}from crewboard_tui.cli import main; main()"]
    child = pexpect.spawn(sys.executable, command, cwd=str(tmp_path), dimensions=(24, 80), timeout=30)
    child.expect(pexpect.EOF)
    assert child.wait() == 70
    child.close()


@pytest.mark.long
def test_a_dashboard_that_is_told_to_end_gives_the_terminal_back(tmp_path: Path) -> None:
    with Terminal(tmp_path, {}) as terminal:
        terminal.shows("No agents hired yet")
        terminal.child.kill(signal.SIGTERM)
        terminal.child.expect(pexpect.EOF)
        assert b"\x1b[?1049l" in terminal.child.before
        assert terminal.child.wait() == 143
