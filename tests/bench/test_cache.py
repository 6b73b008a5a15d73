"""The cost of fixed runs, and how much of their input comes from the prompt cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from crewboard import operations
from crewboard.commands import answers, hire, stop
from crewboard.commands.hire import Assignment
from crewboard.offline.reply import Reply
from crewboard.records.agents import Tokens
from crewboard.records.events import Reply as Kept
from crewboard.records.events import Summary, ToolResult
from crewboard.records.requests import Request
from tests.bench.figures import Figure, Figures
from tests.crew import Crew
from tests.model import ModelServer, calls, looks, says
from tests.preloaded import TAKEN_FOR_THE_API, patched

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench")]

SOURCE = "\n".join(f"def step_{number}(state): return state.after({number})" for number in range(60))
TURNS = [
    calls("glob", pattern="*.py"),
    calls("read_file", path="steps.py"),
    calls("grep", pattern="step_7", path="."),
    calls("edit_file", path="steps.py", old_text="state.after(7)", new_text="state.after(8)"),
    calls("read_file", path="steps.py", offset=1, limit=20),
    calls("bash", command="python3 -m py_compile steps.py && echo compiled"),
    calls("ask_operator", question="Is eight right?"),
    calls("write_file", path="NOTES.md", content="step_7 goes on with eight.\n" * 10),
    calls("bash", command="cat NOTES.md"),
    says("Step 7 goes on with eight; the file compiles."),
]
"""Each is a reply, so a request: reading, changing, running, and a question to the user."""

LEAST = 0.85
"""The part of all input that must come from the cache. A run that begins anew at its resume has less."""

PROMPT = "Let step 7 go on with eight."


class Earlier(NamedTuple):
    """The tokens and the cents of a run as it was."""

    read: int
    written: int
    output: int
    cents: float


EARLIER = "afcc9e14"
"""The commit before conversations only grew, of 23 November 2026. Its worker made the same turns with today's offline
model. Its system prompt and its tools were shorter, so that a run at a stretch cost less.
"""
AT_A_STRETCH = Earlier(read=32_910, written=4_609, output=251, cents=1.732)
RESUMED = Earlier(read=31_262, written=6_257, output=251, cents=2.128)
"""With thinking that the API does not check, as for accounts made before 31 August 2026. For others this run could not
end: its eighth request, the first after the resume, was refused with 400, and so was each later one.
"""


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Make a team on the API in a project with a file to change and one with conventions."""
    with patched(TAKEN_FOR_THE_API), ModelServer() as server:
        crew = Crew(tmp_path, server)
        (tmp_path / "steps.py").write_text(SOURCE)
        (tmp_path / "CLAUDE.md").write_text("Run the compiler before you say that it works.\n")
        try:
            yield crew
        finally:
            crew.end()


def ask(crew: Crew) -> tuple[Assignment, Request]:
    """Let an agent work until it asks its question."""
    crew.model.give("coder", *TURNS)
    hired = crew.hire("coder", "code", PROMPT, unsafe_no_sandbox=True)
    return hired, crew.pending("question", "coder")


def finish(crew: Crew, hired: Assignment) -> tuple[Tokens, float]:
    """Wait for the end of the ten turns; return what they used, and their cost in dollars."""
    assert crew.answer(hired).text == TURNS[-1].content[0]["text"]
    results = [event for event in crew.events("coder") if isinstance(event, ToolResult)]
    assert not [result.content for result in results if result.is_error]
    replies = [event for event in crew.events("coder") if isinstance(event, Kept)]
    assert len(replies) == len(crew.model.requests) == len(TURNS)
    used = sum((reply.usage for reply in replies), Tokens())
    return used, sum(reply.cost_usd or 0 for reply in replies)


def add(figures: Figures, run: str, used: Tokens, cost: float, earlier: Earlier) -> Figure:
    """Add the figures of a run. They are counts: they do not depend on the machine's speed."""
    figures.add(f"{run}: written to the cache", used.cache_write, "tokens", (EARLIER, earlier.written))
    figures.add(f"{run}: neither", used.input, "tokens")
    figures.add(f"{run}: output", used.output, "tokens", (EARLIER, earlier.output))
    figures.add(f"{run}: cost at the list price", cost * 100, "cents", (EARLIER, earlier.cents))
    before = ("all its input", earlier.read + earlier.written)
    figures.add(f"{run}: input from the cache, {EARLIER}", earlier.read, "tokens", before)
    return figures.add(
        f"{run}: input from the cache", used.cache_read, "tokens", ("all input", used.prompt), target=LEAST,
        more_is_better=True,
    )  # fmt: skip


def test_ten_turns_at_a_stretch(figures: Figures, crew: Crew) -> None:
    hired, question = ask(crew)
    answers.answer(crew.team, question.id, "yes")
    assert add(figures, "ten turns", *finish(crew, hired), AT_A_STRETCH).within()


def test_ten_turns_with_a_pause_and_a_resume(figures: Figures, crew: Crew) -> None:
    hired, question = ask(crew)
    stop.stop_now(crew.team, "coder")
    hire.resume(crew.team, "coder")
    operations.pause(crew.team, "coder")
    answers.answer(crew.team, question.id, "yes")
    crew.wait_for("coder", "paused")
    operations.unpause(crew.team, "coder")
    assert add(figures, "the same, stopped, resumed and paused", *finish(crew, hired), RESUMED).within()


def test_a_summary_of_a_long_conversation(figures: Figures, tmp_path: Path) -> None:
    findings = [Reply([{"type": "text", "text": "word " * 800}, *look.content]) for look in looks(20)]
    with ModelServer(script={"coder": [*findings, says("the end")]}, window=40_000) as server:
        crew = Crew(tmp_path, server)
        try:
            assert crew.run("coder", "explore", "Look everywhere").text == "the end"
            summary = next(event for event in crew.events("coder") if isinstance(event, Summary))
        finally:
            crew.end()
    used = summary.usage
    figures.add("a summary: written to the cache", used.cache_write, "tokens")
    figures.add("a summary: neither", used.input, "tokens")
    assert figures.add(
        "a summary: input from the cache", used.cache_read, "tokens", ("all input", used.prompt), target=LEAST,
        more_is_better=True,
    ).within()  # fmt: skip
