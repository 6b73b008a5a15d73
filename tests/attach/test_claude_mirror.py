"""The mirror of a team of the real Claude Code, without a network: `make claude` installs it."""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crewboard import read_team
from crewboard.attach import delivery, places, teams
from crewboard.attach.mirror import MirrorThread
from crewboard.offline.reply import Reply
from crewboard.records.events import ToolResult
from crewboard.store import journal, mailbox
from crewboard.store.layout import TeamDirectory
from tests.attach.claude import VERSIONS, ScriptedApi, session, text_of
from tests.attach.test_claude import TIMEOUT, Messages, World, calls, turn_of, type_prompt, world
from tests.crew import eventually
from tests.model import says
from tests.terminal.screen import close

__all__ = ["world"]

pytestmark = pytest.mark.claude

ROUNDS, EACH = 5, 8

NOT_SENT = '"success":false'
"""In the result of a letter that Claude Code gave up, because the inbox stayed locked by others."""


def unsent(said: Messages, texts: Iterable[str]) -> list[str]:
    """Return the letters that are left to be sent: also those that were given up."""
    blocks = [block for each in said for block in each["content"] if isinstance(block, dict)]
    calls_of = {block["id"]: block["input"] for block in blocks if block.get("name") == "SendMessage"}
    sent = {
        calls_of[ident]["message"]
        for block in blocks
        if (ident := block.get("tool_use_id")) in calls_of and NOT_SENT not in text_of(block["content"])
    }
    return [text for text in texts if text not in sent]


def member(to: str, mark: str, is_watched: threading.Event) -> Any:  # noqa: ANN401  a script
    def script(said: Messages) -> Reply:
        assert is_watched.wait(TIMEOUT)
        if turn_of(said) == 0:
            return calls("ToolSearch", query="select:SendMessage", max_results=9)
        given = ({"to": to, "summary": "x", "message": text} for text in unsent(said, expected(mark))[:EACH])
        round_ = [{"type": "tool_use", "name": "SendMessage", "input": each} for each in given]
        return Reply(round_) if round_ else says(f"{mark} is done")

    return script


def lead_of(world: World) -> Any:  # noqa: ANN401  a script
    is_oldest = world.version == VERSIONS[0]

    def script(said: Messages) -> Reply:
        steps = [calls("TeamCreate", team_name="paint", description="Painters")] if is_oldest else []
        more = {"team_name": "paint"} if is_oldest else {}
        steps += [
            calls("Agent", description=name, prompt=f"#script:{name}# go", subagent_type="general-purpose",
                  name=name, **more)
            # The recipient first.
            for name in ("beta", "alpha")
        ]  # fmt: skip
        at = turn_of(said)
        return steps[at] if at < len(steps) else says("done")

    return script


@pytest.mark.timeout(600)
def test_a_team_is_mirrored_as_it_writes_its_files(world: World) -> None:
    is_watched = threading.Event()
    with (
        ScriptedApi({
            "lead": lead_of(world), "alpha": member("beta", "a", is_watched),
            "beta": member("team-lead", "b", is_watched),
        }) as api,
        session(world.version, world.home, world.project, api, world.proxy) as terminal,
    ):  # fmt: skip
        type_prompt(world, terminal, "#script:lead# build")
        found = eventually(world.team_of_two, "a teammate", TIMEOUT)
        directory = teams.attach(world.project, found, 1.0)
        thread = MirrorThread(directory)
        thread.start()
        inbox = places.Places(world.home / ".claude").inboxes(found.name) / "team-lead.json"
        inbox.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Versions before report success also of what they did not write.
            if world.version == VERSIONS[-1]:
                with delivery._locked(inbox):
                    is_watched.set()
                    eventually(lambda: gave_up(directory, inbox), "a letter that Claude Code gives up", TIMEOUT)
            is_watched.set()
            wait_for_letters(world, directory, "beta", "a")
            wait_for_letters(world, directory, "team-lead", "b")
            eventually(lambda: {a.state for a in read_team(directory).agents} == {"idle"}, "a team at rest", TIMEOUT)
            view = read_team(directory)
            assert [agent.name for agent in view.agents] == ["team-lead", "beta", "alpha"]
            assert all(agent.alive for agent in view.agents)
            assert view.attached is not None
            assert view.attached.version == world.version
            eventually(lambda: in_transcripts(world) == in_mirror(directory), "the tokens of the transcripts", TIMEOUT)
            close(terminal)
            eventually(lambda: not any(a.alive for a in read_team(directory).agents), "the end of the team", TIMEOUT)
        finally:
            thread.stop()


def gave_up(team: TeamDirectory, inbox: Path) -> bool:
    """Return True if beta failed to write into an inbox, and keep that locked."""
    # Else Claude Code takes the lock of a process that was killed.
    os.utime(f"{inbox}.lock")
    results = (event for event, _ in journal.read(team.agent("beta").journal) if isinstance(event, ToolResult))
    return any(NOT_SENT in result.content for result in results)


def sent(team: TeamDirectory, to: str, mark: str) -> Counter[str]:
    found = [message.content for message in mailbox.read(team, to).messages if message.type == "message"]
    return Counter(text for text in found if text.startswith(mark) and "<b>" in text)


def wait_for_letters(world: World, team: TeamDirectory, to: str, mark: str) -> None:
    """Wait for all letters: however slow the machine is, one comes after the other."""
    seen = Counter[str]()

    def is_changed() -> bool:
        return sent(team, to, mark) != seen or not differs()

    def differs() -> list[str]:
        # A lead that could not note what it has read reads it again.
        wanted, found = expected(mark) | entered(world, mark), sent(team, to, mark)
        return [*(f"{text} is missing" for text in wanted - found), *(f"{text} is too many" for text in found - wanted)]

    while differs():
        seen = sent(team, to, mark)
        try:
            eventually(is_changed, f"a further letter to {to}", TIMEOUT)
        except AssertionError as error:
            raise AssertionError(f"{error}: {differs()}") from None


def entered(world: World, mark: str) -> Counter[str]:
    """Return how often each letter stands in a conversation, by Claude Code's own transcripts."""
    said = {
        record["uuid"]: text_of(record["message"]["content"])
        for record in transcripts(world)
        if record.get("type") == "user"
    }
    return Counter(
        {
            letter: sum(text.count(f"\n{letter}\n</teammate-message>") for text in said.values())
            for letter in expected(mark)
        }
    )


def expected(mark: str) -> Counter[str]:
    return Counter(f"{mark}{at}-{n} <b> & c" for at in range(1, ROUNDS + 1) for n in range(EACH))


def in_mirror(team: TeamDirectory) -> int:
    return sum(agent.status.tokens.total for agent in read_team(team).agents)


def in_transcripts(world: World) -> int:
    """Return the tokens of all calls, by Claude Code's own transcripts."""
    calls_of: dict[str, int] = {}
    for record in transcripts(world):
        usage = record.get("message", {}).get("usage") if record.get("type") == "assistant" else None
        if usage:
            calls_of[record["message"]["id"]] = sum(
                usage[kind] for kind in ("input_tokens", "output_tokens", "cache_read_input_tokens")
            )
    return sum(calls_of.values())


def transcripts(world: World) -> Iterator[dict[str, Any]]:
    """Yield the records of all of Claude Code's own transcripts."""
    for path in (world.home / ".claude" / "projects").rglob("*.jsonl"):
        # Not the line that is being written.
        yield from map(json.loads, path.read_text().split("\n")[:-1])
