"""MCP servers: accepted by the user, held in by the sandbox, and their tools gated, asked for and journalled."""

import ast
import asyncio
import contextlib
import json
import re
import shlex
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crewboard import mcp_servers, redaction, type_files
from crewboard.agent_types import may_use_server, may_use_tool
from crewboard.commands import accept as commands_accept
from crewboard.commands import answers, rules
from crewboard.errors import BadDataError, UsageError, how_to_install
from crewboard.records.events import ToolResult, ToolStart
from crewboard.records.team import Rule, RuleEffect
from crewboard.type_files import find
from crewboard.unix import process
from crewboard.untrusted import undelimit_data
from crewboard.worker.tools import mcp
from crewboard.worker.tools.base import Outcome, Tool
from crewboard.worker.tools.permissions import judge_call
from tests.crew import WAIT_TIMEOUT, Crew, contents, eventually
from tests.model import calls, says
from tests.preloaded import patched
from tests.worker.mcp_server import PICTURE

pytestmark = pytest.mark.files_only("a server of tools does not know where the team is kept")

Make = Callable[..., Crew]

OWN = Path(__file__).with_name("mcp_server.py")
OVER_HTTP = Path(__file__).with_name("mcp_http_server.py")
SECRET = "a secret of the tests"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what these tests accept out of the state of the user."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def bring(root: Path, **servers: object) -> None:
    (root / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))


def accept(crew: Crew, *names: str) -> None:
    for name in names:
        commands_accept.accept(crew.team, mcp_servers.find(crew.root, name))


def results_of(crew: Crew, name: str) -> list[ToolResult]:
    return [event for event in crew.events(name) if isinstance(event, ToolResult)]


def own_server(root: Path, **more: object) -> dict[str, object]:
    """Return the entry of the tests' own server, which is copied to where the sandbox shows it."""
    copy = root / "server.py"
    copy.write_text(OWN.read_text())
    return {"command": sys.executable, "args": [str(copy)], **more}


def test_an_agent_uses_servers_and_goes_on_without_others(crew_on: Make, tmp_path: Path) -> None:
    crew = crew_on(TOKEN_OF_TESTS=SECRET)
    bring(
        crew.root,
        time={"command": sys.executable, "args": ["-m", "mcp_server_time"]},
        own=own_server(crew.root, env={"TOKEN": "${TOKEN_OF_TESTS}"}),
        gone={"command": "no-such-program"},
        new={"command": "true"},
    )
    accept(crew, "time", "own", "gone")
    crew.model.give(
        "clock",
        calls("mcp__time__get_current_time", timezone="Europe/Berlin"),
        calls("mcp__time__get_current_time", timezone=3),
        calls("mcp__own__echo", text="known:"),
        calls("mcp__own__picture"),
        calls("mcp__own__end"),
        calls("mcp__own__echo", text="again"),
        calls("mcp__new__anything"),
        says("done"),
    )
    asked_for = crew.hire("clock", "code", "what time is it?", unsafe_no_sandbox=True)
    # A server of the SDK imports for seconds, and the worker waits for it as long as this.
    assert crew.answer(asked_for, mcp.START_TIMEOUT + WAIT_TIMEOUT).text == "done"

    asked = crew.model.asked_by("clock")
    offered = {tool["name"]: tool for tool in asked[0]["tools"]}
    assert offered["mcp__time__get_current_time"]["input_schema"]["required"] == ["timezone"]
    assert offered["mcp__time__get_current_time"]["description"].startswith("A tool of the MCP server time")
    told = str(asked[0]["messages"])
    assert "The MCP server gone is not available: the sandbox shows no no-such-program" in told
    assert "The MCP server new is not available: .mcp.json is new or changed" in told

    time, wrong, echo, picture, end, again, unknown = results_of(crew, "clock")
    assert json.loads(time.content)["timezone"] == "Europe/Berlin"
    sent = asked[1]["messages"][-1]["content"][0]["content"]
    assert undelimit_data(sent) == time.content != sent, "it is delimited as data"
    assert wrong.is_error
    assert "timezone: 3 is not of type 'string'" in wrong.content
    assert echo.content.startswith(f"known: {redaction.hidden(SECRET)}"), (
        "the server repeats a secret, and it is in no file"
    )
    assert [each.type for each in picture.media] == ["image/png"]
    assert picture.content.startswith("image-1, image/png")
    assert end.is_error
    assert again.content.startswith("again "), "a server that ended is started again"
    assert again.content.endswith("bytecode in its place, read"), "a server in Python does not compile what it imports"
    assert "there is no tool 'mcp__new__anything'" in unknown.content
    begun = next(event for event in crew.events("clock") if isinstance(event, ToolStart))
    assert begun.name == "mcp__time__get_current_time"

    needs = {need.server: need for need in crew.view().needs if need.kind == "mcp"}
    assert needs.keys() == {"gone", "new"}
    assert "the sandbox shows no no-such-program: install it" in needs["gone"].summary
    assert "--network" not in needs["gone"].summary
    assert needs["new"].is_new
    accept(crew, "new")
    assert [need.server for need in crew.view().needs if need.kind == "mcp"] == ["gone"], "it was answered"

    tree = {pid: " ".join(process.arguments(pid) or []) for pid in process.descendants(crew.pid("clock"))}
    services = [pid for pid, command in tree.items() if "mcp_server_time" in command or "server.py" in command]
    assert services, "a server lives as long as the run"
    assert SECRET not in str(tree)
    crew.kill("clock")
    eventually(lambda: not any(process.start_ticks(pid) for pid in services), "the end of the servers")
    assert not [path for path, data in contents(crew.root / ".crewboard").items() if SECRET.encode() in data]


@pytest.mark.long
def test_one_wrong_tool_or_an_error_says_what_is_wrong(crew_on: Make) -> None:
    """A server with a wrong tool keeps the others, and one that answers with an error is not said to have ended."""
    crew = crew_on()
    entry = own_server(crew.root)
    wrong = [{"name": "bad", "inputSchema": {"type": "nonsense"}}, {"name": "none"}, 3, {"inputSchema": {}},
             {"name": "odd", "inputSchema": {"type": "object"}, "outputSchema": "text"}]  # fmt: skip
    listed = OWN.read_text().replace('{"tools": tools}', f'{{"tools": [*{wrong!r}, *tools]}}')
    (crew.root / "server.py").write_text(listed)
    with_error = OWN.read_text().replace('method == "tools/list"', "False")
    (crew.root / "refuses.py").write_text(with_error.replace("    main()", "    sys.stderr.write('boom'); main()"))
    (crew.root / "old.py").write_text(OWN.read_text().replace('params["protocolVersion"]', '"1999-01-01"'))
    others = {name: {"command": sys.executable, "args": [str(crew.root / f"{name}.py")]} for name in ("refuses", "old")}
    bring(crew.root, own=entry, **others)
    accept(crew, "own", "refuses", "old")
    crew.model.give("scout", calls("mcp__own__echo", text="known"), says("done"))
    assert crew.run("scout", "code", "look", unsafe_no_sandbox=True).text == "done"
    assert results_of(crew, "scout")[0].content.startswith("known ")
    old, own, refuses = crew.see("scout").status.mcp
    object_wanted = "its schema is not that of an object"
    assert own.left_out[:4] == [f"bad: {object_wanted}", f"none: {object_wanted}", *[f"None: {object_wanted}"] * 2]
    assert own.left_out[4].startswith("odd: its description is invalid: ")
    assert own.tools == [f"mcp__own__{name}" for name in ("echo", "picture", "write", "end")]
    assert refuses.problem == "its answer cannot be used: Method not found; it printed: boom"
    assert old.problem == "its answer cannot be used: Unsupported protocol version from the server: 1999-01-01"


@pytest.mark.long
def test_no_part_of_a_secret_in_a_wrong_answer_is_kept(crew_on: Make) -> None:
    """What the SDK says of a wrong answer has it shortened, and what it is cut to may end within a secret."""
    secret = "".join(f"{letter}{number}" for number in range(5) for letter in "ZqWxKvJyPbTg")
    crew = crew_on(TOKEN_OF_TESTS=secret)
    told = """
        token = os.environ["TOKEN"]
        odd = {"name": "odd", "inputSchema": schema, "description": [token]}
        kind = {"name": "kind", "inputSchema": {"type": "object", "properties": {"a": {"type": token}}}}
        tools += [odd, kind, {"name": token, "inputSchema": {}}, {"name": token + "x", "inputSchema": schema}]
        return"""
    entry = own_server(crew.root, env={"TOKEN": "${TOKEN_OF_TESTS}"})
    (crew.root / "server.py").write_text(
        OWN.read_text().replace('return {"result": {"tools"', f'{told} {{"result": {{"tools"')
    )
    wrong = OWN.read_text().replace('{"name": "tests", "version": "1"}', '[os.environ["TOKEN"]]')
    (crew.root / "wrong.py").write_text(wrong)
    bring(crew.root, own=entry, wrong={**entry, "args": [str(crew.root / "wrong.py")]})
    accept(crew, "own", "wrong")
    crew.model.give("scout", says("done"))
    assert crew.run("scout", "code", "look", unsafe_no_sandbox=True).text == "done"
    own, without = crew.see("scout").status.mcp
    assert own.left_out[0].startswith("odd: its description is invalid: tools.0.description: ")
    assert len(own.left_out) == 4
    assert "serverInfo: " in (without.problem or "")
    parts = [secret[at : at + 10].encode() for at in range(len(secret) - 10)]
    found = contents(crew.root / ".crewboard").items()
    assert not [path for path, data in found if any(part in data for part in parts)]


@pytest.mark.long
async def test_a_call_after_a_closed_connection_finds_none() -> None:
    """So it starts the server again, also while the end of the program is not known yet."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED

    failures = [MCPError(-32000, "no such row"), MCPError(CONNECTION_CLOSED, "Connection closed")]

    async def fail(*_: object) -> None:
        raise failures.pop(0)

    nothing = cast("Any", None)
    connection = mcp._Connection(nothing, nothing, nothing, set())
    connection._session = cast("Any", SimpleNamespace(send_request=fail))
    for is_open in (True, False):
        failed = await connection._call("echo", nothing, cast("Any", SimpleNamespace(model_extra={})))
        assert (failed.is_error, connection.is_open) == (True, is_open)


@pytest.mark.long
def test_the_status_names_a_server_that_takes_long_to_start(crew: Crew) -> None:
    bring(crew.root, slow={"command": "sleep", "args": ["600"]}, new={"command": "true"})
    accept(crew, "slow")
    crew.hire("waiter", "code", "go", unsafe_no_sandbox=True)
    shown = "starts MCP server slow"
    eventually(lambda: crew.see("waiter").doing == shown, "the server in the status")


@pytest.mark.long
@pytest.mark.linux("fork")
def test_a_missing_client_is_named_with_how_to_install_it(crew: Crew) -> None:
    bring(crew.root, own=own_server(crew.root))
    accept(crew, "own")
    crew.model.give("scout", says("done"))
    with patched("import sys; sys.modules['mcp'] = None"):
        assert crew.run("scout", "code", "look", unsafe_no_sandbox=True).text == "done"
    (state,) = crew.see("scout").status.mcp
    assert state.problem == f"the package mcp is not installed: {how_to_install('mcp')}"
    (need,) = [each for each in crew.view().needs if each.kind == "mcp"]
    assert need.summary == f"works without the MCP server own: {state.problem}"
    assert "mcp__own__" not in str(crew.model.requests[-1]["tools"])


def test_calls_wait_for_the_plan_and_for_permission(crew_on: Make, tmp_path: Path) -> None:
    crew = crew_on()
    bring(crew.root, own=own_server(crew.root))
    accept(crew, "own")
    rules.add_rule(crew.team, "deny", "mcp__own__*", "text=bad*")
    crew.model.give(
        "asker",
        calls("mcp__own__echo", text="early"),
        calls("submit_plan", plan="say it", files=[], commands=["mcp__own__echo"]),
        calls("mcp__own__echo", text="first"),
        calls("mcp__own__echo", text="second"),
        calls("mcp__own__echo", text="bad word"),
        says("done"),
    )
    hired = crew.hire("asker", "code", "say it", plan=True, ask=True, unsafe_no_sandbox=True)
    plan = crew.pending("plan_approval")
    assert "not allowed before your plan is approved" in results_of(crew, "asker")[0].content
    answers.approve(crew.team, plan.id, sha256=plan.sha256)
    asked = crew.pending("permission")
    assert (asked.payload["tool"], asked.payload["summary"]) == ("mcp__own__echo", '{"text": "first"}')
    decided, rule = rules.approve_with_rule(crew.team, asked.id, sha256=asked.sha256)
    assert rules.covers(decided, rule.scope) == "every mcp__own__echo of asker"
    crew.answer(hired)
    first, second, bad = results_of(crew, "asker")[-3:]
    assert first.content.startswith("first")
    assert second.content.startswith("second"), "the rule allows it"
    assert "denies mcp__own__* with text=bad*" in bad.content
    starts = [
        event for event in crew.events("asker") if isinstance(event, ToolStart) and event.name == "mcp__own__echo"
    ]
    assert [start.deviates for start in starts] == [False, False], "the plan names the tool"


@contextmanager
def over_http(root: Path) -> Iterator[int]:
    """Run the tests' server over HTTP on a free port of this machine."""
    log = root / "http.log"
    with (
        log.open("wb") as written,
        subprocess.Popen([sys.executable, str(OVER_HTTP)], stdout=written, stderr=written) as server,
    ):
        try:
            address = re.compile(r"running on http://127\.0\.0\.1:(\d+)")
            yield int(eventually(lambda: address.search(log.read_text()), "the server")[1])
        finally:
            server.kill()


def at_address(port: int) -> dict[str, object]:
    """Return the entry of a server on a port of this machine."""
    return {"type": "http", "url": f"http://127.0.0.1:{port}/mcp", "headers": {"X-Token": "${TOKEN_OF_TESTS}"}}


@pytest.mark.long
def test_a_server_with_an_address_needs_the_network(crew_on: Make) -> None:
    crew = crew_on(TOKEN_OF_TESTS=SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        bring(crew.root, web=at_address(server.getsockname()[1]))
        accept(crew, "web")
        crew.model.give("near", says("done"))
        crew.run("near", "code", "go", unsafe_no_sandbox=True)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    found = [need for need in crew.view().needs if need.kind == "mcp"]
    assert len(found) == 1, found
    need = found[0]
    assert (need.agent, need.server) == ("near", "web")
    assert "hired without --network" in need.summary


@pytest.mark.long
def test_an_agent_with_the_network_uses_a_server_with_an_address(crew_on: Make, tmp_path: Path) -> None:
    crew = crew_on(TOKEN_OF_TESTS=SECRET)
    with over_http(tmp_path) as port:
        bring(crew.root, web=at_address(port))
        accept(crew, "web")
        crew.model.give("far", calls("mcp__web__header"), says("done"))
        crew.run("far", "code", "go", network=True, unsafe_no_sandbox=True)
    (header,) = results_of(crew, "far")
    assert header.content == f"the header is {redaction.hidden(SECRET)}"


@pytest.mark.long
async def test_a_flood_of_messages_is_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a call is given up in time, and mail is answered, however much a server says."""
    stream, slept, rest = asyncio.StreamReader(), list[float](), asyncio.sleep
    line = b'{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}\n'
    stream.feed_data(line * (mcp.MOST_MESSAGES + 2))

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await rest(0)

    monkeypatch.setattr("asyncio.sleep", sleep)
    monkeypatch.setattr(mcp, "time", SimpleNamespace(monotonic=lambda: 7.0))
    reading = mcp._Reading(stream)
    for _ in range(mcp.MOST_MESSAGES + 2):
        await reading.receive()
    assert slept == [0] * mcp.MOST_MESSAGES + [1.0, 1.0]


async def _answer_without_end(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, sent: list[int]
) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n" + head + b"\r\n")
    with contextlib.suppress(ConnectionError):
        while sum(sent) < 8 * mcp.MAX_MESSAGE:
            writer.write(b" " * 65_536)
            await writer.drain()
            sent.append(65_536)
    writer.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("head", "why"), [(b"", "an answer of more than"), (b"Content-Encoding: gzip\r\n", "the server packs its answers")]
)
async def test_an_answer_over_http_is_bounded(head: bytes, why: str) -> None:
    sent: list[int] = []
    async with await asyncio.start_server(
        partial(_answer_without_end, head=head, sent=sent), "127.0.0.1", 0
    ) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
        nothing = cast("Any", None)
        server = cast("Any", SimpleNamespace(name="own", url=url))
        resolved = cast("Any", SimpleNamespace(url=url, headers={}, arguments=("own",)))
        connection = mcp._Connection(server, resolved, nothing, set())
        await connection.open(has_network=True)
        assert why in str(connection.problem)
        # What lies in the buffers of both sockets was sent, too.
        assert sum(sent) <= 2 * mcp.MAX_MESSAGE


def test_nothing_loads_the_package_before_it_is_needed() -> None:
    """No other module may import these packages: an import contract holds that."""
    tree = ast.parse(Path(mcp.__file__).read_text())
    imported = {each.name for node in tree.body if isinstance(node, ast.Import) for each in node.names}
    imported |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in imported} & {
        "mcp",
        "mcp_types",
        "jsonschema",
        "referencing",
        "httpx2",
    }


def found_in(**servers: object) -> mcp_servers.Found:
    return mcp_servers.parse(json.dumps({"mcpServers": servers}))


def test_a_file_of_servers_is_read_and_its_errors_are_named(tmp_path: Path) -> None:
    found = found_in(
        good={"command": "run", "args": ["-x"], "disabled": False},
        web={"url": "https://example.org/mcp"},
        sse={"type": "sse", "url": "https://example.org/sse"},
        bare={"args": []},
        file={"type": "http", "url": "file:///etc/passwd"},
        a__b={"command": "run"},
        preload={"command": "run", "env": {"A B": "x"}},
        own={"command": "run", "env": {"CREWBOARD_WORKER": "x"}},
        wrong={"command": ["run"]},
    )
    assert found.servers.keys() == {"good", "web"}
    assert found.servers["good"].shown == "run -x"
    assert "sse: crewboard connects to" in found.invalid["sse"]
    assert "no two underscores" in found.invalid["a__b"]
    assert found.invalid.keys() == {"sse", "bare", "file", "a__b", "preload", "own", "wrong"}
    half = '{"mcpServers": {"a": "\\ud800"}}'
    for text in ("[]", "{", '{"mcpServers": []}', half, "[" * 100_000, " " * 200_000):
        with pytest.raises(BadDataError, match=r"\.mcp\.json"):
            mcp_servers.parse(text)
    (tmp_path / "other").write_text("{}")
    (tmp_path / ".mcp.json").symlink_to(tmp_path / "other")
    with pytest.raises(BadDataError, match="symbolic link"):
        mcp_servers.read(tmp_path)


def test_a_server_is_accepted_as_it_is_and_where_it_is(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    server = found_in(a={"command": "run", "env": {"KEY": "${A_KEY}"}}).servers["a"]
    assert not mcp_servers.is_accepted(server, tmp_path, environment)
    mcp_servers.accept(server, tmp_path, environment)
    assert mcp_servers.is_accepted(server, tmp_path, environment)
    for changed in ({"command": "run2"}, {"command": "run", "args": ["x"]}, {"command": "run", "env": {"KEY": "${B}"}}):
        assert not mcp_servers.is_accepted(found_in(a=changed).servers["a"], tmp_path, environment)
    assert not mcp_servers.is_accepted(server, tmp_path / "other", environment), (
        "another repository with the same entry"
    )
    (tmp_path / ".mcp.json").write_text("{")
    assert mcp_servers.revoke("a", tmp_path, environment), "its record has its name, and the file is not needed"
    assert not mcp_servers.is_accepted(server, tmp_path, environment)
    assert not mcp_servers.revoke("a", tmp_path, environment)


def test_an_earlier_accepted_entry_does_not_come_back(tmp_path: Path) -> None:
    """An agent can write it back."""
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    first, second = (found_in(a={"command": name}).servers["a"] for name in ("run1", "run2"))
    mcp_servers.accept(first, tmp_path, environment)
    mcp_servers.accept(second, tmp_path, environment)
    assert mcp_servers.is_accepted(second, tmp_path, environment)
    assert not mcp_servers.is_accepted(first, tmp_path, environment)
    assert mcp_servers.changes(first, tmp_path, environment) == ["command"]
    assert mcp_servers.accepted_names(tmp_path, environment) == ["a"]


def test_a_yes_shows_what_a_server_is_given(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    entry = {"command": "run", "args": ["x" * 900], "env": {"API_TOKEN": "hunter2", "SAME_KEY": "${A}"}}
    server = found_in(a=entry).servers["a"]
    mcp_servers.accept(server, tmp_path, environment)
    (record,) = (path for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert "hunter2" not in record.read_text()
    more = {"LD_PRELOAD": "/tmp/${X}/evil.so\n  accepted"}
    changed = found_in(a={**entry, "env": {"API_TOKEN": "hunter3", "SAME_KEY": "${A}", **more}}).servers["a"]
    assert mcp_servers.changes(changed, tmp_path, environment) == ["env API_TOKEN", "env LD_PRELOAD"]
    told = mcp_servers.describe_new(changed, tmp_path, environment)
    assert "changed since you accepted it (env API_TOKEN, env LD_PRELOAD)" in told[:500]
    assert "env LD_PRELOAD=/tmp/${X}/evil.so ␊   accepted" in told[:500]
    assert "hunter" not in told
    assert "; runs run xxx" in told
    web = found_in(
        w={
            "url": "https://a.example",
            "headers": {"Authorization": "Bearer ${T:-literal}", "X-Api-Key": "k1", "A": "b"},
        }
    )
    assert web.servers["w"].settings() == [
        "header Authorization: Bearer ${T:-[key hidden: 7 characters]}",
        "header X-Api-Key: [key hidden: 2 characters]",
        "header A: b",
    ]


def test_values_come_from_the_environment_and_secrets_stay_out_of_sight() -> None:
    def resolve(**entry: object) -> mcp_servers.Resolved:
        environment = {"HOME": "/home/me", "MY_TOKEN": "12345678", "ANTHROPIC_API_KEY": "key", "PLAIN": "value"}
        return mcp_servers.resolve(found_in(a={"command": "run", **entry}).servers["a"], environment)

    found = resolve(
        args=["${HOME}/x", "${NONE:-default}"], env={"T": "Bearer ${MY_TOKEN}", "P": "${PLAIN}", "D": "${N:-d}"}
    )
    assert found.arguments == ["run", "/home/me/x", "default"]
    assert found.env == {"T": "Bearer 12345678", "P": "value", "D": "d"}
    assert found.secrets == ["12345678", "value"]
    with pytest.raises(BadDataError, match="NONE is not set"):
        resolve(env={"K": "${NONE}"})


def test_variables_that_can_never_be_used_make_a_server_invalid(tmp_path: Path) -> None:
    bring(
        tmp_path,
        command={"command": "${MY_TOKEN}"},
        args={"command": "run", "args": ["--key=${MY_TOKEN:-x}"]},
        url={"url": "https://example.org/${MY_TOKEN}"},
        key={"command": "run", "env": {"K": "${ANTHROPIC_API_KEY}"}},
        ours={"url": "https://example.org", "headers": {"K": "${CREWBOARD_X}"}},
        good={"command": "run", "args": ["${A:-x", "${HOME}"], "env": {"MY_TOKEN": "${MY_TOKEN}"}},
    )
    found = mcp_servers.read(tmp_path)
    assert list(found.servers) == ["good"]
    for name in ("command", "args", "url"):
        assert (
            found.invalid[name]
            == "${MY_TOKEN} may hold a secret, so it cannot be in command, args or url; use env or headers"
        )
    assert {found.invalid[name].partition(": ")[2] for name in ("key", "ours")} == {
        "no server gets the variables of crewboard and of its API"
    }
    with pytest.raises(BadDataError, match="may hold a secret"):
        mcp_servers.find(tmp_path, "command")


def test_a_type_has_the_servers_that_its_file_names(tmp_path: Path) -> None:
    (tmp_path / ".claude/agents").mkdir(parents=True)

    def made(front: str) -> tuple[str, ...]:
        (tmp_path / ".claude/agents/a.md").write_text(f"---\nname: own\ndescription: x\n{front}\n---\n")
        return find(tmp_path, "own").mcp

    assert made("model: haiku") == ("mcp__*",), "all tools"
    assert made("tools: Read") == (), "only what it lists"
    assert made("tools: Read, mcp__git, mcp__a__b") == ("mcp__git__*", "mcp__a__b")
    assert made("mcp: time, git") == ("mcp__time__*", "mcp__git__*")
    assert made("tools: Read\nmcpServers:\n  - time\n  - docs:\n      command: run") == ("mcp__time__*", "mcp__docs__*")
    assert mcp_servers.of_type(find(tmp_path, "own")).servers["docs"].command == "run"
    assert find(tmp_path, "own").executes, "a server is a program"
    denied = made("disallowedTools: mcp__git__git_push, mcp__web")
    assert denied == ("mcp__*", "!mcp__git__git_push", "!mcp__web__*")
    assert may_use_tool(denied, "mcp__git__git_log")
    assert not may_use_tool(denied, "mcp__git__git_push")
    assert not may_use_tool(denied, "mcp__web__any")
    assert may_use_server(("mcp__git__git_log",), "git")
    assert not may_use_server(("mcp__git__git_log",), "time")
    assert find(tmp_path, "explore").mcp == find(tmp_path, "plan").mcp == ()


@pytest.mark.long
def test_an_agent_of_an_own_type_has_its_server(crew_on: Make, tmp_path: Path) -> None:
    crew = crew_on()
    entry = own_server(crew.root)
    (crew.root / ".claude/agents").mkdir(parents=True)
    (crew.root / ".claude/agents/a.md").write_text(
        f"---\nname: scribe\ndescription: x\ntools: Read\nmcp:\n  own:\n    command: {entry['command']}\n"
        f"    args: [{shlex.quote(str(crew.root / 'server.py'))}]\n---\n"
    )
    bring(crew.root, other={"command": "true"})
    type_files.accept(find(crew.root, "scribe"), crew.environment)
    crew.model.give("ann", calls("mcp__own__write", path="made.txt"), says("done"))
    crew.run("ann", "scribe", "write", unsafe_no_sandbox=True)
    (written,) = results_of(crew, "ann")
    assert written.is_error, "its type has no tool that writes, so its sandbox does not write"
    assert not (crew.root / "made.txt").exists()
    assert not [need for need in crew.view().needs if need.kind == "mcp"], "it may not use the other one"


def test_rules_about_tools_of_servers() -> None:
    def rule(effect: RuleEffect, tool: str, pattern: str = "", scope: str = "") -> Rule:
        return Rule(id=f"rule-{effect}", effect=effect, tool=tool, pattern=pattern, scope=scope)

    def judged(rules: list[Rule], tool: str, **arguments: object) -> str | None:
        verdict = judge_call(rules, tool, arguments, "/root")
        return verdict.effect if verdict else None

    allow = rule("allow", "mcp__time__*", "*")
    assert judged([allow], "mcp__time__now", zone="x") == "allow"
    assert judged([allow], "mcp__git__log") is None
    assert judged([allow], "bash", command="mcp__time__now") is None
    assert judged([rule("deny", "files", "**")], "mcp__time__now", path="x") is None
    assert (
        judged(
            [rule("deny", "mcp__fetch__*", "url=http:*"), rule("allow", "mcp__*", "*")],
            "mcp__fetch__get",
            url="http://a",
        )
        == "deny"
    )
    assert (
        judged(
            [rule("allow", "mcp__fetch__get", "url=https://docs.*")],
            "mcp__fetch__get",
            url="https://evil/?https://docs.",
        )
        is None
    )
    assert judged([rule("ask", "mcp__db__*", "count=5")], "mcp__db__drop", count=5) == "ask"
    assert judged([rule("allow", "mcp__a__b", scope="*")], "mcp__a__b") == "allow"
    assert judged([rule("allow", "mcp__a__b", scope="*")], "mcp__a__c") is None


def schema(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"type": "string"}, "not that of an object"),
        (None, "not that of an object"),
        ({"type": "object", "anyOf": [{}]}, "anyOf, oneOf or allOf at the top"),
        ({"type": "object", "oneOf": [{}]}, "anyOf, oneOf or allOf at the top"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", **schema(n={"minimum": 0, "exclusiveMinimum": True})},
         "schema is invalid: True is not of type 'number'"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", **schema(n={"items": [{}, {}]})}, "schema is invalid"),
        (schema(a={"$ref": "http://127.0.0.1:9/schema"}), "which is not in it"),
        (schema(a={"$ref": "#/properties/b/default"}, b={"default": {"properties": 5}}), "cannot be checked"),
        (schema(**{"a b": {}}), "name of its input 'a b'"),
        (schema(a={"type": "no such type"}), "schema is invalid"),
        (schema(a={"description": "x" * 20_000}), "limit is 16000"),
        ({"type": "object", "properties": {"a": {"default": float("nan")}}}, "cannot be checked"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_used_is_refused(given: object, why: str) -> None:
    with pytest.raises(BadDataError, match=why):
        mcp.check_schema(given)


def tool_with(given: dict[str, Any]) -> Tool[Any]:
    async def never(context: object, arguments: object) -> Outcome:
        raise AssertionError

    sent = mcp.check_schema(given)
    return Tool("mcp__a__b", "", mcp.input_of(given, sent), never, schema=sent)


def test_an_input_is_checked_against_the_schema() -> None:
    tool = tool_with(
        {**schema(n={"$ref": "#/$defs/N"}, model_config={}), "required": ["n"], "$defs": {"N": {"type": "integer"}}}
    )
    assert tool.definition()["input_schema"]["properties"]["n"] == {"type": "integer"}
    taken = tool.parse({"n": 1, "model_config": "free", "more": [2]})
    assert taken.model_extra == {"n": 1, "model_config": "free", "more": [2]}
    with pytest.raises(UsageError, match="n: 'one' is not of type 'integer'"):
        tool.parse({"n": "one"})
    with pytest.raises(UsageError, match="'n' is a required property"):
        tool.parse({})
    with pytest.raises(UsageError):
        tool.parse([1])


def test_null_is_no_type_of_an_input_and_reaches_a_server_that_wants_it() -> None:
    either = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    number = {"type": ["integer", "null"]}
    within = {"type": "object", "properties": {"d": either, "e": number}, "required": ["e"]}
    tool = tool_with({**schema(a=either, b=number, c=within), "required": ["a", "c"]})
    sent = tool.definition()["input_schema"]
    assert sent["properties"] == {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        # It could not be put in its place there.
        "c": {**within, "properties": {"d": {"type": "string"}, "e": number}},
    }
    assert sent["required"] == ["c"]
    taken = tool.parse({"c": {"e": None}})
    assert taken.model_extra == {"a": None, "c": {"e": None}}
    assert tool.parse({"a": "x", "b": None, "c": {"e": 1}}).model_extra == {"a": "x", "b": None, "c": {"e": 1}}


@pytest.mark.parametrize(
    "given",
    [
        schema(a={"pattern": "^(a+)+$"}),
        {"type": "object", "patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
        {**schema(a={"$ref": "#/$defs/x0"}), "$defs": {
            f"x{n}": {"allOf": [{"$ref": f"#/$defs/x{n + 1}"}] * 2} for n in range(40)} | {"x40": {}}},
        {**schema(a={"$ref": "#/properties/a"})},
        {**schema(a={"not": {"$ref": "http://127.0.0.1:9/schema"}})},
        # Another dialect must not bring the keywords back.
        {"$schema": "http://json-schema.org/draft-07/schema#", **schema(a={"pattern": "^(a+)+$"})},
        schema(a={"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}),
    ],
)  # fmt: skip
def test_no_schema_makes_a_check_take_long(given: dict[str, Any]) -> None:
    hostile = "a" * 64 + "!"
    with contextlib.suppress(UsageError):
        tool_with(given).parse({"a": hostile, hostile: 1})


def test_results_of_all_kinds_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    # Here, so that no other runner of tests loads its models.
    from mcp_types import CallToolResult

    monkeypatch.setattr(redaction, "_registered", [])
    redaction.register_values([SECRET])
    content = [
        {"type": "text", "text": f"a {SECRET}"},
        {"type": "image", "data": b64encode(PICTURE).decode(), "mimeType": "image/png"},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///x", "text": "inside"}},
        {"type": "resource_link", "uri": "https://example.org/", "name": "link"},
    ]
    outcome = mcp.outcome_of(CallToolResult.model_validate({"content": content, "isError": True}))
    assert outcome.is_error
    assert outcome.content.splitlines() == [
        f"a {redaction.hidden(SECRET)}", "image-2, image/png, 1 kB",
        "(audio-3: left out, 3 bytes of a type that the model does not take)", "inside", "(link: https://example.org/)",
    ]  # fmt: skip
    assert outcome.media == (("image-2", "image/png", PICTURE),)
    structured = mcp.outcome_of(CallToolResult.model_validate({"content": [], "structuredContent": {"a": 1}}))
    assert structured.content == '{"a": 1}'


def test_tools_that_cannot_be_offered_are_named() -> None:
    def listed(name: str, given: object = None) -> SimpleNamespace:
        return SimpleNamespace(name=name, description="x\x1b[31m" + "y" * 3000, input_schema=given or schema())

    server = found_in(s={"command": "run"}).servers["s"]
    connection = mcp._Connection(server, cast("Any", None), cast("Any", None), set())
    connection._listed = [
        listed("a.b"),
        listed("a_b"),
        listed("x" * 130),
        listed("bad", {"type": "array"}),
        listed("old", {"type": "object", "properties": {"n": {"exclusiveMinimum": True}}}),
        listed("last" + "t" * 100),
    ]
    tools, left_out = connection.offered(("mcp__*",), set(), 2)
    last = f"mcp__s__last{'t' * 100}"
    assert list(tools) == ["mcp__s__a_b", last]
    description = tools[last].description
    assert "\x1b" not in description
    assert len(description) < 2_100
    assert [text.partition(": ")[2] for text in left_out] == [
        "another tool is called mcp__s__a_b", "its name is too long", "its schema is not that of an object",
        "its schema is invalid: True is not of type 'number'",
    ]  # fmt: skip
    assert left_out[-1].startswith("old: ")
    assert "at most" in connection.offered(("mcp__*",), set(), 1)[1][-1]


def test_rules_about_servers_are_checked(crew: Crew) -> None:
    assert rules.add_rule(crew.team, "allow", "mcp__time__*", "*").tool == "mcp__time__*"
    for tool, pattern in (("mcp__time__*", "src/**"), ("mcp time", "*"), ("mcp__a__b", "")):
        with pytest.raises(UsageError):
            rules.add_rule(crew.team, "allow", tool, pattern)
