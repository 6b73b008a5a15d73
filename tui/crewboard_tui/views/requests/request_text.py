"""The content of a request as lines: the full text, what a plan affects, and what changed between revisions."""

from crewboard.readmodel.file_activity import FileActivity
from crewboard.records import Request
from crewboard_tui.render.lines import (
    Line,
    Span,
    changed,
    diff_lines,
    exact_lines,
    one_line,
    say,
    spread,
    width_of,
    wrap,
)
from crewboard_tui.render.markdown import markdown_lines
from crewboard_tui.views.agent.files import open_by, shared_line

_LABEL = 10
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
    lines = markdown_lines(str(request.payload.get("plan", "")), width)
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


def texts(value: object) -> list[str]:
    """Return a payload's list of strings; a single string is a list of one."""
    if isinstance(value, list):
        return [one_line(str(each)) for each in value]
    return [one_line(str(value))] if value else []


def plan_impact_lines(request: Request, touches: FileActivity | None, now: float) -> list[Line]:
    """Return files, commands and risk, one line each; `touches` is None until it is read."""
    payload = request.payload
    lines: list[Line] = []
    if files := texts(payload.get("files")):
        lines.append((_label("FILES"), *_touches(request, files, touches, now)))
    if commands := texts(payload.get("commands")):
        lines.append((_label("COMMANDS"), Span("bash: "), say(" · ".join(commands))))
    if payload.get("risk"):
        lines.append((Span(f"{'RISK':<{_LABEL}}", "warning bold"), say(str(payload["risk"]))))
    return lines


def _label(text: str) -> Span:
    return Span(f"{text:<{_LABEL}}", "dim")


def _touches(request: Request, files: list[str], touches: FileActivity | None, now: float) -> Line:
    """Return the number of files and who else has them open, then their names."""
    count = Span(f"{len(files)} file{'s' if len(files) > 1 else ''}")
    names = (Span(" · ", "dim"), say(" · ".join(files), "dim"))
    if touches is None:
        return (count, *names)
    shared = {path: touches.others(path, request.from_, now) for path in files}
    both = [path for path in files if shared[path]]
    if not both:
        return (count, Span(" · not open elsewhere", "success"), *names)
    who = sorted({touch.agent for path in both for touch in shared[path]})
    clash = any(touch.changed for path in both for touch in shared[path])
    warning = Span("  ⚠ overlap", "warning bold") if clash else Span("")
    which = "" if len(files) == 1 else "all " if both == files else f"{len(both)} "
    return (count, Span(f" · {which}also open in {', '.join(who)}", "warning" if clash else ""), warning, *names)


def file_lines(request: Request, touches: FileActivity | None, now: float, width: int) -> list[Line]:
    """Return each file of the plan, with the recent accesses of other agents below."""
    lines: list[Line] = []
    for path in texts(request.payload.get("files")):
        shared = touches.others(path, request.from_, now) if touches else []
        *above, last = wrap(f"  {path}", width, "    ") or ("",)
        lines += [(Span(piece),) for piece in above]
        who = open_by(shared)
        fits = bool(shared) and width_of((Span(last), *who)) < width
        lines.append(spread((Span(last),), who, width) if fits else (Span(last),))
        lines += [(Span("    "), *shared_line(touch, now)) for touch in shared]
    return lines
