"""A small MCP server over stdio for tests, in plain Python: one made with the SDK takes a second to start.

The file that its argument names, if there is one, names more tools, one a line. When it changes, the server says so.
"""

import json
import os
import sys
import threading
import time
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

PICTURE = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg==")

TOOLS = {
    "echo": {"text": {"type": "string"}, "times": {"type": "integer"}},
    "picture": {},
    "write": {"path": {"type": "string"}},
    "end": {},
}


def call(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the block that a tool returns."""
    if name == "picture":
        return {"type": "image", "data": b64encode(PICTURE).decode(), "mimeType": "image/png"}
    if name == "write":
        Path(given["path"]).write_text("written")
    if name == "end":
        sys.stderr.write("it ends now\n")
        sys.stderr.flush()
        os._exit(3)
    # It knows a secret, and cannot keep it.
    token = os.environ.get("TOKEN", "no token")
    bytecode = f"bytecode in {sys.pycache_prefix or 'its place'}, {'read' if sys.dont_write_bytecode else 'written'}"
    return {"type": "text", "text": f"{given.get('text')} {token} {b64encode(token.encode()).decode()} {bytecode}"}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request."""
    if method == "initialize":
        about = {"name": "tests", "version": "1"}
        version = params["protocolVersion"]
        can = {"tools": {"listChanged": True}}
        return {"result": {"protocolVersion": version, "capabilities": can, "serverInfo": about}}
    if method == "tools/list":
        schema = {"type": "object"}
        known = {**TOOLS, **{name: {} for name in more_tools()}}
        tools = [{"name": name, "inputSchema": {**schema, "properties": each}} for name, each in known.items()]
        return {"result": {"tools": tools}}
    if method != "tools/call":
        return {"error": {"code": -32601, "message": "Method not found"}}
    try:
        return {"result": {"content": [call(params["name"], params.get("arguments") or {})]}}
    except OSError as error:
        return {"result": {"content": [{"type": "text", "text": str(error)}], "isError": True}}


def more_tools() -> list[str]:
    """Return the tools of the file."""
    return Path(sys.argv[1]).read_text().split() if sys.argv[1:] else []


def write(message: dict[str, Any]) -> None:
    """Write a message on a line of its own."""
    os.write(sys.stdout.fileno(), json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def watch() -> None:
    """Say when the file changes."""
    known = more_tools()
    while True:
        time.sleep(0.1)
        if (found := more_tools()) != known:
            known = found
            write({"method": "notifications/tools/list_changed"})


def main() -> None:
    """Answer each request on its own line."""
    if sys.argv[1:]:
        threading.Thread(target=watch, daemon=True).start()
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            write({"id": request["id"], **answer(request["method"], request.get("params") or {})})


if __name__ == "__main__":
    main()
