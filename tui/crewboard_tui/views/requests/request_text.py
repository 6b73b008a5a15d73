"""The full content of a request, for reading and copying."""

from crewboard.readmodel.file_activity import FileActivity
from crewboard.records import Request
from crewboard_tui.render.lines import Line, Span, changed, diff_lines, exact_lines, say, wrap
from crewboard_tui.views.requests.plan_impact import file_lines, texts
from crewboard_tui.views.requests.plan_text import plan_lines

_FILES = ("files", "Files it names")
_LISTS = (("commands", "Commands it names"), ("risk", "Risk"))

_CHANGE = frozenset({"old_text", "new_text", "content"})
"""Fields of a call that its diff shows."""

_KNOWN = frozenset({"tool", "input", "summary", "diff", "scope"})


def asked(request: Request) -> str:
    """Return exactly what a request asks for: a plan, a question, a command or a change."""
    payload = request.payload
    given = payload.get("input")
    command = given.get("command") if isinstance(given, dict) else None
    found = (payload.get("plan"), payload.get("question"), command, payload.get("diff"), payload.get("summary"))
    return next((text for text in found if isinstance(text, str) and text), "")


def plan_text(request: Request, touches: FileActivity | None, now: float, width: int) -> list[Line]:
    """Return a plan and what was submitted with it; `touches` is None until it is read."""
    lines = plan_lines(str(request.payload.get("plan", "")), width)
    if files := file_lines(request, touches, now, width):
        lines += [(), (Span(_FILES[1], "bold"),), *files]
    for name, title in _LISTS:
        if values := texts(request.payload.get(name)):
            lines += [(), (Span(title, "bold"),)]
            lines += [(Span(piece),) for value in values for piece in wrap(f"  {value}", width, "    ")]
    return lines


def revision_text(before: Request, after: Request, names: tuple[str, str], width: int) -> list[Line]:
    """Return the changes between two revisions of a plan, labelled with `names`."""
    diff = changed(_as_text(before), _as_text(after), names)
    return diff_lines(diff, width) if diff else [(Span("the same words as before", "dim"),)]


def _as_text(request: Request) -> str:
    lines = [str(request.payload.get("plan", ""))]
    for name, title in (_FILES, *_LISTS):
        if values := texts(request.payload.get(name)):
            lines += ["", title, *(f"  {value}" for value in values)]
    return "\n".join(lines)


def permission_text(request: Request, width: int) -> list[Line]:
    """Return the exact command or change, then the other arguments of the call."""
    payload = request.payload
    given = payload.get("input")
    call = dict(given) if isinstance(given, dict) else {}
    lines: list[Line] = [(Span("tool ", "dim"), say(str(payload.get("tool", "")), "bold"))]
    command, diff = call.pop("command", None), payload.get("diff")
    if isinstance(command, str):
        lines += [(), *exact_lines(command, width, "bold")]
    if isinstance(diff, str) and diff:
        lines += [(), *diff_lines(diff, width)]
        call = {name: value for name, value in call.items() if name not in _CHANGE}
    elif not isinstance(command, str) and payload.get("summary"):
        lines += [(), *exact_lines(str(payload["summary"]), width, "bold")]
    for name, value in [*call.items(), *((name, payload[name]) for name in payload if name not in _KNOWN)]:
        lines += [(), (say(name, "dim"),), *exact_lines(value if isinstance(value, str) else str(value), width)]
    return lines
