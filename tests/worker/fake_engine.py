"""An engine that follows scripts, and speaks the Agent Client Protocol as strictly as the real ones.

Its model does what stands between `[[` and `]]` in what it is told, step by step: `say TEXT`, `think TEXT`, `write FILE
TEXT` and `run COMMAND`, which ask first, `team TOOL JSON`, a call of its MCP server, `once TOOL JSON`, one that it does
not repeat after a kill, `force FILE TEXT`, which does not ask, `plan TEXT`, `insist TEXT`, a plan whose rejection ends
no turn, `submit PLAN`, a plan by the tool of the team, `behind TEXT`, a plan whose text follows the question for its
approval, `ask TEXT`, the same that goes on without a yes, `leave STEP`, one that the turn does not wait for,
`limit SECONDS [TEXT]`, a usage limit that ends then, `wait NAME`, `deep TEXT`, a call with a deeply nested input,
`odd`, `die`, `lose`, the end of its program below it, `drop`, the same between turns, `own TEXT`, words of its
own, `break TEXT`, which ends the turn with an error in such words. Without a step that is left it says "ok". In its
home it keeps sessions, and in `model.jsonl` what its model was told for the first time: an independent witness. At the
point NAME of `--hold NAME`, and of a step `wait NAME`, it writes the file `at-NAME` and waits for the file `go-NAME`.

As the real ones: a session without a prompt cannot be loaded; a prompt is stored when the model is asked, not when it
is received; the mode is reset at each start; a load replays the session first; a rejection ends the turn; the cost
counts from the start of the process; a call that was interrupted or failed is told as failed in the replay; the ids of
its own requests are numbers, and count anew in each process; the ids of the answers to a request are its own.

With `--load-error TEXT` its first load fails with that, with `--die-at-load` each ends it,
with `--killed-loads N` the first N are killed.
With `--withdraws` it withdraws what it asks at a message into its turn, and goes on, as Claude Code does; also at the
file `withdraw-N`, with the number of what it asks. With `--withdraws-silently` only the end of the call says so. With
both, while its first question waits, it takes the step in the file `call` beside that.
With `--forgets` a load replays the first text alone. With `--aborts` a call of its MCP server ends with its turn when
that is cancelled, as of Claude Code.

With `--feigns` the model writes into each input that the call is one of a tool of the team.

With `--codex` as Codex: it asks for plans alone, in a call that was not told before; an edit has a diff and no input;
what a command prints is told in pieces beside the call; a turn that was cancelled has no usage.
"""

import argparse
import functools
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

HOME = Path(os.environ["HOME"])
SCRIPT = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)
MODES = ("default", "acceptEdits", "plan", "auto")
FLAGS = (
    "no-load", "no-usage", "no-steering", "no-allow-once", "logged-out", "die-at-prompt", "cancels", "codex",
    "same-ids", "forgets", "declines", "stubborn", "asks-first", "feigns", "die-at-load",
    "withdraws", "withdraws-silently", "aborts",
)  # fmt: skip
MODES_OF_CODEX = ("read-only", "workspace-write", "agent", "agent-full-access")


class CancelledError(Exception):
    pass


class LimitedError(Exception):
    pass


class LostError(Exception):
    pass


class RefusedError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class FakeEngine:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.session = ""
        self.mode = "auto"
        self.cancelled = threading.Event()
        self.turn: threading.Thread | None = None
        self.steered: list[str] = []
        self.answers: dict[int, Any] = {}
        self.answered = threading.Condition()
        self.numbers = itertools.count()
        self.asks = itertools.count()
        self.cost = 0.0
        self.initialized = False
        self.server: subprocess.Popen[str] | None = None
        self.servers: list[dict[str, Any]] = []
        self.tools: list[str] = []

    # The wire.

    def send(self, **message: Any) -> None:
        with self.lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def update(self, what: str, /, **fields: Any) -> None:
        self.send(
            method="session/update", params={"sessionId": self.session, "update": {"sessionUpdate": what, **fields}}
        )

    def serve(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if message.get("jsonrpc") != "2.0":
                raise SystemExit("no JSON-RPC 2.0")
            if "method" not in message:
                with self.answered:
                    if message["id"] in self.answers:
                        raise SystemExit("answered twice")
                    self.answers[message["id"]] = message["result"]["outcome"]
                    self.answered.notify_all()
            elif "id" not in message:
                if message["method"] == "session/cancel":
                    self.require_session(message["params"])
                    self.cancelled.set()
                    (HOME / "at-cancel").touch()
                    with self.answered:
                        self.answered.notify_all()
            else:
                self.answer(message)
        (HOME / "at-close").touch()
        if self.options.stubborn:
            threading.Event().wait()
        os._exit(0)

    def answer(self, message: dict[str, Any]) -> None:
        name = message["method"].removeprefix("_").replace("/", "_")
        try:
            handle = getattr(self, f"on_{name}", None)
            if handle is None:
                raise RefusedError(-32601, "Method not found")
            if not self.initialized and name != "initialize":
                raise RefusedError(-32600, "not initialized")
            result = handle(message["id"], message["params"])
        except RefusedError as error:
            self.send(id=message["id"], error={"code": error.code, "message": str(error)})
        else:
            if result is not None:
                self.send(id=message["id"], result=result)

    def require_session(self, params: dict[str, Any]) -> None:
        if params.get("sessionId") != self.session or not self.session:
            raise RefusedError(-32602, "Session not found")

    def on_initialize(self, _: int, params: dict[str, Any]) -> dict[str, Any]:
        if params["protocolVersion"] != 1:
            raise RefusedError(-32602, "unsupported version")
        self.initialized = True
        capabilities = {"loadSession": not self.options.no_load}
        meta = {} if self.options.no_steering else {"steering": {"supported": True}}
        return {
            "protocolVersion": 1,
            "agentCapabilities": capabilities,
            "agentInfo": {"name": "fake", "version": "1.0"},
            "_meta": meta,
        }

    def on_session_new(self, _: int, params: dict[str, Any]) -> dict[str, Any]:
        if self.options.logged_out and not (HOME / "login").exists():
            raise RefusedError(-32000, "Authentication required")
        if not Path(params["cwd"]).is_dir():
            raise RefusedError(-32602, "bad parameters")
        self.start_server(params["mcpServers"])
        self.session = f"{os.getpid()}-{time.time_ns()}"
        self.send(method="_auth/status_update", params={"authStatus": {"kind": "none"}})
        self.hold("new")
        return {"sessionId": self.session, "modes": {"currentModeId": self.mode, "availableModes": []}}

    def count_load(self) -> None:
        """End as by a kill in the first loads, as many as are wanted."""
        with (HOME / "loads").open("a+") as loads:
            loads.write(".")
            loads.flush()
            if loads.tell() <= int(self.options.killed_loads):
                os.kill(os.getpid(), signal.SIGKILL)

    def on_session_load(self, _: int, params: dict[str, Any]) -> dict[str, Any]:
        if self.options.no_load:
            raise RefusedError(-32601, "Method not found")
        (HOME / "loaded").touch()
        self.start_server(params["mcpServers"])
        self.session = params["sessionId"]
        if self.options.die_at_load:
            os._exit(9)
        self.count_load()
        if self.options.load_error and not (HOME / "failed").exists():
            (HOME / "failed").touch()
            raise RefusedError(-32603, self.options.load_error)
        records = self.records()
        if not any(each["kind"] == "user" for each in records):
            self.session = ""
            raise RefusedError(-32602, "Session not found")
        ended = {each["id"] for each in records if each["kind"] == "ended"}
        # As of Codex, which replays from an index that may lack what came last.
        for at, each in enumerate(records[: 1 if self.options.forgets else None]):
            match each["kind"]:
                case "user":
                    self.update("user_message_chunk", content=text(each["text"]), messageId=f"u{at}")
                case "said":
                    self.update("agent_message_chunk", content=text(each["text"]), messageId=f"a{at}")
                case "call":
                    self.update("tool_call", toolCallId=each["id"], title="x", kind="other",
                                status="completed" if each["id"] in ended else "failed")  # fmt: skip
        self.hold("load")
        return {"modes": {"currentModeId": self.mode, "availableModes": []}}

    def on_session_set_mode(self, _: int, params: dict[str, Any]) -> dict[str, Any]:
        self.require_session(params)
        if params["modeId"] not in (MODES_OF_CODEX if self.options.codex else MODES):
            raise RefusedError(-32602, "Invalid Mode")
        self.mode = params["modeId"]
        return {}

    def on_session_set_config_option(self, _: int, params: dict[str, Any]) -> dict[str, Any]:
        self.require_session(params)
        if not self.options.codex:
            raise RefusedError(-32601, "Method not found")
        if params["configId"] != "collaboration_mode" or params["value"] not in ("default", "plan"):
            raise RefusedError(-32602, "Invalid option")
        return {"configOptions": []}

    def on_session_prompt(self, ident: int, params: dict[str, Any]) -> None:
        self.require_session(params)
        if self.turn is not None:
            # It may have told its end just now.
            self.turn.join(1)
            if self.turn.is_alive():
                raise RefusedError(-32603, "a turn is in progress")
        said = "".join(each["text"] for each in params["prompt"])
        self.cancelled.clear()
        self.turn = threading.Thread(target=self.work, args=(ident, said), daemon=True)
        self.turn.start()

    def on_session_steering(self, ident: int, params: dict[str, Any]) -> dict[str, Any] | None:
        self.require_session(params)
        if self.options.no_steering:
            (HOME / "at-unoffered").touch()
            raise RefusedError(-32601, "Method not found")
        if self.options.declines or self.turn is None or not self.turn.is_alive():
            if params["_meta"]["steering"]["idleBehavior"] != "promptRequired":
                raise RefusedError(-32602, "unsupported idleBehavior")
            return {"outcome": "promptRequired", "reason": "noRunningTurn"}
        self.steered.append("".join(each["text"] for each in params["prompt"]))
        threading.Thread(target=self.confirm, args=(ident,), daemon=True).start()
        return None

    def confirm(self, ident: int) -> None:
        """Tell that a message is in the turn. It is read there, also if the turn is cancelled meanwhile."""
        if self.options.asks_first:
            self.permitted({"toolCallId": f"call-{ident}", "title": "look", "kind": "other", "rawInput": {"at": "it"}})
        if "steer" in self.options.hold:
            (HOME / "at-steer").touch()
            while not (HOME / "go-steer").exists():
                time.sleep(0.005)
        self.send(id=ident, result={"outcome": "injected"})

    # Its MCP server.

    def start_server(self, servers: list[dict[str, Any]]) -> None:
        (about,) = self.servers = servers
        if about["env"] != [] or not about["name"]:
            raise RefusedError(-32602, "bad parameters")
        self.server = subprocess.Popen(
            [about["command"], *about["args"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        client = {"name": "fake", "version": "1"}
        self.ask_server("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        self.tell_server(method="notifications/initialized")
        self.tools = [each["name"] for each in self.ask_server("tools/list")["tools"]]

    def tell_server(self, **message: Any) -> None:
        assert self.server is not None
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.server.stdin.flush()

    def ask_server(self, method: str, /, **params: Any) -> dict[str, Any]:
        assert self.server is not None
        assert self.server.stdout is not None
        ident = next(self.numbers)
        self.tell_server(id=ident, method=method, params=params)
        answer: dict[str, Any] = json.loads(self.server.stdout.readline())
        if answer["id"] != ident:
            raise SystemExit("another answer")
        result: dict[str, Any] = answer["result"]
        return result

    # The session and its model.

    @property
    def file(self) -> Path:
        return HOME / "sessions" / f"{self.session}.jsonl"

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def store(self, kind: str, /, **fields: Any) -> None:
        self.file.parent.mkdir(exist_ok=True)
        with self.file.open("a") as file:
            file.write(json.dumps({"kind": kind, **fields}) + "\n")

    def tell_model(self, said: str) -> None:
        """Store what the model is told, and ask it: it has that from now on."""
        self.store("user", text=said)
        with (HOME / "model.jsonl").open("a") as file:
            file.write(json.dumps({"session": self.session, "text": said}) + "\n")

    def hold(self, name: str) -> None:
        if name in self.options.hold:
            self.wait(name)

    def wait(self, name: str) -> None:
        (HOME / f"at-{name}").touch()
        while not (HOME / f"go-{name}").exists():
            if self.cancelled.wait(0.005):
                raise CancelledError

    def work(self, ident: int, said: str) -> None:
        try:
            reason = self.follow(said)
        except CancelledError:
            reason = "cancelled"
        except LimitedError as error:
            said = f"Internal error: {error}"
            self.send(id=ident, error={"code": -32603, "message": said, "data": {"errorKind": "rate_limit"}})
            return
        except LostError as error:
            said, *code = error.args
            self.send(id=ident, error={"code": code[0] if code else -32603, "message": said})
            return
        self.cost += 0.25
        if not self.options.no_usage:
            # Codex does not tell its model.
            told = {} if self.options.codex else {"_meta": {"_claude/model": "model-of-fake"}}
            self.update("usage_update", used=120, size=1000, cost={"amount": self.cost, "currency": "USD"}, **told)
        usage = {"inputTokens": 100, "outputTokens": 20, "cachedReadTokens": 5, "cachedWriteTokens": 3}
        if self.options.codex and reason == "cancelled":
            self.send(id=ident, result={"stopReason": reason, "usage": None})
            return
        # A message that came too late for the turn is told in a turn of its own, which belongs to this one.
        self.send(id=ident, result={"stopReason": reason, **({} if self.options.no_usage else {"usage": usage})})

    def follow(self, said: str) -> str:
        self.hold("store")
        self.tell_model(said)
        self.hold("model")
        if self.options.die_at_prompt:
            os._exit(3)
        did = False
        while True:
            while self.steered:
                self.tell_model(self.steered.pop(0))
            step = self.next_step()
            if step is None:
                break
            did = True
            verb, _, rest = step.partition(" ")
            is_begun_once = verb in ("plan", "behind", "insist", "submit", "once", "ask")
            if is_begun_once:
                # Told of the decision, a model does not ask again, also if it was ended before it got an answer.
                self.store("done")
            went_on = getattr(self, f"do_{verb}")(rest)
            if not is_begun_once:
                self.store("done")
            if not went_on:
                return "cancelled" if self.options.cancels else "end_turn"
            if self.cancelled.is_set():
                raise CancelledError
        if not did:
            self.do_say("ok")
        self.hold("end")
        return "end_turn"

    def next_step(self) -> str | None:
        records = self.records()
        told = "\n".join(each["text"] for each in records if each["kind"] == "user")
        steps = [step.strip() for found in SCRIPT.findall(told) for step in found.split(";") if step.strip()]
        done = sum(each["kind"] == "done" for each in records)
        # A model that is told what became of its plan does not begin anew.
        submitted = [f"you submitted:\n{step.removeprefix('submit ')}\n" in told for step in steps]
        for _ in range(done, len(steps) - submitted[::-1].index(True) if any(submitted) else 0):
            self.store("done")
            done += 1
        return steps[done] if done < len(steps) else None

    def do_say(self, said: str) -> bool:
        message = f"m{next(self.numbers)}"
        self.store("said", text=said)
        for piece in (said[:2], said[2:]):
            self.update("agent_message_chunk", content=text(piece), messageId=message)
        return True

    def do_own(self, said: str) -> bool:
        self.update("agent_message_chunk", content=text(f"{said}\n\n"))
        return True

    def do_break(self, said: str) -> bool:
        """End the turn as Codex does whose model cannot be asked."""
        self.do_own(said)
        return False

    def do_think(self, said: str) -> bool:
        self.update("agent_thought_chunk", content=text(said), messageId=f"t{next(self.numbers)}")
        return True

    def do_wait(self, name: str) -> bool:
        self.wait(name)
        return True

    def do_odd(self, _: str) -> bool:
        self.update("dance", steps=3)
        self.send(method="_fake/extension", params={})
        sys.stdout.write("npm warn something\n")
        return True

    def do_die(self, _: str) -> bool:
        self.store("done")
        sys.stderr.write("fatal: out of luck\n")
        sys.stderr.flush()
        os._exit(7)

    def do_lose(self, _: str) -> bool:
        """Fail as the adapter of Claude Code does whose program ended below it."""
        self.store("done")
        raise LostError("The Claude Agent process exited unexpectedly. Please start a new session.")

    def do_drop(self, _: str) -> bool:
        """Fail as the adapter of Claude Code does whose program ended below it between two turns."""
        self.store("done")
        raise LostError("Resource not found", -32002)

    def do_limit(self, rest: str) -> bool:
        self.store("done")
        seconds, _, said = rest.partition(" ")
        banner = said or "You've hit your session limit · resets 3am (Europe/Paris)"
        self.do_say(banner)
        about = {"status": "rejected", "resetsAt": time.time() + int(seconds)}
        self.update("usage_update", used=120, size=1000, _meta={"_claude/rateLimit": about})
        raise LimitedError(banner)

    def do_steps(self, _: str) -> bool:
        entries = [{"content": "look", "status": "completed"}, {"content": "fix", "status": "in_progress"}]
        self.update("plan", entries=entries)
        return True

    def do_force(self, rest: str) -> bool:
        name, _, content = rest.partition(" ")
        return self.call("edit", f"Write {name}", {"file_path": str(Path.cwd() / name), "content": content}, ask=False)

    def do_write(self, rest: str) -> bool:
        name, _, content = rest.partition(" ")
        return self.call("edit", f"Write {name}", {"file_path": str(Path.cwd() / name), "content": content}, ask=True)

    def do_run(self, command: str) -> bool:
        return self.call("execute", command, {"command": command}, ask=True)

    def do_team(self, rest: str) -> bool:
        name, _, arguments = rest.partition(" ")
        ident = "toolu-0" if self.options.same_ids else f"toolu-{os.getpid()}-{next(self.numbers)}"
        about: dict[str, Any] = {
            "toolCallId": ident, "title": name, "kind": "other", "rawInput": json.loads(arguments or "{}"),
            "_meta": {"claudeCode": {"toolName": f"mcp__crewboard__{name}"}},
        }  # fmt: skip
        given = {"name": name, "arguments": about["rawInput"], "_meta": {"claudecode/toolUseId": ident}}
        if self.options.codex:
            about["kind"], about["rawInput"] = "execute", {"server": "crewboard", "tool": name, **given}
            about["_meta"] = {"is_mcp_tool_call": True}
        self.update("tool_call", **about, status="pending")
        self.store("call", id=ident)
        if not self.options.codex and not self.permitted({**about, "status": "pending"}):
            return False
        self.hold("call")
        asking = futures.ThreadPoolExecutor(1).submit(self.ask_server, "tools/call", **given)
        while self.options.aborts and not asking.done():
            if self.cancelled.wait(0.005):
                # Its answer is read by no one.
                self.start_server(self.servers)
                raise CancelledError
        result = asking.result()
        if self.options.same_ids:
            # An engine may send a call again.
            result = self.ask_server("tools/call", **given)
        self.hold("result")
        said = result["content"][0]["text"]
        with (HOME / "results").open("a") as file:
            file.write(json.dumps([name, said, result["isError"]]) + "\n")
        if not result["isError"]:
            self.store("ended", id=ident)
        self.update("tool_call_update", toolCallId=ident, status="failed" if result["isError"] else "completed")
        return True

    def do_submit(self, plan: str) -> bool:
        return self.do_team("submit_plan " + json.dumps({"plan": plan}))

    def do_once(self, rest: str) -> bool:
        return self.do_team(rest)

    def do_deep(self, what: str) -> bool:
        deep: Any = what
        for _ in range(100):
            deep = [deep]
        return self.call("other", what, {"what": what, "options": deep}, ask=True)

    def do_spawn(self, command: str) -> bool:
        subprocess.Popen(["sh", "-c", command], start_new_session=True)
        return True

    def call(self, kind: str, title: str, given: dict[str, Any], *, ask: bool) -> bool:
        ident = "call-0" if self.options.same_ids else f"call-{os.getpid()}-{next(self.numbers)}"
        if self.options.feigns:
            given = {**given, "server": "crewboard", "tool": "send_message"}
        if self.options.codex:
            return self.call_of_codex(ident, kind, title, given)
        about: dict[str, Any] = {"toolCallId": ident, "title": title, "kind": kind}
        self.update("tool_call", **about, rawInput={}, status="pending")
        self.store("call", id=ident)
        # The input comes in pieces, as the model writes it.
        self.update("tool_call_update", toolCallId=ident, rawInput=dict([*given.items()][:1]))
        if kind == "edit":
            path, content = given["file_path"], given["content"]
            about["content"] = [{"type": "diff", "path": path, "oldText": None, "newText": content}]
        self.update("tool_call_update", **about, rawInput=given)
        if ask and not self.permitted({**about, "rawInput": given, "status": "pending"}):
            self.tell_refused(ident)
            return False
        try:
            output = self.act(kind, given)
        except (OSError, subprocess.CalledProcessError) as error:
            self.update("tool_call_update", toolCallId=ident, status="failed", rawOutput=str(error))
        else:
            self.update("tool_call_update", toolCallId=ident, status="completed", rawOutput=output)
        return True

    def call_of_codex(self, ident: str, kind: str, title: str, given: dict[str, Any]) -> bool:
        about: dict[str, Any] = {"title": title, "rawInput": {**given, "cwd": str(Path.cwd())}}
        if kind == "edit":
            diff = {"type": "diff", "path": given["file_path"], "oldText": "", "newText": given["content"]}
            about = {"title": "Editing files", "content": [diff]}
        self.update("tool_call", toolCallId=ident, kind=kind, status="in_progress", **about)
        self.store("call", id=ident)
        try:
            status, output = "completed", self.act(kind, given)
        except (OSError, subprocess.CalledProcessError) as error:
            status, output = "failed", str(error)
        for piece in (output[:1], output[1:]):
            printed = {"terminal_output_delta": {"data": piece, "terminal_id": ident}}
            self.update("tool_call_update", toolCallId=ident, _meta=printed)
        self.update("tool_call_update", toolCallId=ident, status=status)
        return True

    def act(self, kind: str, given: dict[str, str]) -> str:
        if kind == "execute":
            done = subprocess.run(given["command"], shell=True, capture_output=True, text=True, check=True)
            return done.stdout
        if kind != "edit":
            return "done"
        # Each write leaves a trace: one that is done twice has two lines.
        with Path(given["file_path"]).open("a") as file:
            file.write(given["content"] + "\n")
        return "written"

    def do_plan(self, plan: str, *, behind: bool = False) -> bool:
        ident = f"plan-{os.getpid()}-{next(self.numbers)}"
        about: dict[str, Any] = {"toolCallId": ident, "title": "Approve Plan", "kind": "switch_mode"}
        if not self.options.codex:
            self.update("tool_call", **about, rawInput={}, status="pending")
            self.store("call", id=ident)
            # A plan that the model wrote into its call is told with the call alone: `claude-agent-acp` 0.101.0.
            tell = functools.partial(self.update, "tool_call_update", toolCallId=ident, rawInput={"plan": plan})
            if behind:
                threading.Timer(0.2, self.tell_late, [tell]).start()
            elif plan:
                tell()
        given = {"plan": plan} if self.options.codex else {}
        if not self.permitted({**about, "rawInput": given, "status": "pending"}):
            self.tell_refused(ident)
            return False
        self.mode = "default"
        self.update("tool_call_update", toolCallId=ident, status="completed")
        return True

    def tell_late(self, tell: Callable[[], None]) -> None:
        self.hold("tell")
        tell()
        (HOME / "at-told").touch()

    def tell_refused(self, ident: str) -> None:
        if not self.options.withdraws:
            self.update("tool_call_update", toolCallId=ident, status="completed" if self.options.codex else "failed")

    def do_leave(self, step: str) -> bool:
        self.begin(step)
        while not (HOME / "at-ask-0").exists():
            time.sleep(0.005)
        return True

    def begin(self, step: str) -> None:
        verb, _, rest = step.partition(" ")
        threading.Thread(target=getattr(self, f"do_{verb}"), args=(rest,), daemon=True).start()

    def do_ask(self, plan: str) -> bool:
        """Ask for approval of a plan, and go on whatever becomes of it."""
        self.do_plan(plan, behind=True)
        return True

    def do_behind(self, plan: str) -> bool:
        """Ask for approval of a plan before its text is told, as its updates may be slower than its questions."""
        return self.do_plan(plan, behind=True)

    def do_insist(self, plan: str) -> bool:
        self.do_plan(plan)
        return True

    def permitted(self, call: dict[str, Any]) -> bool:
        ident = next(self.asks)
        kinds = (
            ["allow_always", "reject_once"]
            if self.options.no_allow_once
            else ["allow_always", "allow_once", "reject_once"]
        )
        options = [{"optionId": f"answer-{at}", "name": kind, "kind": kind} for at, kind in enumerate(kinds)]
        params = {"sessionId": self.session, "toolCall": call, "options": options}
        self.hold("asks")
        self.send(id=ident, method="session/request_permission", params=params)
        (HOME / f"at-ask-{ident}").touch()
        if self.options.withdraws or self.options.withdraws_silently:
            while ident not in self.answers and not self.steered and not (HOME / f"withdraw-{ident}").exists():
                if ident == 0 and (HOME / "call").exists():
                    (HOME / "call").rename(HOME / "called")
                    self.begin((HOME / "called").read_text())
                time.sleep(0.005)
            if ident not in self.answers:
                if self.options.withdraws:
                    self.send(method="$/cancel_request", params={"requestId": ident})
                    with self.answered:
                        self.answered.wait_for(lambda: ident in self.answers)
                else:
                    self.update("tool_call_update", toolCallId=call["toolCallId"], status="failed",
                                rawOutput="Tool permission request aborted")  # fmt: skip
                return False
        with self.answered:
            self.answered.wait_for(lambda: ident in self.answers)
        outcome = self.answers[ident]
        if outcome["outcome"] == "cancelled":
            if self.cancelled.is_set():
                raise CancelledError
            return False
        chosen = {each["optionId"]: each["kind"] for each in options}[outcome["optionId"]]
        if chosen == "allow_always":
            (HOME / "allowed-always").touch()
        return chosen.startswith("allow")


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hold", action="append", default=[])
    parser.add_argument("--load-error", default="")
    parser.add_argument("--killed-loads", default="0")
    for flag in FLAGS:
        parser.add_argument(f"--{flag}", action="store_true")
    FakeEngine(parser.parse_args()).serve()


if __name__ == "__main__":
    main()
