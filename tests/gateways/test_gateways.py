"""The promises of an agent behind real gateways: `make gateways` installs and tests them."""

import json
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.shell import Cli
from tests.crew import eventually
from tests.gateways.backend import MODELS, calls, says, text_of
from tests.gateways.conftest import Gateway
from tests.pictures import png

pytestmark = pytest.mark.gateways


def spawn(name: str, kind: str, prompt: str, *more: str) -> tuple[str, ...]:
    return ("spawn", name, "--type", kind, "--prompt", prompt, *more)


def text_sent(gateway: Gateway, agent: str) -> str:
    """Return all texts of the last request of an agent that reached the backend."""
    return text_of(gateway.backend.asked_by(agent)[-1]["messages"])


def images_in(body: dict[str, Any]) -> int:
    """Return the number of images in a request that reached the backend."""
    return json.dumps(body).count('"type": "image_url"')


def agent_of(cli: Cli, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in cli("status", "--json").json["agents"] if each["name"] == name)
    return found


def test_calls_run_where_the_reply_seems_to_have_ended(cli: Cli, gateway: Gateway) -> None:
    (cli.root / "notes.md").write_text("the word is heron\n")
    (cli.root / "more.md").write_text("the colour is mauve\n")
    both = calls(("read_file", {"path": "notes.md"}), ("read_file", {"path": "more.md"}), finish="stop")
    gateway.backend.give("scout", both, says("heron, mauve"))
    ran = cli(*spawn("scout", "explore", "Read both"))
    assert (ran.code, ran.out) == (0, "heron, mauve\n"), ran.err
    results = [each for each in gateway.backend.asked_by("scout")[-1]["messages"] if each["role"] == "tool"]
    assert ["heron" in text_of(results[0]), "mauve" in text_of(results[1])] == [True, True]


def test_nothing_is_written_before_a_plan_is_approved(cli: Cli, gateway: Gateway) -> None:
    write = calls(("write_file", {"path": "note.md", "content": "hello\n"}))
    plan = calls(("submit_plan", {"plan": "# Plan\n1. Write note.md."}))
    gateway.backend.give("planner", write, plan, write, says("written"))
    assert cli(*spawn("planner", "code", "Write note.md", "--plan", "--background")).code == 0
    (asked,) = eventually(lambda: cli("requests", "--json").json, "the plan")
    assert not (cli.root / "note.md").exists()
    assert cli("approve", asked["id"]).code == 0
    assert cli("wait", "planner", "--until", "idle", "--timeout", "30").code == 0
    assert (cli.root / "note.md").read_text() == "hello\n"


def test_a_reply_that_breaks_off_or_is_refused_comes_again(cli: Cli, gateway: Gateway) -> None:
    look = calls(("list_dir", {"path": "."}))
    dropped, ended = (replace(look, cut=how) for how in ("dropped", "ended"))
    gateway.backend.give("again", dropped, ended, says("Rate limit reached", status=429), look, says("the end"))
    ran = cli(*spawn("again", "explore", "Look"))
    assert (ran.code, ran.out) == (0, "the end\n"), ran.err
    assert text_sent(gateway, "again").count("(an empty directory)") == 1


# The other one leaves reasoning out.
@pytest.mark.parametrize("gateway", ["litellm"], indirect=True)
def test_thinking_without_a_signature_goes_back(cli: Cli, gateway: Gateway) -> None:
    gateway.backend.give("thinker", calls(("list_dir", {}), reasoning="herons are birds"), says("the end"))
    ran = cli(*spawn("thinker", "explore", "Look"))
    assert (ran.code, ran.out) == (0, "the end\n"), ran.err
    assert "herons are birds" in text_sent(gateway, "thinker")


# The other one turns images of results into text.
@pytest.mark.parametrize("gateway", ["litellm"], indirect=True)
def test_an_image_is_sent_until_the_model_refuses_it(cli: Cli, gateway: Gateway) -> None:
    (cli.root / "dot.png").write_bytes(png())
    images = []
    for model in ("local", "blind"):
        gateway.backend.give(model, calls(("read_file", {"path": "dot.png"})), says("seen"))
        ran = cli(*spawn(model, "explore", "Look at dot.png", "--model", gateway.prefix + model))
        assert (ran.code, ran.out) == (0, "seen\n"), ran.err
        images.append([images_in(body) for body in gateway.backend.asked_by(model)])
    assert images == [[0, 1], [0, 1, 0]]


def test_an_overflow_teaches_the_window_and_work_goes_on(cli: Cli, gateway: Gateway) -> None:
    (cli.root / "long.txt").write_text("a line of some length\n" * 400)
    reads = [calls(("read_file", {"path": path})) for path in ("long.txt", "./long.txt", "././long.txt")]
    gateway.backend.give("reader", *reads, says("the end"))
    ran = cli(*spawn("reader", "explore", "Read it, and remember the word heron", "--model", f"{gateway.prefix}small"))
    assert (ran.code, ran.out) == (0, "the end\n"), ran.err
    assert agent_of(cli, "reader")["context"]["limit"] == MODELS["small"].window
    assert "heron" in text_sent(gateway, "reader")


def test_resume_keeps_the_conversation_after_a_kill(cli: Cli, gateway: Gateway) -> None:
    gateway.backend.give("mortal", calls(("ask_operator", {"question": "And?"})), says("the end"))
    assert cli(*spawn("mortal", "explore", "Remember the word heron", "--background")).code == 0
    eventually(lambda: cli("requests", "--json").json, "the question")
    os.kill(agent_of(cli, "mortal")["pid"], signal.SIGKILL)
    assert cli("wait", "mortal", "--until", "crashed", "--timeout", "30").code == 0
    assert cli("resume", "mortal").code == 0
    (asked,) = eventually(lambda: cli("requests", "--json").json, "the question, asked again")
    assert cli("answer", asked["id"], "mauve").code == 0
    assert cli("wait", "mortal", "--until", "idle", "--timeout", "30").code == 0
    assert ["heron" in text_sent(gateway, "mortal"), "mauve" in text_sent(gateway, "mortal")] == [True, True]


def test_a_budget_holds_also_where_no_tokens_are_reported(cli: Cli, gateway: Gateway) -> None:
    looks = [calls(("list_dir", {"path": "./" * count})) for count in range(1, 9)]
    gateway.backend.give("spender", *looks, says("the end"))
    ran = cli(*spawn("spender", "explore", "Look around", "--budget", "5000"))
    assert (ran.code, len(gateway.backend.asked_by("spender")) in {3, 4}) == (79, True), ran.err
    used = next(line for line in cli("status").out.splitlines() if " used" in line)
    assert ("~" in used) == ("usage" in gateway.unsaid), used


def test_doctor_tries_the_gateway(cli: Cli, gateway: Gateway) -> None:
    gateway.backend.give("probe", calls(("glob", {"pattern": "README*"})))
    found = {each["name"]: each for each in cli("doctor", "--try", "--json").json}
    names = ("address", "key", "models", "window", "call", "usage")
    assert {name: found[name]["mark"] for name in names} == {
        name: "note" if name in gateway.unsaid else "ok" for name in names
    }
    if "models" not in gateway.unsaid:
        assert all(name in found["models"]["detail"] for name in MODELS)
