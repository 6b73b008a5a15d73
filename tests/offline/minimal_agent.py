"""A minimal agent for tests: a conversation, tools on a real folder, and the real SDK.

Its tools are the worker's own file tools, and stand-ins for those that need a team.
"""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from crewboard.untrusted import delimit
from crewboard.worker.tools.file_server import answer
from crewboard.worker.tools.workspace import Workspace

if TYPE_CHECKING:
    from anthropic import Anthropic
    from anthropic.types import Message

LOOK = ("read_file", "glob", "grep", "list_dir")
TEAM = ("send_message", "read_inbox", "task_list", "task_claim", "task_update", "ask_operator")
CODE = ("bash", "write_file", "edit_file", *LOOK, "submit_plan")
HANDS = frozenset({"write_file", "edit_file", *LOOK})

Outcome = tuple[str, bool]
"""The result of a tool: its text, and whether that is an error."""


def definition(name: str) -> dict[str, Any]:
    return {"name": name, "description": name, "input_schema": {"type": "object"}}


@dataclass
class MinimalAgent:
    client: "Anthropic"
    root: Path
    name: str = "ada"
    type: str = "explore"
    tools: tuple[str, ...] = (*LOOK, *TEAM)
    rules: str = ""
    answers: dict[str, list[str | Outcome]] = field(default_factory=dict)
    """The results that stand in for a tool's, call by call; the last again and again."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    on_call: Callable[[str], None] | None = None

    @property
    def used(self) -> list[str]:
        return [name for name, _ in self.calls]

    @property
    def system(self) -> str:
        who = f'You are {self.name}, a {self.type} agent in the crewboard team "demo". Your role: tester.'
        return f"{who}\nYou report to lead.\n\n{self.rules}"

    def hear(self, text: str, kind: str = "prompt", author: str = "operator") -> None:
        self._add("user", [{"type": "text", "text": delimit(author, kind, f"m{len(self.messages)}", text)}])

    def ask(self, text: str, kind: str = "prompt", author: str = "operator") -> str:
        """Hear something and work until the answer."""
        self.hear(text, kind, author)
        return self.work()

    def work(self) -> str:
        while (reply := self.reply()).stop_reason == "tool_use":
            self.run_tools(reply)
        return "".join(block.text for block in reply.content if block.type == "text")

    def reply(self) -> "Message":
        with self.client.messages.stream(
            model="claude-sonnet-5-5",
            max_tokens=16_000,
            system=self.system,
            messages=cast("Any", self.messages),
            tools=cast("Any", [definition(name) for name in self.tools]),
            cache_control={"type": "ephemeral"},
        ) as stream:
            message = stream.get_final_message()
        self._add("assistant", [block.to_dict(mode="json") for block in message.content])
        return message

    def run_tools(self, reply: "Message") -> None:
        results = []
        for block in reply.content:
            if block.type == "tool_use":
                text, is_error = self._run(block.name, dict(block.input))
                result = {"type": "tool_result", "tool_use_id": block.id, "content": text or "(no output)"}
                results.append({**result, "is_error": True} if is_error else result)
        self._add("user", results)

    def _run(self, name: str, given: dict[str, Any]) -> Outcome:
        self.calls.append((name, given))
        if self.on_call:
            self.on_call(name)
        if planned := self.answers.get(name):
            told = planned.pop(0) if len(planned) > 1 else planned[0]
            return told if isinstance(told, tuple) else (told, False)
        if name in HANDS:
            done = answer(Workspace(self.root, self.root / "results"), {"name": name, "input": given})
            return done["content"], done["is_error"]
        if name == "bash":
            return run(given["command"], self.root)
        return f"{name} done", False

    def _add(self, role: str, blocks: list[dict[str, Any]]) -> None:
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"].extend(blocks)
        else:
            self.messages.append({"role": role, "content": blocks})


def run(command: str, root: Path) -> Outcome:
    done = subprocess.run(
        command,
        shell=True,
        cwd=root,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return f"{done.stdout.rstrip()}\n[exit code {done.returncode}]".lstrip("\n"), False


APPROVED = "The plan is approved by operator. Carry it out."


def rejected(feedback: str) -> Outcome:
    text = f"The plan is rejected by operator.\nFeedback: {feedback}\nRevise it and submit it again."
    return text, True


PLAN_REQUIRED = "A plan is required: until a plan that you handed in with submit_plan is approved, you may read."
