"""An engine that says what a recorded one said: `python replayed_engine.py RECORDING NUMBER_OF_START`.

It answers a request only if the recorded client made the same one next, and then tells what was recorded until the next
request of the client. Anything else ends it with an error, so that a test sees it.
"""

import json
import sys
from pathlib import Path
from typing import Any


def starts(recording: str | Path) -> list[list[dict[str, Any]]]:
    """Return the messages of a recording, by start of the engine."""
    found: list[list[dict[str, Any]]] = []
    for line in Path(recording).read_text().splitlines():
        each = json.loads(line)
        if each["msg"].get("method") == "initialize":
            found.append([])
        found[-1].append(each)
    return found


def main() -> int:
    recorded = starts(sys.argv[1])[int(sys.argv[2])]
    real_ids: dict[int, int] = {}
    for each in recorded:
        message = each["msg"]
        if each["dir"] == "incoming":
            if "method" not in message:
                message = {**message, "id": real_ids[message["id"]]}
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()
            continue
        line = sys.stdin.readline()
        if not line:
            return 1
        given = json.loads(line)
        if given.get("method") != message.get("method"):
            sys.stderr.write(f"expected {message}, got {given}\n")
            return 2
        if "method" in message and "id" in message:
            real_ids[message["id"]] = given["id"]
    sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(main())
