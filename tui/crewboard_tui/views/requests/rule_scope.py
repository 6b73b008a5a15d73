"""What a standing yes would cover, in words: the same on a request's page and in a shell."""

from crewboard.records import Request


def scope_of(request: Request) -> str | None:
    """What a rule would cover; None where none is offered."""
    scope = request.payload.get("scope")
    return scope if request.type == "permission" and isinstance(scope, str) else None


def covers(request: Request, scope: str) -> str:
    """Which further calls of who asks a rule of this scope says yes to."""
    who, tool = request.from_, str(request.payload.get("tool", ""))
    if tool == "bash":
        return f"any single command of {who} that starts {scope}"
    folder = "the top folder" if scope in (".", "") else f"{scope}/"
    return f"every {tool} of {who} directly in {folder}"
