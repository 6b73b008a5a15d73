"""Untrusted text on its way to a terminal."""

from crewboard.store import roster, tasks
from tests.bad_input.bench import Bench, Entry, shown


def _log_with_escapes(bench: Bench) -> None:
    bench.team.agent("scout").log.write_bytes(b"\x1b]0;owned\x07plain \xff\x9b31m \x1b[2J\n")
    ran = bench.cli("log", "scout")
    assert "\x1b" not in ran.out
    assert "\x9b" not in ran.out
    assert "plain" in ran.out


def _mistake_with_escapes(bench: Bench) -> None:
    ran = bench.cli("send", "\x1b]0;owned\x07", "x")
    ran.refused(2, "no agent of this team")
    assert "\x1b" not in ran.err
    assert "\x07" not in ran.err


def _odd_columns(bench: Bench) -> None:
    tasks.add(bench.team, "a subject that is rather long " * 20, 1.0)
    for columns in ("0", "1", "-5", "nonsense", "100000"):
        assert bench.cli("status", COLUMNS=columns).code == 0
        assert bench.cli("tasks", COLUMNS=columns).code == 0


def _role_with_newlines(bench: Bench) -> None:
    roster.change(bench.team, lambda config: setattr(config.members[0], "role", "one\ntwo\x1b[31m\r"))
    ran = bench.cli("status", COLUMNS="200")
    assert ran.code == 0
    assert "\x1b" not in ran.out
    assert "\r" not in ran.out
    assert len([text for text in ran.out.splitlines() if "scout" in text]) == 1


TERMINAL = (
    Entry("terminal", "text that clears the screen", "shows marks", shown("a\x1b[2J\x1b[Hb", "␛[2J", hidden="\x1b")),
    Entry(
        "terminal", "text that sets the title", "shows marks", shown("a\x1b]0;owned\x07b", "␛]0;owned␇", hidden="\x1b")
    ),
    Entry(
        "terminal",
        "text that writes to the clipboard",
        "shows marks",
        shown("\x1b]52;c;cm0gLXJm\x1b\\", "␛]52", hidden="\x1b"),
    ),
    Entry(
        "terminal",
        "a link that says one thing and goes elsewhere",
        "shows both",
        shown("\x1b]8;;http://evil\x1b\\safe\x1b]8;;\x1b\\", "http://evil", hidden="\x1b"),
    ),
    Entry("terminal", "controls of one character (C1)", "shows marks", shown("a\x9b2Jb", "<U+009B>", hidden="\x9b")),
    Entry("terminal", "a bell, a backspace, a delete", "shows marks", shown("a\x07\x08\x7fb", "␇␈␡", hidden="\x07")),
    Entry(
        "terminal",
        "a carriage return that overwrites a line",
        "shows a mark",
        shown("rm -rf /\rls", "␍ls", hidden="\r"),
    ),
    Entry("terminal", "a NUL", "shows a mark", shown("a\x00b", "a␀b", hidden="\x00")),
    Entry(
        "terminal",
        "text that turns the direction of what follows",
        "shows marks",
        shown("a\u202egnp.exe", "<U+202E>", hidden="\u202e"),
    ),
    Entry(
        "terminal", "characters without a width", "shows marks", shown("pass\u200bword", "<U+200B>", hidden="\u200b")
    ),
    Entry(
        "terminal",
        "line separators that are no newlines",
        "shows marks",
        shown("a\u2028b", "<U+2028>", hidden="\u2028"),
    ),
    Entry(
        "terminal",
        "markup of the dashboard's own kind",
        "shows it as it is",
        shown("[/oops] [@click=app.quit]x[/]", "[@click=app.quit]x[/]", hidden="\x1b"),
    ),
    Entry("terminal", "a log full of escape sequences", "shows marks", _log_with_escapes),
    Entry("terminal", "a mistake that is an escape sequence", "names it with marks (2)", _mistake_with_escapes),
    Entry("terminal", "a role of two lines", "shows one", _role_with_newlines),
    Entry("terminal", "a terminal of no columns, or a hundred thousand", "prints all the same", _odd_columns),
)
