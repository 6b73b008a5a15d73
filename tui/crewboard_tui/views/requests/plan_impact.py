"""What a plan affects: files that other agents have open, commands, risk."""

from crewboard.readmodel.file_activity import FileActivity
from crewboard.records import Request
from crewboard_tui.render.lines import Line, Span, one_line, say, spread, width_of, wrap
from crewboard_tui.views.agent.files import open_by, shared_line

_LABEL = 10


def texts(value: object) -> list[str]:
    """Return a payload's list of strings; a single string is a list of one."""
    if isinstance(value, list):
        return [one_line(str(each)) for each in value]
    return [one_line(str(value))] if value else []


def stake_lines(request: Request, touches: FileActivity | None, now: float) -> list[Line]:
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
