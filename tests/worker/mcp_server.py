"""A small MCP server over stdio for tests, in plain Python: one made with the SDK takes a second to start."""

import json
import os
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

PICTURE = b"\x89PNG\r\n\x1a\n" + b"picture"

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
    return {"type": "text", "text": f"{given.get('text')} {token} {b64encode(token.encode()).decode()}"}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request."""
    if method == "initialize":
        about = {"name": "tests", "version": "1"}
        version = params["protocolVersion"]
        return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}}
    if method == "tools/list":
        schema = {"type": "object"}
        tools = [{"name": name, "inputSchema": {**schema, "properties": known}} for name, known in TOOLS.items()]
        return {"result": {"tools": tools}}
    if method != "tools/call":
        return {"error": {"code": -32601, "message": "Method not found"}}
    try:
        return {"result": {"content": [call(params["name"], params.get("arguments") or {})]}}
    except OSError as error:
        return {"result": {"content": [{"type": "text", "text": str(error)}], "isError": True}}


def main() -> None:
    """Answer each request on its own line."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            reply = {"jsonrpc": "2.0", "id": request["id"], **answer(request["method"], request.get("params") or {})}
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
