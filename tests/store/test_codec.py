"""Encoding and decoding of records: what was written can be read, and what was read can be written again."""

import json
import random
import subprocess
import sys
from typing import Any

import pytest

from crewboard.errors import BadDataError
from crewboard.records.agents import Spec, Tokens
from crewboard.records.base import Record
from crewboard.records.events import Intake, Reply, Sent
from crewboard.records.messages import Message
from crewboard.records.team import Config, Task
from crewboard.store import codec

WHOLE: dict[str, Any] = {
    "v": 1, "id": "m1", "ts": 1.5, "from": "scout", "to": "lead", "type": "message", "content": "hello",
    "metadata": {},
}  # fmt: skip


def message(**fields: Any) -> bytes:
    return json.dumps({**WHOLE, **fields}).encode()


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_a_record_comes_back_as_it_was() -> None:
    task = Task(id=3, subject="naïve 🦊 \u2028 \x00 \x7f", blocked_by=[1, 2])
    assert codec.decode(codec.encode(task), Task) == task


def test_a_line_is_ascii_and_one_line() -> None:
    line = codec.encode(Task(id=1, subject="a\nb\r\u2028\u2029\x85\ud800é"))
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1


def test_fields_of_a_later_version_survive() -> None:
    read = codec.decode(message(mood="good", seen={"by": ["a"]}), Message)
    again = json.loads(codec.encode(read))
    assert (again["mood"], again["seen"]) == ("good", {"by": ["a"]})


@pytest.mark.parametrize(
    ("model", "known", "path"),
    [
        (Config, {"name": "default", "members": [{"name": "scout", "type": "code"}]}, ["members", 0]),
        (Config, {"name": "default", "removed": {"scout": {"tokens": {"input": 1}}}}, ["removed", "scout", "tokens"]),
        (
            Spec,
            {"prompt": "x", "prompt_id": "p", "type": "code", "worktree": {"branch": "b", "base": "c"}},
            ["worktree"],
        ),
        (Sent, {"kind": "sent", "ts": 1, "message": WHOLE}, ["message"]),
        (Intake, {"kind": "intake", "ts": 1, "messages": [WHOLE, {**WHOLE, "content": "\u00e9"}]}, ["messages", 1]),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_fields_of_a_later_version_survive_inside_others(
    model: type[Record], known: dict[str, Any], path: list[Any]
) -> None:
    whole = json.loads(json.dumps(known))
    inner = whole
    for step in path:
        inner = inner[step]
    inner.update({"names": [1], "from_": {"later": True}, "été": None})
    data = json.dumps(whole).encode()
    for read in (codec.decode(data, model), codec.decode(data, model).replace()):
        again = json.loads(codec.encode(read, indent=1))
        for step in path:
            again = again[step]
        assert {key: again[key] for key in inner} == inner


def test_a_changed_copy_keeps_the_fields_of_a_later_version() -> None:
    read = codec.decode(message(mood="good"), Message)
    assert read.replace(content="bye").as_dict() == {**WHOLE, "content": "bye", "mood": "good"}
    assert read.content == "hello"
    with pytest.raises(TypeError, match="a Message has no field 'text'"):
        read.replace(text="bye")


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("subject", ["plain", "naïve"])
def test_records_are_written_as_json_of_the_standard_library(subject: str, indent: int | None) -> None:
    task = Task(id=3, subject=subject, blocked_by=[1, 2], created_at=1.5)
    assert codec.encode(task, indent=indent).decode() == json.dumps(task.as_dict(), indent=indent) + "\n"


@pytest.mark.parametrize(("field", "value"), [("owner", "No Good"), ("created_at", -1), ("subject", None), ("id", 0)])
def test_an_invalid_record_is_not_written(field: str, value: object) -> None:
    task = Task(id=3, subject="x")
    setattr(task, field, value)
    with pytest.raises(BadDataError, match=f"a Task cannot be written: {field}: "):
        codec.encode(task)


def test_numbers_may_be_texts() -> None:
    assert codec.decode(message(ts="1.5"), Message) == codec.decode(message(), Message)


@pytest.mark.parametrize(
    "data",
    [
        b"", b" ", b"{", b"null", b"[]", b'"text"', b"17", b"\x00\x01\x02", b"\xff\xfe{\x00}\x00", b"{'id': 1}",
        b'{"id": NaN}', message()[:-1], message() + b"}", message() + message(),
        message(metadata={"x": float("nan")}), message(metadata={"x": float("-inf")}),
        message()[:-1] + b', "x": 1e999}', message()[:-1] + b', "x": ' + b"9" * 5000 + b"}",
        message(content="caf\xe9").replace(b"\\u00e9", b"\xe9"), message().replace(b"hello", b"\xed\xa0\x80"),
        b"[" * 100_000, b'{"a":' * 100_000,
    ],
    ids=lambda data: repr(data[:24]),
)  # fmt: skip
def test_invalid_json_is_bad_data(data: bytes) -> None:
    with pytest.raises(BadDataError):
        codec.decode(data, Message)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"v": 2}, "v"),
        ({"id": ""}, "id"),
        ({"id": "x" * 65}, "id"),
        ({"id": 5}, "id"),
        ({"ts": -1}, "ts"),
        ({"ts": 1e12}, "ts"),
        ({"ts": "soon"}, "ts"),
        ({"from": "../../etc"}, "from"),
        ({"to": "Scout"}, "to"),
        ({"to": "scout\n"}, "to"),
        ({"type": "two words"}, "type"),
        ({"type": ""}, "type"),
        ({"content": None}, "content"),
        ({"content": ["a"]}, "content"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": nested(40)}}, "metadata"),
    ],
)
def test_an_invalid_message_is_an_error_that_names_the_field(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadDataError, match=rf"^{complaint}"):
        codec.decode(message(**fields), Message)


@pytest.mark.parametrize("missing", ["id", "ts", "from", "to", "type", "content"])
def test_a_message_that_lacks_a_field_is_bad_data(missing: str) -> None:
    data = json.dumps({key: value for key, value in WHOLE.items() if key != missing}).encode()
    with pytest.raises(BadDataError, match="Field required"):
        codec.decode(data, Message)


def test_optional_fields_may_be_missing() -> None:
    data = json.dumps({key: value for key, value in WHOLE.items() if key not in ("v", "metadata")}).encode()
    assert codec.decode(data, Message).content == "hello"


@pytest.mark.parametrize("depth", [codec.MAX_DEPTH, 300, 900])
def test_a_message_nested_too_deeply_is_refused(depth: int) -> None:
    with pytest.raises(BadDataError, match="nested deeper"):
        codec.decode(message(later=nested(depth)), Message)


def test_a_validation_error_is_short() -> None:
    with pytest.raises(BadDataError) as caught:
        codec.decode(message(metadata={"a" * 500: nested(40)}), Message)
    assert len(str(caught.value)) <= 120


@pytest.mark.parametrize("where", ["content", "id"])
def test_lone_surrogates_become_marks_that_every_encoding_has(where: str) -> None:
    read = codec.decode(message(**{where: "a\ud800b"}), Message)
    assert getattr(read, "content" if where == "content" else "id") == "a?b"
    codec.encode(read).decode("utf-8")


def test_pairs_of_surrogates_are_characters() -> None:
    assert codec.decode(message(content="🦊"), Message).content == "🦊"


def test_a_byte_order_mark_is_ignored() -> None:
    assert codec.decode(b"\xef\xbb\xbf" + message(), Message).id == "m1"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), nested(100), {1, 2}])
def test_a_value_that_json_cannot_express_is_not_written(value: object) -> None:
    reply = Reply(ts=1, content=[{"type": "text", "text": value}], stop_reason="end_turn", usage=Tokens())
    with pytest.raises(BadDataError):
        codec.encode(reply)


def test_everything_that_can_be_read_can_be_written() -> None:
    """Check lines with random damage: each is refused, or is equal after it was written and read again."""
    chance = random.Random(4)
    whole = message(metadata={"a": [1, 2.5, None, "x"]}, content="some \\u00e9 text \ud83e\udd8a")
    taken = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(data))
            data[place : place + chance.randint(0, 2)] = chance.randbytes(chance.randint(0, 2))
        try:
            read = codec.decode(bytes(data), Message)
        except BadDataError:
            continue
        taken += 1
        assert codec.decode(codec.encode(read), Message) == read
    assert taken > 100


def test_an_event_is_read_by_its_kind() -> None:
    line = codec.encode(Reply(ts=1, content=[], stop_reason="end_turn", usage=Tokens()))
    assert isinstance(codec.decode_event(line), Reply)
    for damaged in (b"{}", b'{"kind": "other"}', b'{"kind": ["reply"]}', b"[]", line[:-2], b'{"kind": "reply"}'):
        with pytest.raises(BadDataError):
            codec.decode_event(damaged)


READERS = """
import sys, threading
import msgspec
from typing import Optional, Union
from crewboard.records.base import convert, decoder

class Part0(msgspec.Struct):
    number: "Optional[int]" = 0

for at in range(1, 30):
    exec(
        f"class Part{at}(msgspec.Struct):\\n"
        f"    one: 'Optional[Part{at - 1}]' = None\\n"
        f"    many: 'dict[str, Optional[Part{at - 1}]]' = {{}}\\n"
        f"    others: 'list[Union[int, str, None]]' = []\\n"
    )

sys.setswitchinterval(1e-6)
start, last = threading.Barrier(8), Part29

def read(reads):
    start.wait()
    reads()

pairs = [lambda: decoder(last).decode(b'{"one": {"many": {}}}'), lambda: convert({"one": {"many": {}}}, last)] * 4
threads = [threading.Thread(target=read, args=(each,)) for each in pairs]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def test_threads_that_read_a_type_first_at_the_same_time_do_not_end_the_process() -> None:
    ended = subprocess.run([sys.executable, "-I", "-c", READERS], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
