"""`doctor` says what is wrong with the disk, the database and the hosts of a team."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from crewboard import pricing
from crewboard.readmodel.reader import TeamReader
from crewboard.records.agents import Tokens
from crewboard.records.processes import Host
from crewboard.store import files, hosts, leases
from crewboard.store.interface import SCHEMA_VERSION
from crewboard.store.layout import TeamDirectory
from crewboard.worker import probe
from crewboard_tui.cli import common, doctor
from crewboard_tui.cli.common import Session
from tests.cli.shell import Cli, Inside, Ran
from tests.crew import WAIT_TIMEOUT
from tests.frozen import NOW, make_empty
from tests.model import ModelServer, calls, says
from tests.placed import add_host
from tests.postgres import close_connections, end_leases
from tests.preloaded import Preloaded
from tests.raw import Raw, RawServer, as_json, sse
from tests.worker.test_odd_replies import STOP, call, end, start

of_servers = pytest.mark.files_only("it calls a server, and keeps nothing")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as long for a server of the tests as a busy machine takes."""
    monkeypatch.setattr(doctor, "_TRY_TIMEOUT", WAIT_TIMEOUT)


@pytest.fixture(autouse=True)
def _preloaded_probe(request: pytest.FixtureRequest, preloaded: Preloaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the process that calls a model: the imports of a new interpreter take nearly all of such a test."""
    if "new_interpreters" not in request.fixturenames:
        monkeypatch.setattr(
            doctor, "_run_probe", lambda environment, names: preloaded.run(probe.__name__, names, environment)
        )


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let every folder be on a file system of this type."""
    return lambda kind: monkeypatch.setattr(common, "file_system", lambda _: kind)


def test_doctor_says_what_compiles_the_bytecode(tmp_path: Path) -> None:
    module, compiled = tmp_path / "tool.py", tmp_path / "__pycache__" / f"tool.{sys.implementation.cache_tag}.pyc"
    module.write_text("x = 1\n")
    found = doctor.bytecode([tmp_path])
    assert (found.mark, "1 of 1" in found.detail) == ("note", True)
    subprocess.run(shlex.split((found.remedy or "").split("`")[1]), check=True)
    assert compiled.exists()
    assert doctor.bytecode([tmp_path]).mark == "ok"
    module.write_text("x = 12\n")
    assert doctor.bytecode([tmp_path]).mark == "note", "it is the bytecode of an older text"
    assert [folder.name for folder in doctor.package_folders()] == ["anthropic", "crewboard", "crewboard_tui"]


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph", "lustre"])
def test_doctor_refuses_a_team_in_files_on_a_network(on: Callable[[str], None], tmp_path: Path, kind: str) -> None:
    on(kind)
    found = doctor.files(TeamDirectory(tmp_path / ".crewboard" / "default"))
    assert (found.mark, kind in found.detail) == ("bad", True)
    assert "lost or doubled" in found.detail
    assert "--store postgresql://" in (found.remedy or "")


def test_a_network_disk_is_only_noted_if_the_records_are_in_a_database(
    on: Callable[[str], None], tmp_path: Path
) -> None:
    on("nfs4")
    team = TeamDirectory(tmp_path / ".crewboard" / "api")
    team.path.mkdir(parents=True)
    (team.path / "store").write_text("postgresql://crew@db/crew\n")
    assert doctor.files(team).mark == "note"


@pytest.mark.parametrize(
    ("kind", "mark"), [("9p", "note"), ("virtiofs", "note"), ("ext4", "ok"), ("fuse.bindfs", "ok")]
)
def test_doctor_accepts_disks_of_this_machine(on: Callable[[str], None], tmp_path: Path, kind: str, mark: str) -> None:
    on(kind)
    assert doctor.files(TeamDirectory(tmp_path / ".crewboard" / "default")).mark == mark


def test_doctor_says_that_the_disk_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "MIN_FREE", 1 << 80)
    found = doctor.files(TeamDirectory(tmp_path / ".crewboard" / "default"))
    assert (found.mark, found.detail) == ("bad", f"{tmp_path}: disk full")
    assert "free some space" in (found.remedy or "")


def test_the_maker_of_a_team_on_a_network_is_warned(
    on: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    team = TeamDirectory(tmp_path / ".crewboard" / "default")
    on("ext4")
    common.warn_of_network(team)
    assert capsys.readouterr().err == ""
    on("nfs4")
    common.warn_of_network(team)
    assert "is on nfs4" in capsys.readouterr().err


def checks(team: TeamDirectory) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.database(team)}


@pytest.fixture
def hosted(cli: Cli, database: str, tmp_path: Path) -> TeamDirectory:
    assert cli("team", "create", "api", "--store", database).code == 0
    return TeamDirectory(tmp_path / ".crewboard" / "api")


@pytest.mark.long
def test_doctor_says_how_the_database_answers(hosted: TeamDirectory) -> None:
    found = checks(hosted)
    assert {name: check.mark for name, check in found.items()} == {"store": "ok", "clock": "ok"}
    assert f"tables of version {SCHEMA_VERSION}" in found["store"].detail
    close_connections()


@pytest.mark.parametrize(("seconds", "says"), [(-600.0, "600.0 s ahead of"), (600.0, "600.0 s behind")])
@of_servers
def test_doctor_notes_a_wrong_clock(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, seconds: float, says: str
) -> None:
    monkeypatch.setattr(type(directory.store), "now", lambda _: time.time() + seconds)
    found = doctor.time_of(hosts.compare_clocks(directory))
    assert found.mark == "note"
    assert says in found.detail


def test_a_slow_answer_is_not_a_wrong_clock() -> None:
    assert doctor.time_of(hosts.Clock(ahead=3.0, round_trip=6.0)).mark == "ok"
    assert doctor.time_of(hosts.Clock(ahead=-3.0, round_trip=0.1)).mark == "note"


@pytest.mark.long
def test_doctor_says_which_hosts_are_up_and_which_are_lost(
    hosted: TeamDirectory, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    hosts.make(hosted, "east")
    hosts.save(hosted, Host(name="east", slots=4, at=time.time()))
    assert (checks(hosted)["hosts"].mark, checks(hosted)["hosts"].detail) == ("bad", "up: none; lost: east")
    model = next(check for check in doctor.all_checks(Session(str(hosted.root), "api")) if check.name == "model")
    assert (model.mark, "of their hosts" in model.detail) == ("ok", True)
    held = leases.take(hosts.lease(hosted, "east"))
    assert held is not None
    assert (checks(hosted)["hosts"].mark, checks(hosted)["hosts"].detail) == ("ok", "up: east")
    hosts.make(hosted, "west")
    hosts.save(hosted, Host(name="west", slots=4, at=time.time()))
    assert (checks(hosted)["hosts"].mark, checks(hosted)["hosts"].detail) == ("note", "up: east; lost: west")
    hosts.save(hosted, Host(name="west", slots=4, at=time.time(), draining=True))
    assert checks(hosted)["hosts"].mark == "ok", "it was drained"
    end_leases(database)
    assert checks(hosted)["hosts"].mark == "bad"
    close_connections()


def test_doctor_says_to_start_a_host_whose_agents_run_on(tmp_path: Path) -> None:
    empty = make_empty(tmp_path / "inkpot")
    add_host(empty.directory, "build1", labels=["gpu"], at=NOW - 40)
    empty.hire("api", "code", "idle", "", ago=9, pid=77, host="build1", boot_id="elsewhere")
    view = TeamReader(empty.directory, clock=empty.team.now, probe=empty.probe).read()
    check = doctor.hosts_of(view)
    assert check.mark == "bad"
    assert check.detail.startswith("up: none; host build1 is not up; its agent runs on without it")
    assert check.remedy is not None
    assert check.remedy.startswith("`crewboard host --name build1 --label gpu` there; no agent starts")


def test_a_database_without_tables_is_said_in_words(hosted: TeamDirectory, database: str) -> None:
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA crewboard CASCADE")
    (check,) = doctor.database(hosted)
    assert check.mark == "bad"
    assert "has no tables of crewboard" in check.detail
    close_connections()


def marks(ran: Ran) -> dict[str, str]:
    return {check["name"]: check["mark"] for check in ran.json}


def detail(ran: Ran, name: str) -> str:
    check = next(check for check in ran.json if check["name"] == name)
    return f"{check['detail']} → {check['remedy']}"


@pytest.mark.long
@of_servers
def test_doctor_tries_a_server_as_an_agent_uses_it(cli: Cli, new_interpreters: None) -> None:
    with ModelServer(script=[calls("glob", pattern="README*")]) as server:
        tried = cli.with_environment(ANTHROPIC_BASE_URL=server.url)("doctor", "--try", "--json")
    names = ["address", "key", "models", "window", "call", "thinking", "caching", "usage"]
    assert [marks(tried)[name] for name in names] == ["ok", "note", "note", "ok", "ok", "ok", "ok", "ok"]
    assert "export ANTHROPIC_AUTH_TOKEN=local" in detail(tried, "key")
    assert "claude-haiku-5-5 called a tool" in detail(tried, "call")
    assert "settings max_working 1` lets one agent work at a time" in detail(tried, "caps")
    assert "bash" in [tool["name"] for tool in server.requests[0]["tools"]], "some servers refuse its schema"
    assert server.requests[0]["stream"] is True


def test_doctor_calls_each_model_in_use_once(cli: Cli) -> None:
    with ModelServer(script=[calls("glob", pattern="README*")] * 4) as server:
        shell = cli.with_environment(ANTHROPIC_BASE_URL=server.url, ANTHROPIC_AUTH_TOKEN="local")
        shell("settings", "model", "plan=claude-opus-5")
        tried = shell("doctor", "--online", "--json")
    assert sorted(request["model"] for request in server.requests) == [
        "claude-haiku-5-5",
        "claude-opus-5",
        "claude-opus-5-5",
        "claude-sonnet-5-5",
    ]
    for name in ("window", "call", "thinking", "caching", "usage"):
        found = [check for check in tried.json if check["name"] == name]
        assert [check["mark"] for check in found] == ["ok"] * 4, found
    assert "cost" not in marks(tried), "the prices of another server are not known"


def test_doctor_says_what_its_calls_cost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    used = {"input": 1_000_000, "output": 0}
    said = {"window": 9, "window_known": True, "timeout": 9, "error": None, "calls": ["glob"], "usage": used,
            "stop_reason": "tool_use", "thinks": False, "asked_to_think": None, "seconds": 1}  # fmt: skip
    monkeypatch.setattr(doctor, "_called", lambda environment, names: [{**said, "model": name} for name in names])
    found = {check.name: check for check in doctor.called(tmp_path, {}, ["claude-sonnet-5-5", "unpriced"])}
    assert [found[name].mark for name in ("call", "thinking", "caching", "cost")] == ["ok", "note", "note", "ok"]
    price = pricing.load(tmp_path).cost("claude-sonnet-5-5", Tokens(input=1_000_000))
    assert found["cost"].detail == f"${price:.4f} for 1 call, and 1 call without a known price"


@pytest.mark.long
@of_servers
def test_doctor_says_that_a_model_calls_no_tool(cli: Cli) -> None:
    with ModelServer(script=[says("hello")]) as server:
        chatty = cli.with_environment(ANTHROPIC_BASE_URL=server.url)("doctor", "--try", "--model", "chatty", "--json")
    assert marks(chatty)["call"] == "bad"
    assert "chatty called no tool" in detail(chatty, "call")


@pytest.mark.long
@of_servers
def test_doctor_says_that_no_tokens_are_reported(cli: Cli) -> None:
    with RawServer(sse(start(usage=None), *call("{}", name="glob"), end("tool_use", usage=None), STOP)) as server:
        shell = cli.with_environment(ANTHROPIC_BASE_URL=server.url, ANTHROPIC_AUTH_TOKEN="local")
        tried = shell("doctor", "--try", "--json")
    assert [marks(tried)[name] for name in ("call", "usage")] == ["ok", "note"]
    assert "by an estimate" in detail(tried, "usage")


@pytest.mark.long
@of_servers
def test_doctor_goes_on_where_the_list_of_models_hangs(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LOOK_TIMEOUT", 0.2)
    monkeypatch.setattr(doctor, "_TRY_TIMEOUT", 0.2)
    held, called = Event(), sse(start(), *call("{}", name="glob"), end("tool_use"), STOP)
    hanging = Raw(b"", missing=9, held=held)
    paths = ("/v1/models?limit=1000", "/v1/models/m", "/v1/models", "/api/ps")
    with RawServer(called, pages=dict.fromkeys(paths, hanging)) as server:
        environment = {**cli.environment, "ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_AUTH_TOKEN": "local"}
        shell = Inside(cli.root, environment)
        looked, tried = shell("doctor", "--json"), shell("doctor", "--try", "--model", "m", "--json")
        held.set()
    assert marks(looked)["model"] == "note"
    assert "does not list its models within 0.2 s" in detail(looked, "model")
    assert [marks(tried)[name] for name in ("address", "call")] == ["note", "ok"]


KEPT = as_json({"error": {"type": "authentication_error", "message": "not with this key"}}, 401)


@pytest.mark.parametrize(
    ("given", "mark", "says"),
    [
        (
            sse(start(), *call("{}", name="glob"), end("tool_use"), STOP),
            "ok",
            "ANTHROPIC_AUTH_TOKEN was taken for calls",
        ),
        (as_json({"error": {"message": "no such model"}}, 404), "ok", "ANTHROPIC_AUTH_TOKEN was taken for calls"),
        (KEPT, "bad", "the server refused ANTHROPIC_AUTH_TOKEN (401)"),
    ],
)
@of_servers
def test_doctor_judges_a_key_by_the_call(cli: Cli, given: Raw, mark: str, says: str) -> None:
    with RawServer(given, pages={"/v1/models?limit=1000": KEPT}) as server:
        shell = cli.with_environment(ANTHROPIC_BASE_URL=server.url, ANTHROPIC_AUTH_TOKEN="narrow")
        tried = shell("doctor", "--try", "--model", "m", "--json")
    assert marks(tried)["key"] == mark
    assert says in detail(tried, "key")
    assert ("call" in marks(tried)) == (mark == "ok")


@pytest.mark.long
@of_servers
def test_a_web_page_does_not_say_that_a_key_was_taken(cli: Cli) -> None:
    page = Raw(PAGE, 200, "text/html")
    with RawServer(page, pages={"/v1/models?limit=1000": page}) as server:
        shell = cli.with_environment(ANTHROPIC_BASE_URL=server.url, ANTHROPIC_AUTH_TOKEN="local")
        tried = shell("doctor", "--try", "--model", "m", "--json")
    assert "the server has not said if it takes it" in detail(tried, "key")


@pytest.mark.long
@of_servers
def test_doctor_asks_for_as_long_a_reply_as_an_agent(cli: Cli) -> None:
    with RawServer(sse(start(), *call("{}", name="glob"), end("tool_use"), STOP)) as server:
        shell = cli.with_environment(ANTHROPIC_BASE_URL=server.url, ANTHROPIC_AUTH_TOKEN="local")
        shell("doctor", "--try", "--model", "m", "--json")
    assert [body["max_tokens"] for body in server.requests] == [4000]


@pytest.mark.long
@of_servers
def test_doctor_says_where_an_address_redirects_to(cli: Cli) -> None:
    elsewhere = Raw(b"", 301, location="http://127.0.0.1:9/v1/models?limit=1000")
    with RawServer(as_json({}), pages={"/v1/models?limit=1000": elsewhere}) as server:
        shell = cli.with_environment(ANTHROPIC_BASE_URL=server.url, ANTHROPIC_AUTH_TOKEN="local")
        ran, tried = shell("doctor", "--json"), shell("doctor", "--try", "--model", "m", "--json")
    for found, name in ((ran, "model"), (tried, "address")):
        assert marks(found)[name] == "note"
        said = f"{server.url} redirects to http://127.0.0.1:9/v1/models → set ANTHROPIC_BASE_URL to http://127.0.0.1:9"
        assert said in detail(found, name)
    assert "does not list its models (301)" in detail(tried, "models")


PAGE = b"<html><body>Hello</body></html>"
FAILURES = {
    "page": (Raw(PAGE, 200, "text/html"), "the address serves a web page, no API → set ANTHROPIC_BASE_URL"),
    "gateway": (Raw(PAGE, 502, "text/html"), "502 error: a web page → the server is down or busy"),
    "busy": (as_json({"error": {"type": "rate_limit_error", "message": "m"}}, 429), "takes no more calls for now"),
    "tools": (
        as_json({"error": {"message": "m does not support tools"}}, 400),
        "support tools → agents work by calling",
    ),
    "other": (as_json({"hello": 1}), "this is no reply of the Messages API: check ANTHROPIC_BASE_URL"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FAILURES)
@of_servers
def test_doctor_says_what_to_do_about_a_failed_call(cli: Cli, name: str) -> None:
    given, remedy = FAILURES[name]
    with RawServer(given) as server:
        keyed = cli.with_environment(ANTHROPIC_BASE_URL=server.url, ANTHROPIC_AUTH_TOKEN="local")
        tried = keyed("doctor", "--try", "--model", "m", "--json")
    assert marks(tried)["call"] == "bad"
    assert remedy in detail(tried, "call")
    assert "<" not in detail(tried, "call")


@pytest.mark.parametrize(
    ("status", "is_page", "words"),
    [
        (404, True, "serves a web page, no API"),
        (404, False, "name a model that the server has"),
        (403, False, "to a key of this server"),
        (400, False, "try another model"),
        (529, False, "down or busy"),
    ],
)
def test_each_status_of_a_failed_call_has_a_remedy(status: int, is_page: bool, words: str) -> None:
    assert words in doctor._remedy({"status": status, "page": is_page, "error": "no"}, {})


@pytest.mark.long
@of_servers
def test_doctor_says_that_a_port_is_dead(cli: Cli) -> None:
    shell = cli.with_environment(ANTHROPIC_BASE_URL="http://127.0.0.1:9", ANTHROPIC_AUTH_TOKEN="local")
    for arguments, name in ((("doctor",), "model"), (("doctor", "--try"), "address")):
        ran = shell(*arguments, "--json")
        assert marks(ran)[name] == "bad"
        assert "http://127.0.0.1:9 cannot be reached: Connection refused" in detail(ran, name)
        assert "start the server" in detail(ran, name)
    elsewhere = shell.with_environment(ANTHROPIC_BASE_URL="https://api.anthropic.com")
    assert "not tried" in detail(elsewhere("doctor", "--json"), "model"), "no request leaves this machine unasked"


def test_doctor_tells_a_refused_key_from_an_unknown_model() -> None:
    refused, listed = (doctor.Answer("address", "ok", "", status=status, said=said) for status, said in (
        (401, None), (200, {"data": [{"id": "qwen3:30b"}, {"id": "claude-haiku-5-5-20261001"}]})
    ))  # fmt: skip
    here = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:4000", "ANTHROPIC_AUTH_TOKEN": "t"}
    assert "refused ANTHROPIC_AUTH_TOKEN (401)" in doctor.key_of(here, refused, unset=False).detail
    assert doctor.key_of(here, refused, unset=True).remedy == "set ANTHROPIC_AUTH_TOKEN to the key of that server"
    assert doctor.key_of(here, listed, unset=False).mark == "ok"
    assert [doctor.models_of(listed, [name]).mark for name in ("qwen3", "claude-haiku-5-5", "gpt")] == [
        "ok",
        "ok",
        "note",
    ]
    assert "2 models: qwen3:30b" in doctor.models_of(listed, ["gpt"]).detail
    odd = doctor.Answer("address", "ok", "", status=200, said={"data": [{"id": "a; rm b"}]})
    assert "settings model 'a; rm b'`" in str(doctor.models_of(odd, ["gpt"]).remedy), "it is copied into a shell"


@of_servers
def test_doctor_tries_no_offline_model(offline: Cli) -> None:
    assert "the offline model" in detail(offline("doctor", "--try", "--json"), "model")
    offline("doctor", "--model", "m").refused(2, "--model is for --try")


def test_info_names_the_main_paths_and_makes_nothing(cli: Cli, tmp_path: Path) -> None:
    homes = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_STATE_HOME": str(tmp_path / "state")}
    mine = cli.with_environment(**homes)
    before = sorted(tmp_path.rglob("*"))
    found = {each["name"]: each for each in mine("info", "--json").json}
    assert sorted(tmp_path.rglob("*")) == before
    assert found["workspace"] == {"name": "workspace", "path": str(tmp_path), "exists": True}
    assert found["models"]["path"] == f"{tmp_path}/.crewboard/models.toml"
    assert found["key bindings"] == {
        "name": "key bindings",
        "path": f"{tmp_path}/config/crewboard/keys.toml",
        "exists": False,
    }
    assert found["drafts"]["path"] == f"{tmp_path}/state/crewboard/drafts"
    assert found["accepted MCP servers"]["path"] == f"{tmp_path}/state/crewboard/accepted-mcp"
    assert found["types (Claude Code)"]["path"] == f"{tmp_path}/.claude/agents"
    assert found["ownership secret"]["path"] == f"{tmp_path}/state/crewboard/secret"
    assert Path(found["python"]["path"]) == Path(sys.executable)
    (tmp_path / "config/crewboard").mkdir(parents=True)
    (tmp_path / "config/crewboard/keys.toml").touch()
    lines = [line.split("  ", 1) for line in mine("info").out.splitlines()]
    shown = {name: path.strip() for name, path in lines}
    assert shown["key bindings"] == f"{tmp_path}/config/crewboard/keys.toml"
    assert shown["profiles"] == f"{tmp_path}/config/crewboard/profiles  (not there)"


@pytest.mark.long
def test_info_names_the_program_that_runs(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("crewboard")
    done = subprocess.run([program, "--root", tmp_path, "info"], check=True, capture_output=True, text=True)
    assert done.stdout.split()[:4] == ["program", str(program), "python", sys.executable]


def test_info_names_each_folder_that_sockets_may_be_in(cli: Cli, tmp_path: Path) -> None:
    """The first is not used if another user took it."""
    mine = cli.with_environment(XDG_RUNTIME_DIR="/run/of-mine", XDG_STATE_HOME="/s")
    found = {each["name"]: each["path"] for each in mine("info", "--json").json}
    assert [path for name, path in found.items() if name.startswith("sockets")] == [
        "/run/of-mine/crewboard",
        f"/tmp/crewboard-{os.geteuid()}",
        "/s/crewboard/run",
    ]


def test_info_names_each_team(cli: Cli, tmp_path: Path) -> None:
    assert cli("team", "create", "other").code == 0
    lines = map(str.split, cli("info").out.splitlines())
    assert ["team", "other", f"{tmp_path}/.crewboard/other"] in lines
