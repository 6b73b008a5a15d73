"""The terminal title, and the notifications of new needs."""

import pytest

from crewboard.commands import messages
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import TeamView
from crewboard.records.agents import Status
from crewboard_tui.notifications import APART, BELL, Notify, TerminalNotifications, notification
from crewboard_tui.settings import Settings
from tests.frozen import Frozen
from tests.tui.stage import opened


class Ear:
    """The output to the terminal, with a clock that the test moves."""

    def __init__(self, frozen: Frozen, notify: Notify = "bell", *, ascii_only: bool = False) -> None:
        self.frozen = frozen
        self.written: list[str] = []
        self.now = 100.0
        self.outside = TerminalNotifications(
            self.written.append, notify=notify, ascii_only=ascii_only, clock=lambda: self.now
        )
        self.outside.read(self.view())

    def view(self) -> TeamView:
        return TeamReader(self.frozen.directory, clock=self.frozen.team.now, probe=self.frozen.probe).read()

    def asked(self, ident: str, question: str = "which?") -> None:
        self.frozen.asks(ident, "question", "api", 1, {"question": question})
        self.outside.read(self.view())

    @property
    def rang(self) -> int:
        return self.written.count(BELL)


def test_the_title_counts_needs_and_is_written_only_on_change(frozen: Frozen) -> None:
    ear = Ear(frozen)
    ear.outside.read(ear.view())
    (title,) = ear.written
    assert title == "\x1b[22;2t\x1b]2;✖1 ▲2 ◆1 ↻1 · demo · crewboard\x1b\\"
    messages.acknowledge(frozen.team, "parser")
    ear.outside.read(ear.view())
    assert ear.written[1] == "\x1b]2;▲2 ◆1 ↻1 · demo · crewboard\x1b\\"
    ear.outside.restore()
    assert ear.written[2] == "\x1b]2;\x1b\\\x1b[23;2t"


def test_an_ascii_title(frozen: Frozen) -> None:
    assert "]2;X1 A2 !1 L1 - demo - crewboard" in Ear(frozen, ascii_only=True).written[0]


def test_what_waits_at_the_start_is_no_news(frozen: Frozen) -> None:
    assert Ear(frozen).rang == 0


def test_what_is_new_rings_once_and_a_burst_rings_twice(frozen: Frozen) -> None:
    ear = Ear(frozen)
    for ident in ("q-1", "q-2", "q-3"):
        ear.asked(ident)
    assert ear.rang == 1
    ear.now += APART
    ear.outside.tick()
    ear.outside.tick()
    assert ear.rang == 2


def test_off_is_silent(frozen: Frozen) -> None:
    ear = Ear(frozen, "off")
    ear.asked("q-1")
    assert ear.rang == 0


def test_a_notification_cannot_be_broken_out_of(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMUX", "VTE_VERSION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    ear = Ear(frozen, "desktop")
    ear.asked("q-1", "a\x1b\\b\x07c\x9cd;e\nf")
    told = ear.written[-1]
    assert told.startswith("\x1b]9;api asks: a")
    body = told.removeprefix("\x1b]9;").removesuffix("\x1b\\")
    assert body.isprintable()
    assert ";" not in body


def test_a_notification_speaks_the_terminals_tongue() -> None:
    assert notification("x", {"VTE_VERSION": "7600"}) == "\x1b]777;notify;crewboard;x\x1b\\"
    assert notification("x", {"TMUX": "/tmp/t"}) == "\x1bPtmux;\x1b\x1b]9;x\x1b\x1b\\\x1b\\"


def test_a_long_notification_says_that_it_was_cut() -> None:
    assert notification("x" * 130, {}) == f"\x1b]9;{'x' * 119}…\x1b\\"


@pytest.mark.long
async def test_the_palette_switches_the_way_of_telling(frozen: Frozen) -> None:
    async with opened(frozen, settings=Settings(notify="off")) as stage:
        await stage.press(":")
        await stage.write("notify")
        await stage.sees("set notifications: off, bell, desktop")
        await stage.until(lambda: all(each.is_finished for each in stage.app.workers), "the end of the search")
        await stage.press("down", "enter")
        await stage.until(lambda: stage.app.outside.notify == "bell", "the bell")
        await stage.sees("Notifications: terminal bell")


async def test_a_setting_that_means_nothing_is_named(frozen: Frozen) -> None:
    settings = Settings.read({"CREWBOARD_NOTIFY": "loud"})
    async with opened(frozen, settings=settings) as stage:
        await stage.sees("CREWBOARD_NOTIFY=loud is invalid; use one of off, bell, desktop")


def test_a_loop_that_goes_on_notifies_again_after_the_pause(frozen: Frozen) -> None:
    ear = Ear(frozen, "desktop")
    ear.asked("q-1")
    for repeats in (5, 6):
        status = frozen.directory.agent("perf").status
        status.save(_repeating(status.load(), repeats))
        ear.outside.read(ear.view())
    ear.now += APART
    ear.outside.tick()
    assert "×6" in ear.written[-1], "as it is by now"


def _repeating(status: Status | None, times: int) -> Status:
    assert status is not None
    return status.replace(repeats=times)
