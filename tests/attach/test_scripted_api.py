"""The API that tests script for the real Claude Code."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from crewboard.offline.reply import Reply
from tests.attach.claude import ScriptedApi
from tests.crew import WAIT_TIMEOUT
from tests.model import says


def test_replies_at_the_same_time_have_ids_of_their_own() -> None:
    """Agents of a team ask at once, and a transcript tells two calls apart by the ids of their replies."""
    both_asked = threading.Barrier(2)

    def script(_: list[dict[str, Any]]) -> Reply:
        both_asked.wait(WAIT_TIMEOUT)
        return says("done")

    said = {"role": "user", "content": "#script:scout# go"}
    body = {"model": "m", "max_tokens": 100, "tools": [{}], "messages": [said]}
    with ScriptedApi({"scout": script}) as api, ThreadPoolExecutor(2) as callers:
        first, second = callers.map(api.reply, [body, body])
    assert first["id"] != second["id"]
