"""A small MCP server over HTTP for tests, made with the official SDK, on a free port that it prints."""

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("tests")


@server.tool()
def header(context: Context) -> str:
    """Return the header with which the client came."""
    return f"the header is {(context.headers or {}).get('x-token')}"


if __name__ == "__main__":
    server.run("streamable-http", port=0)
