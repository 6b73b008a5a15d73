"""The alert bar: the most urgent unanswered need with its keys. It is always visible."""

from crewboard.readmodel.team import Need, TeamView
from crewboard_tui.keymap.bindings import Pressed, default_key
from crewboard_tui.queries import Snapshot
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, clip, one_line, say, spread, width_of
from crewboard_tui.render.looks import LOOKS, TASK_LOOKS, Look

_WORDS_FROM = 90

NEED_LOOKS: dict[str, Look] = {
    "death": LOOKS["dead"],
    "plan": LOOKS["ask"],
    "permission": LOOKS["ask"],
    "question": LOOKS["ask"],
    "stuck": LOOKS["stuck"],
    "looping": LOOKS["loop"],
    "failed_start": LOOKS["start"],
}


_SOME_WORDS = 20
"""Below this width for the summary, the effect of the need is omitted."""


def alert_line(
    snapshot: Snapshot,
    now: float,
    width: int,
    *,
    read_only: bool = False,
    pressed: Pressed = default_key,
    opens: bool = True,
) -> Line:
    """Return the most urgent need, else file damage, else a first step, else "nothing needs you".

    `opens` means that the key for the next need opens this one.
    """
    view = snapshot.view
    if snapshot.problem:
        return (Span(" "), say(snapshot.problem, "error bold"))
    if view.needs:
        return _worst(view, now, width, pressed, opens=opens)
    if view.problem:
        return (Span(" "), say(view.problem, "error bold"))
    if not view.agents:
        first = "read-only: no agents yet" if read_only else "no agents yet"
        hint = () if read_only else (Span(f"   {pressed('agent.hire')}", "key"), Span(" hires the first agent"))
        return (Span(" "), Span(first, "bold"), *hint)
    if not view.supervisor.alive and any(agent.alive for agent in view.agents):
        return (Span(" supervisor gone; starting a new one, agents keep working", "warning"),)
    return (Span(" nothing needs you", "dim"),)


def _worst(view: TeamView, now: float, width: int, pressed: Pressed, *, opens: bool) -> Line:
    need = view.needs[0]
    look = NEED_LOOKS[need.kind]
    others = f" +{len(view.needs) - 1} more" if len(view.needs) > 1 else ""
    wide = width >= _WORDS_FROM
    right = (
        Span(others if wide else "", "dim"),
        Span(f" {pressed('app.next')}", "key", "app.next"),
        Span((" opens it " if wide else " open ") if opens else " next ", "", "app.next"),
    )
    who = (Span(f" {look.glyph} ", look.tone), say(need.agent, look.tone), Span(" "))
    after = (Span(f" · {formats.age(now - need.since)}", "dim"), *_aftermath(view, need))
    room = width - width_of((*who, *after, *right)) - 1
    summary = one_line(need.summary)
    return spread((*who, Span(clip(summary, room) if room >= _SOME_WORDS else summary), *after), right, width)


def _aftermath(view: TeamView, need: Need) -> Line:
    agent = view.agent(need.agent)
    if need.kind != "death" or agent is None:
        return ()
    freed = "".join(f" · #{task.id} {TASK_LOOKS['orphaned'].word}" for task in view.freed_by(need.agent))
    unread = f" · {agent.unread} unread" if agent.unread else ""
    return (Span(freed + unread, "dim"),)
