"""`python -I -m crewboard.worker.probe MODEL…`: call each model once as an agent does, and print the outcome as JSON.

`doctor --try` and `doctor --online` run it with the environment of a worker, and read one line for each model. A call
is made by the worker's own client, with the instructions and tools of built-in types, from a team in a temporary
folder. No tool is run.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crewboard import agent_types, env, redaction
from crewboard.records.agents import Spec
from crewboard.records.team import Member
from crewboard.store import agents, roster
from crewboard.store.layout import TeamDirectory
from crewboard.worker.interrupts import Interrupts
from crewboard.worker.llm.context_window import ContextWindow
from crewboard.worker.llm.model import Model
from crewboard.worker.llm.prompt import system_prompt
from crewboard.worker.llm.refusals import ModelError
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.registry import TOOLS

ASKED = "glob"
_PROMPT = f'Call the tool {ASKED} once, with the pattern "README*". Write nothing else.'
_NAME = "probe"


async def _call(team: TeamDirectory, model: str) -> dict[str, Any]:
    team.make()
    roster.ensure(team, 0)
    # The user waits, and can try again.
    roster.change(team, lambda config: setattr(config, "on_outage", "fail"))
    roster.put(team, Member(name=_NAME, type="explore"))
    # An agent of this type is cheap to call.
    wanted = Spec(prompt=_PROMPT, prompt_id="probe", type="explore", model=model)
    run_state = RunState(team.agent(_NAME), agents.change_spec(team.agent(_NAME), lambda _: wanted))
    client = Model(run_state, Interrupts(run_state))
    env.forget_api_variables()
    await client.learn_size()
    # Those of a type that writes and runs commands: some servers refuse the schema of one.
    names = dict.fromkeys((*agent_types.TYPES["code"].tools, *agent_types.TEAM_TOOLS))
    tools = [TOOLS[name].definition() for name in names]
    system = system_prompt(_NAME, run_state.spec, roster.load(team))
    asked = [{"role": "user", "content": [{"type": "text", "text": _PROMPT}]}]
    found: dict[str, Any] = {
        "window": run_state.window,
        "window_known": not run_state.window_is_assumed,
        "timeout": client.progress_timeout,
        "error": None,
    }
    try:
        reply = await client.reply(system, tools, asked, ContextWindow(run_state, client).max_reply)
    except ModelError as error:
        return {**found, "error": str(error), "status": client.refused_status, "page": client.refused_with_page}
    calls = [block for block in reply.content if block.get("type") == "tool_use"]
    return {
        **found,
        "calls": [call["name"] for call in calls],
        "stop_reason": reply.stop_reason,
        "model": reply.model,
        "usage": reply.usage.as_dict(),
        "thinks": any(block.get("type") in ("thinking", "redacted_thinking") for block in reply.content),
        "asked_to_think": client.settings().get("thinking", {}).get("type"),
        "seconds": reply.seconds,
    }


def main(names: Sequence[str]) -> int:
    """Print the outcome of one call to each model, a line of JSON each; return 0, even if calls failed."""
    redaction.register_secrets(os.environ)
    given = dict(os.environ)
    for name in names:
        # The call before has removed the variables of the API, as a worker does.
        os.environ.update(given)
        with tempfile.TemporaryDirectory(prefix="crewboard-probe-") as folder:
            found = asyncio.run(_call(TeamDirectory(Path(folder).resolve() / ".crewboard" / "default"), name))
        sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
