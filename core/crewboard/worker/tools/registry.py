"""The tools that an agent has at the moment, and how they are shown to the model.

A call of any other tool is refused, even if the model was shown that tool earlier.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from crewboard import web
from crewboard.agent_types import MCP_PREFIX, SEND_EXPLORER, TEAM_TOOLS, kept_by_terms, type_of
from crewboard.names import LEAD
from crewboard.protocol import reviews
from crewboard.store import roster
from crewboard.worker.run_state import RunState
from crewboard.worker.tools import files, mcp, messaging, plans, skills, tasks, team
from crewboard.worker.tools.base import Outcome, Tool
from crewboard.worker.tools.plans import gate_refusal, is_plan_required

TOOLS: dict[str, Tool[Any]] = {
    each.name: each
    for module in (files, messaging, skills, tasks, plans, team, mcp)
    for each in vars(module).values()
    if isinstance(each, Tool)
}

_MANY = 30
"""The most tools of MCP servers that are shown with each call. More are loaded on demand, because the API's page about
its tool search says that models choose worse among more than 30 to 50."""

_MANY_SHARE = 0.1
"""Share of the window above which the definitions of few tools of MCP servers are loaded on demand as well."""

_CHARACTERS_PER_TOKEN = 3


class ToolRegistry:
    """The tools that one agent has at the moment. `servers` is None for an agent with an engine."""

    def __init__(self, run_state: RunState, servers: mcp.McpServers | None = None) -> None:
        self._run_state = run_state
        self._servers = servers
        self._type = type_of(run_state.spec.type, run_state.spec.definition)

    def allowed(self) -> list[str]:
        """Return the names of the agent's tools, without those of MCP servers and of the API.

        The order is fixed, so that the prompt cache stays valid.
        """
        config = roster.load(self._run_state.team)
        granted = {"review_plan": config.plan_approver == LEAD, "accept_changes": config.lead_merges}
        names = [name for name in (*self._type.tools, *TEAM_TOOLS) if granted.get(name, True)]
        if "bash" in names:
            names += ["bash_output", "bash_kill"]
        if self._type.name == "code":
            names.append(SEND_EXPLORER)
        if skills.exist(self._run_state.workspace):
            names.append("skill")
        if is_plan_required(self._run_state) and "submit_plan" not in names:
            names.append("submit_plan")
        run_state = self._run_state
        if reviews.asked_of(run_state.team, run_state.name) is not None:
            names.append("review_task")
        # Every agent may be asked to shut down. A tool that came only then would cost it its thinking and the cache.
        names.append("shutdown_response")
        return names

    def of_servers(self) -> Mapping[str, Tool[Any]]:
        """Return the agent's tools of MCP servers, by name."""
        return self._servers.tools() if self._servers is not None else {}

    def has_many_of_servers(self, window: int) -> bool:
        """Return True if the tools of MCP servers are too many, or too long for a `window` of tokens, to show all."""
        tools = self.of_servers().values()
        size = sum(len(json.dumps(tool.definition())) for tool in tools) / _CHARACTERS_PER_TOKEN
        return len(tools) > _MANY or size > window * _MANY_SHARE

    def definitions(self, *, on_demand: bool = False) -> list[dict[str, Any]]:
        """Return the tools in the form of the Messages API, those of the web included.

        Tools of the web run in the API; an agent hired with `--web` has them. Of the tools that the terms of the
        approved plan take away, those of the API are left out; the others stay, and `find` refuses their calls. With
        `on_demand`, the API shows the model only those tools of MCP servers that `find_tools` found.
        """
        flags, terms = self._run_state.spec.flags, self._run_state.conversation.terms
        # First, because they stay the same for a whole run.
        on_the_web = web.tools(flags.allowed_domains) if flags.web else []
        kept = [tool for tool in on_the_web if kept_by_terms(terms, tool["name"])]
        own = [TOOLS[name].definition() for name in (*self.allowed(), *([mcp.FIND_TOOLS] if on_demand else []))]
        more = {"defer_loading": True} if on_demand else {}
        return [*kept, *own, *({**tool.definition(), **more} for tool in self.of_servers().values())]

    def most_at_once(self, name: str) -> int:
        """Return how many calls in a row may run at the same time, the first being of the tool `name`.

        Only calls for which this number is the same run together. The number is 1 for a tool that may change something.
        Tools that only read have no limit, except for the one that sends explorers.
        """
        if name == SEND_EXPLORER:
            return roster.explorers_at_once(roster.load(self._run_state.team))
        return sys.maxsize if name in TOOLS and TOOLS[name].reads else 1

    def find(self, name: str) -> Tool[Any] | Outcome:
        """Return the tool called `name`, or an outcome with the error if the agent may not call it now."""
        opening = self._run_state.conversation.opening
        # Only where the request offers it: elsewhere there is no list of names that it could load. A call that waited
        # for a resume with another model, which drops the opening, was offered.
        finds = name == mcp.FIND_TOOLS and (opening is None or any(tool["name"] == name for tool in opening.tools))
        tool = TOOLS[name] if finds else self.of_servers().get(name)
        if tool is None and name.startswith(MCP_PREFIX):
            known = ", ".join(self.of_servers()) or "none"
            return Outcome(f"there is no tool {name!r}; those of MCP servers are {known}", is_error=True)
        if tool is None and name not in self.allowed():
            return Outcome(f"an agent of type {self._type.name} has no tool {name!r}", is_error=True)
        return gate_refusal(self._run_state, name) or tool or TOOLS[name]


def with_added(offered: list[dict[str, Any]], wanted: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the `offered` tools of a conversation and those that are new in `wanted`; None if they cannot be added.

    Only tools that are loaded on demand can be added, because they are not shown yet: page `preserved-thinking` of the
    API's documents, *What counts as an edit*. Nor can anything be added if a tool of the API is not wanted any more,
    because it cannot stay. Other tools that are not wanted stay, and their calls are refused.
    """
    texts = [{json.dumps(tool) for tool in tools} for tools in (offered, wanted)]
    # Only tools of ours have a schema of their input, and only their calls can be refused here.
    too_many = any("input_schema" not in tool and json.dumps(tool) not in texts[1] for tool in offered)
    names = {tool["name"] for tool in offered}
    added = [tool for tool in wanted if json.dumps(tool) not in texts[0]]
    if too_many or any(tool["name"] in names or not tool.get("defer_loading") for tool in added):
        return None
    return [*offered, *added]
