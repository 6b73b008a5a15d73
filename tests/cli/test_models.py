"""The model that an agent gets, and what is said of one that the server does not have."""

import contextlib
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from crewboard import agent_types, endpoint, local_servers, models, operations
from crewboard.commands import answers, hire, messages, settings
from crewboard.commands.context import Team
from crewboard.errors import UsageError
from crewboard.offline.service import Fault
from crewboard.records.agents import HELD_REPEATS, HireOptions
from crewboard.records.team import Config, Member
from crewboard.store.layout import TeamDirectory
from crewboard_tui.cli import hiring
from tests.cli.shell import Cli, Inside
from tests.crew import WAIT_TIMEOUT, Crew, eventually
from tests.model import calls, listing, says
from tests.raw import Raw, RawServer, as_json
from tests.worker.test_terms import add

ANTHROPIC = {"ANTHROPIC_DEFAULT_HAIKU_MODEL": "small", "ANTHROPIC_DEFAULT_OPUS_MODEL": "large"}


@pytest.mark.parametrize(
    ("given", "environment", "setting", "hirer", "expected"),
    [
        ("opus", {"CREWBOARD_MODEL": "m"}, "s", "local", "claude-opus-5-5"),
        ("opus", ANTHROPIC, None, "", "large"),
        ("claude-opus-5-5", ANTHROPIC, None, "", "claude-opus-5-5"),
        (None, {"CREWBOARD_MODEL": "m", "ANTHROPIC_MODEL": "n"}, "s", "local", "m"),
        (None, {"ANTHROPIC_MODEL": "n"}, "s", "local", "n"),
        (None, {}, "s", "local", "s"),
        (None, {}, "s explore=haiku", "local", "claude-haiku-5-5"),
        (None, {}, "explore=e code=c", "", "e"),
        (None, {}, "code=c", "", "claude-haiku-5-5"),
        (None, {}, None, "local", "local"),
        (None, {}, None, "claude-fable-5-2", "claude-haiku-5-5"),
        (None, ANTHROPIC, None, "", "small"),
        (None, ANTHROPIC, None, "large", "small"),
        (None, {}, None, "", "claude-haiku-5-5"),
    ],
)
def test_a_new_agent_gets_the_model_that_was_said_last(
    given: str | None, environment: dict[str, str], setting: str | None, hirer: str, expected: str
) -> None:
    members = [Member(name="boss", type="lead", model=hirer)] if hirer else []
    config = Config(name="t", model=setting, members=members)
    kind = agent_types.TYPES["explore"]
    assert hire.choose_model(kind, given, environment, config, "boss" if hirer else "operator") == expected


@pytest.mark.long
@pytest.mark.linux("sandbox")
def test_hires_of_a_lead_use_its_model(crew_on: Callable[..., Crew]) -> None:
    crew = crew_on(script=[says("done")] * 4)
    team = Team(crew.directory, environment=crew.environment)
    hire.tell_lead(team, "go", model="local-model")
    hire.spawn(Team(crew.directory, by="lead", environment=crew.environment), hire.Hire("scout", "explore", "look"))
    spec = crew.directory.agent("scout").spec.load()
    assert spec is not None
    assert spec.model == "local-model"
    with pytest.raises(UsageError, match=r"lead runs with local-model; `crewboard .*stop lead` ends it"):
        hire.tell_lead(team, "go on", model="opus")


def test_the_setting_of_the_model_is_read_and_removed(cli: Cli) -> None:
    assert cli("settings", "model", " qwen3-coder  explore=qwen3:8b ").out == "model qwen3-coder explore=qwen3:8b\n"
    for wrong in ("", " ", "one two", "explore=a explore=b", "=a", "a="):
        cli("settings", "model", wrong).refused(2, "give one model, and exceptions for types")
    cli("settings", "model", "one plan=two nope=three").refused(2, "there is no agent type 'nope'; the types are ")
    assert cli("settings", "model").out == "model qwen3-coder explore=qwen3:8b\n"
    assert cli("settings", "model", "none").out == "model none\n"


def test_a_model_that_the_api_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "API_HOST", "127.0.0.1")
    with listing("claude-opus-5-5", "claude-haiku-5-5-20261001") as url:
        here = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "k"}
        with pytest.raises(
            UsageError, match="there is no model claude-2, or no longer; the API knows claude-opus-5-5,"
        ):
            models.require("claude-2", None, None, here)
        for known in ("claude-opus-5-5", "claude-haiku-5-5"):
            models.require(known, None, None, here)
    models.require("claude-2", None, None, here)


def test_a_model_that_the_api_has_retired_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "API_HOST", "127.0.0.1")
    stages = {"claude-opus-4": "retired", "claude-opus-4-6": "deprecated"}
    pages = {
        f"/v1/models/{name}": as_json({"id": name, "lifecycle": stage, "capabilities": None})
        for name, stage in stages.items()
    }
    with RawServer(pages=pages) as server:
        here = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "k"}
        with pytest.raises(UsageError, match="claude-opus-4 is retired: choose a newer model"):
            models.require("claude-opus-4", None, None, here)
        models.require("claude-opus-4-6", None, None, here)


@pytest.mark.long
def test_a_model_that_another_server_does_not_list_is_noted(cli: Cli) -> None:
    with listing("qwen3:8b", "llama") as url:
        shell = cli.with_environment(ANTHROPIC_BASE_URL=url, ANTHROPIC_AUTH_TOKEN="local")
        hired = shell("spawn", "a", "--type", "explore", "--prompt", "look", "--background")
        other = shell("spawn", "b", "--type", "explore", "--prompt", "look", "--background", "--model", "qwen3")
        assert "does not list the model claude-haiku-5-5 of a: it lists qwen3:8b, llama" in hired.err
        assert "does not list" not in other.err
        assert [one.err.count("`crewboard settings max_working 1`") for one in (hired, other)] == [1, 0]
        assert [shell("stop", name, "--now").code for name in ("a", "b")] == [0, 0]


LISTED = "/v1/models?limit=1000"


def test_a_hire_says_where_the_list_of_models_is_redirected(
    directory: TeamDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    add(directory, "a", "explore")
    add(directory, "b", "explore")
    with RawServer(pages={LISTED: Raw(b"", 301, location="http://127.0.0.1:9/gate/v1/models?key=k")}) as server:
        here = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_AUTH_TOKEN": "local"}
        hiring.tell_of_model(Team(directory, environment=here), "a")
        settings.change_setting(Team(directory), "server", server.url)
        hiring.tell_of_model(Team(directory, environment={}), "a")
    said = capsys.readouterr().err
    moved = f"{server.url} redirects to http://127.0.0.1:9/gate/v1/models: "
    assert f"{moved}set ANTHROPIC_BASE_URL to http://127.0.0.1:9/gate\n" in said
    assert re.search(f"{moved}`crewboard .*settings server http://127.0.0.1:9/gate` uses that one\n", said)
    assert "key=k" not in said


def test_a_hire_says_which_server_it_waits_for(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hire, "_TOLD_AFTER", 0.0)
    add(directory, "a", "explore")
    told, held = list[str](), threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        held.set()

    # It is silent until the user was told.
    silent = Raw(b"", missing=9, held=held)
    with RawServer(pages=dict.fromkeys((LISTED, "/v1/models/claude-haiku-5-5"), silent)) as server:
        here = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_AUTH_TOKEN": "local"}
        team = Team(directory, environment=here, tell=tell)
        hiring.tell_of_model(team, "a")
        held.clear()
        hire.require_model(team, "claude-haiku-5-5", HireOptions(effort="low"))
    port = server.url.rpartition(":")[2]
    assert told == [
        f"asking 127.0.0.1:{port} for its models …",
        f"asking 127.0.0.1:{port} what claude-haiku-5-5 can do …",
    ]


@pytest.mark.long
def test_a_spawn_says_until_when_it_waits(crew_on: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hiring, "WORTH_SAYING", 0.0)
    crew = crew_on([says("done")], [Fault(kind="status", status=529, retry_after=2)], CREWBOARD_RETRY_BUDGET="0.1")
    ran = Inside(crew.root, crew.environment)("spawn", "a", "--type", "explore", "--prompt", "look")
    assert (ran.code, ran.out) == (0, "done\n")
    assert re.search(r"a waits until \d\d:\d\d:\d\d: the API is unavailable: 529", ran.err), ran.err


@pytest.mark.long
def test_a_spawn_says_what_its_agent_waits_for_asks(
    crew_on: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    hires = calls("spawn_agent", name="scout", agent_type="explore", prompt="look")
    crew = crew_on({"boss": [hires, says("done")], "scout": [calls("ask_operator", question="Which?"), says("seen")]})
    told: list[str] = []

    def hear(text: str) -> None:
        told.append(text)
        if text.startswith("scout waits for you"):
            answers.answer(crew.team, crew.pending("question").id, "this")

    monkeypatch.setattr(hiring, "note", hear)
    spawned = ("spawn", "boss", "--type", "lead", "--prompt", "begin", "--unsafe-no-sandbox")
    ran = Inside(crew.root, crew.environment)(*spawned)
    assert (ran.code, ran.out) == (0, "done\n"), told


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("paused", r"a is held: it is paused; `crewboard.* unpause a` lets it go on"),
        ("repeats", r"a is held: list_dir .*×8, same outcome; `crewboard.* send a TEXT` lets it go on"),
        ("stopped", r"a is held: a signal stopped its process (\d+); `kill -CONT \1` continues it"),
    ],
)
def test_a_spawn_says_what_holds_its_agent(
    crew_on: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch, how: str, said: str
) -> None:
    look = calls("list_dir", path=".")
    crew = crew_on([*[look] * (HELD_REPEATS if how == "repeats" else 1), says("done")])
    told, notes = threading.Event(), list[str]()

    def note(text: str) -> None:
        notes.append(text)
        if "is held" in text:
            told.set()

    def works() -> bool:
        status = crew.agent("a").status.load()
        return status is not None and status.state == "working"

    def hold_and_release(held: contextlib.ExitStack) -> None:
        with held:
            eventually(works, "its first call")
            if how == "paused":
                operations.pause(crew.team, "a")
            elif how == "stopped":
                crew.halt("a")
                told.wait(WAIT_TIMEOUT)
        told.wait(WAIT_TIMEOUT)
        if how == "paused":
            operations.unpause(crew.team, "a")
        elif how == "stopped":
            crew.kill("a", signal.SIGCONT)
        else:
            messages.send(crew.team, "a", "stop looking")

    monkeypatch.setattr(hiring, "note", note)
    with contextlib.ExitStack() as held, ThreadPoolExecutor() as pool:
        held.enter_context(crew.model.holding())
        other = pool.submit(hold_and_release, held.pop_all())
        ran = Inside(crew.root, crew.environment)("spawn", "a", "--type", "explore", "--prompt", "look")
        other.result()
    assert (ran.code, ran.out) == (0, "done\n")
    assert len([text for text in notes if re.search(said, text)]) == 1, notes


@pytest.mark.long
def test_doctor_offers_a_local_server_that_the_team_then_uses(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with listing("nomic-embed-text", "llama3", "qwen3-coder:30b") as url:
        monkeypatch.setattr(local_servers, "PORTS", {int(url.rpartition(":")[2]): "Ollama", 9: "vLLM"})
        (offer,) = [check for check in cli("doctor", "--json").json if check["name"] == "local"]
        assert offer["detail"] == f"Ollama on this machine has qwen3-coder:30b and 2 more models ({url})"
        commands = offer["remedy"].split("`")[1].split(" && ")
        assert commands == [f"crewboard settings server {url}", "crewboard settings model qwen3-coder:30b"]
        assert [cli(*command.split()[1:]).code for command in commands] == [0, 0]
        checks = {check["name"]: check for check in cli("doctor", "--json").json}
        assert checks["model"]["mark"] == "ok"
        assert f"no key for {url}" in checks["model"]["detail"]
        assert "local" not in checks
        keyed = cli.with_environment(ANTHROPIC_API_KEY="a-key")
        tried = {check["name"]: check for check in keyed("doctor", "--try", "--json").json}
        assert (tried["key"]["mark"], tried["key"]["remedy"]) == ("ok", None)
        assert tried["key"]["detail"] == "the server asks for none, and none is sent"
        hired = keyed("spawn", "a", "--type", "explore", "--prompt", "look", "--background")
        assert f"this team uses {url} and not your API key" in hired.err
        assert [agent["model"] for agent in keyed("status", "--json").json["agents"]] == ["qwen3-coder:30b"]
        assert cli("stop", "a", "--now").code == 0


def test_the_server_of_a_team_gets_no_key() -> None:
    keyed = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_MODEL": "claude-opus-5-5", "HOME": "/"}
    local = "http://10.0.0.7:11434"
    assert endpoint.at_server(keyed, local) == {
        "HOME": "/", "ANTHROPIC_BASE_URL": local, "ANTHROPIC_AUTH_TOKEN": "local",
    }  # fmt: skip
    shell = {**keyed, "ANTHROPIC_BASE_URL": "https://gateway.example"}
    assert endpoint.at_server(shell, local) == shell
    assert endpoint.at_server(keyed, "https://collects.example") == keyed
    assert endpoint.at_server(keyed, None) == keyed


def test_a_server_elsewhere_is_no_setting(cli: Cli) -> None:
    cli("settings", "server", "https://gateway.example").refused(2, "not on this machine or its network")
    cli("settings", "server", "localhost:11434").refused(2, "did you mean http://localhost:11434?")
    assert cli("settings", "server", "http://gpu-box:8000/").out == "server http://gpu-box:8000\n"
