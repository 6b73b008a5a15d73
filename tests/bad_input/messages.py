"""Lines of mailboxes, which any program may append."""

from crewboard.store import mailbox
from tests.bad_input.bench import Bench, Entry, refused, set_aside, taken
from tests.store.raw_mail import append, line


def _huge_body(bench: Bench) -> None:
    body = "x" * 1_000_000
    assert bench.cli("send", "scout", body).code == 0
    (message,) = mailbox.read(bench.team, "scout").messages
    assert len(message.content) < 3000
    assert (bench.team.path / str(message.metadata["body"])).read_text() == body


def _half_a_line(bench: Bench) -> None:
    append(bench.team.inbox("scout").on_disk, line("torn")[:40])
    assert bench.cli("send", "scout", "behind it").code == 0
    assert bench.inbox() == ["behind it"]
    assert bench.see().damaged == 1


def _foreign_behind_half_a_line(bench: Bench) -> None:
    append(bench.team.inbox("scout").on_disk, line("torn")[:40])
    bench.receive(line("whole", "behind it"))
    assert bench.inbox() == ["behind it"]


def _said_twice(bench: Bench) -> None:
    bench.receive(line("m", "once"), line("m", "once"), line("m", "or otherwise"))
    assert bench.inbox() == ["once"]
    assert bench.see().unread == 1


def _unknown_type(bench: Bench) -> None:
    bench.receive(line("m", "who knows", type="horoscope"))
    assert bench.inbox() == ["who knows"]
    (message,) = mailbox.read(bench.team, "scout").messages
    assert not message.enters
    assert not message.starts_work


def _broken_argument(bench: Bench) -> None:
    assert bench.cli("send", "scout", "caf\udce9").code == 0
    assert bench.inbox() == ["caf?"]


MESSAGES = (
    Entry("messages", "an empty text", "refuses it (2)", refused(2, "empty", "send", "scout", " \n")),
    Entry("messages", "a broadcast of nothing", "refuses it (2)", refused(2, "empty", "broadcast", "")),
    Entry("messages", "a body of a megabyte", "keeps it in results/, and points at it", _huge_body),
    Entry("messages", "an argument that is no UTF-8", "sends it with marks", _broken_argument),
    Entry("messages", "empty lines", "ignores them", taken(b"\n\n  \n" + line("m", "text"), "text")),
    Entry("messages", "a line with Windows' ending", "takes it", taken(line("m", "text") + b"\r", "text")),
    Entry("messages", "a line with a byte order mark", "takes it", taken(b"\xef\xbb\xbf" + line("m", "text"), "text")),
    Entry("messages", "unknown fields", "takes it", taken(line("m", "text", mood="good"), "text")),
    Entry("messages", "a lone surrogate, escaped", "takes it with a mark", taken(line("m", "a\ud800b"), "a?b")),
    Entry(
        "messages",
        "a lone surrogate as bytes",
        "sets the line aside",
        set_aside(line("m", "XX").replace(b"XX", b"\xed\xa0\x80")),
    ),
    Entry("messages", "binary", "sets the line aside", set_aside(bytes(range(256)).replace(b"\n", b""))),
    Entry(
        "messages",
        "text of another encoding",
        "sets the line aside",
        set_aside(line("m", "XX").replace(b"XX", b"caf\xe9")),
    ),
    Entry("messages", "JSON 5,000 levels deep", "sets the line aside", set_aside(b'{"a":' * 5000 + b"1" + b"}" * 5000)),
    Entry(
        "messages",
        "metadata 40 levels deep",
        "sets the line aside",
        set_aside(line("m", metadata={"a": 1}).replace(b'{"a": 1}', b'{"a":' + b"[" * 40 + b"]" * 40 + b"}")),
    ),
    Entry(
        "messages",
        "an unknown field 100 levels deep",
        "sets the line aside, so that it poisons no journal",
        set_aside(line("m", x=1).replace(b'"x": 1', b'"x": ' + b"[" * 100 + b"]" * 100)),
    ),
    Entry("messages", "a line of 300 KiB", "sets it aside", set_aside(line("m", "x" * 300_000))),
    Entry("messages", "NaN", "sets the line aside", set_aside(line("m", metadata={"x": float("nan")}))),
    Entry(
        "messages",
        "a number beyond all numbers",
        "sets the line aside, so that it poisons no journal",
        set_aside(line("m", metadata={"x": 1}).replace(b'"x": 1', b'"x": 1e999')),
    ),
    Entry(
        "messages",
        "a number of 5,000 digits",
        "sets the line aside",
        set_aside(line("m", metadata={"x": 1}).replace(b'"x": 1', b'"x": ' + b"9" * 5000)),
    ),
    Entry("messages", "a list", "sets the line aside", set_aside(b"[1, 2, 3]")),
    Entry(
        "messages", "a message without an id", "takes it", taken(line("m", "text").replace(b'"id": "m", ', b""), "text")
    ),
    Entry("messages", "an id of 65 characters", "sets the line aside", set_aside(line("x" * 65))),
    Entry(
        "messages",
        "an author that is a path",
        "sets the line aside",
        set_aside(line("m", **{"from": "../../etc/passwd"})),
    ),
    Entry("messages", "a version to come", "sets the line aside", set_aside(line("m", v=2))),
    Entry("messages", "half a line of a killed writer", "seals it; the next message is whole", _half_a_line),
    Entry(
        "messages",
        "a line of another program behind half a line",
        "finds the message in it",
        _foreign_behind_half_a_line,
    ),
    Entry("messages", "the same id three times", "delivers it once", _said_twice),
    Entry("messages", "an unknown type", "shows it, and does not act on it", _unknown_type),
)
