"""The scope of a standing permission in words, for the request page and the command line."""

from crewboard.records import Request


def scope_of(request: Request) -> str | None:
    """Return the scope of a rule for this request; None if no rule is offered."""
    scope = request.payload.get("scope")
    return scope if request.type == "permission" and isinstance(scope, str) else None


def covers(request: Request, scope: str) -> str:
    """Describe which further calls a rule of this scope allows."""
    who, tool = request.from_, str(request.payload.get("tool", ""))
    if tool == "bash":
        return f"any single command of {who} that starts {scope}"
    folder = "the top folder" if scope in (".", "") else f"{scope}/"
    return f"every {tool} of {who} directly in {folder}"
