"""What became of a request since it was opened."""

from crewboard.readmodel.team import TeamView
from crewboard.records import Request
from crewboard_tui.keymap import bindings
from crewboard_tui.render import formats


def fate_of(seen: Request, view: TeamView, pressed: bindings.Pressed = bindings.default_key) -> str | None:
    """Return what became of a request, with the key that helps; None while it is pending and unchanged."""
    newest = newest_of(seen, view)
    if newest is not None and newest.status == "pending":
        shows, opens = pressed("request.compare"), pressed("request.next")
        return f" replaced by revision {newest.id}: {shows} shows what changed, {opens} opens it "
    if newest is not None:
        return f" replaced by revision {newest.id}, which is {newest.status} "
    now = next((request for request in view.asked if request.id == seen.id), None)
    if now is None:
        return None
    if now.status != "pending":
        by = f" by {'you' if now.decided_by == 'operator' else now.decided_by}" if now.decided_by else ""
        return f" {now.status}{by} at {formats.clock(now.decided_at or 0)} "
    if now.sha256 != seen.sha256:
        return f" it has changed since you opened it: leave with {pressed('view.back')} and open it again "
    return None


def newest_of(request: Request, view: TeamView) -> Request | None:
    """Return the latest revision of a request; None if it is the latest itself."""
    successors = {each.supersedes: each for each in view.asked if each.supersedes}
    newest = None
    seen = {request.id}
    while (after := successors.get((newest or request).id)) is not None and after.id not in seen:
        seen.add(after.id)
        newest = after
    return newest


def revision_of(request: Request, view: TeamView) -> int:
    """Return the revision number of a plan, starting at 1."""
    by_id = {each.id: each for each in view.asked}
    seen = {request.id}
    number = 1
    before = request.supersedes
    while before is not None and before not in seen and before in by_id:
        seen.add(before)
        number += 1
        before = by_id[before].supersedes
    return number
