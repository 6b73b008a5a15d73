"""What the pages of all requests share: facts, the text of a plan, and the guard against early answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from types import MappingProxyType

from rich.cells import cell_len
from textual.timer import Timer

from crewboard import Request, TeamView, executed_files
from crewboard.protocol import collisions
from crewboard.readmodel.file_activity import FileActivity
from crewboard.records.agents import Deviations
from crewboard.records.base import JsonValue, counted
from crewboard.records.requests import Note, lines_of, marked_lines
from crewboard.untrusted import as_run
from crewboard_tui.actions.registry import Selection
from crewboard_tui.actions.requests import RequestActions, outcome_of
from crewboard_tui.render.diff import changed, diff_lines
from crewboard_tui.render.formats import format_age
from crewboard_tui.render.lines import Line, Span, hang, markdown_blocks, say, spread, width_of, wrap
from crewboard_tui.render.sanitize import safe_line, safe_lines
from crewboard_tui.views.activity import file_marks, shared_line
from crewboard_tui.views.base import TALL, BaseScreen, Snapshot
from crewboard_tui.widgets.bars import StaticLines, crumbs_line
from crewboard_tui.widgets.reading import Passage, named

BLIND_FOR = 0.3
"""Seconds for which a page takes no answer after what it shows has changed (docs/reference/dashboard.md#laws)."""

_BELOW_FACTS, _BELOW_FACTS_LOW = 15, 13
"""The least lines below the facts of a page, on a high and on a low screen, so that some of the text is in sight."""

_FEWEST_FACTS = 3
"""The least lines of facts: who asks, for which task, and the outcome. Facts without room are left out."""

TOO_SOON = "not taken: the page had only just appeared; press it again"
"""The reason why an answer is ignored that came before the user can have read the page."""


class RequestPage:
    """The part that all screens of a request have: the version of the request that is shown, and if it can be answered.

    `word` returns the kind of the request, for the heading.
    """

    def __init__(self, screen: BaseScreen, request: Request, word: Callable[[], str]) -> None:
        self._screen = screen
        self._context = screen.context
        self._word = word
        self.facts = StaticLines(id="facts")
        """The lines with facts above the pane."""
        self.commands = RequestActions(screen.context, request)
        """The commands that answer the request."""
        self.outcome: str | None = self._outcome(request, self._context.view)
        self.settled = False
        self._settles: Timer | None = None
        self.actions = self.commands.actions

    @property
    def seen(self) -> Request:
        """Return the request in the version that the page shows: an answer is valid for this version only."""
        return self.commands.request

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        """Return the line below the status bar: the way to the page, and the place of the request among the needs."""
        waiting = [need.request_id for need in snapshot.view.needs]
        at = waiting.index(self.seen.id) + 1 if self.seen.id in waiting else 0
        place = f"item {at} of {len(waiting)}" if at else ""
        crumbs = ["Needs-you", self.seen.from_, self._word()]
        # Which other users look at it, in a long and a short text, because only one of them needs to answer.
        names = list(dict.fromkeys(each.who for each in self._context.others if each.looking_at == self.seen.id))
        what = {"plan_approval": "plan", "task_review": "work"}.get(self.seen.type, self.seen.type)
        who = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"
        others = (f"{who} looking at this {what}", f"{who} here too") if names else ()
        return crumbs_line(crumbs, place, width, others)

    @property
    def is_over(self) -> bool:
        """Return True if the request was decided, replaced or changed since the page was opened."""
        return outcome_of(self.seen, self._context.view) is not None

    @property
    def need(self) -> str | None:
        """Return the key of the request's need; None if it is no need now."""
        needs = self._context.view.needs
        return next((need.key for need in needs if need.request_id == self.seen.id), None)

    @property
    def copied(self) -> str:
        """Return the text to copy: exactly what the request asks for."""
        return asked(self.seen)

    # ------------------------------------------------------------------------------------------- when keys answer

    def read(self, snapshot: Snapshot) -> None:
        """Update the state of the request; if it changed, accept no answer for a moment."""
        outcome = self._outcome(self.seen, snapshot.view)
        if outcome != self.outcome:
            self.outcome = outcome
            self.pause()

    def _outcome(self, request: Request, view: TeamView) -> str | None:
        return outcome_of(request, view, self._context.key, self._context.team.operator)

    def pause(self) -> None:
        """Accept no answer for a moment: the user may just have pressed a key for the screen before."""
        self.settled = False
        if self._settles is not None:
            # The moment begins anew.
            self._settles.stop()
        self._settles = self._screen.set_timer(BLIND_FOR, self.settle)
        self._screen.refresh_bindings()

    def settle(self) -> None:
        """Accept answers from now on."""
        self.settled = True
        self._screen.refresh_bindings()

    def why_no_answer(self, _: Selection) -> str | None:
        """Return the reason why the request cannot be answered now; None if it can."""
        return self.why_over or (None if self.settled else TOO_SOON)

    @property
    def why_over(self) -> str | None:
        """Return what happened to the request, as the reason why a key does nothing; None while it waits."""
        return self.outcome.strip() if self.outcome else None

    def answered(self, worked: bool, says: str) -> None:  # noqa: ARG002, FBT001
        """Close the page if the answer was accepted. If it was not, the page stays, and the footer says why."""
        if worked and self._screen.is_current:
            self._screen.dismiss()

    # ------------------------------------------------------------------------------------------------------ facts

    def show_facts(self, facts: list[Line], fewest: int = _FEWEST_FACTS) -> None:
        """Show the facts above the pane, in as many lines as there is room for, and at least in `fewest`."""
        width = max(1, self._screen.size.width - 2)
        room = max(
            fewest, self._screen.size.height - (_BELOW_FACTS if self._screen.size.height >= TALL else _BELOW_FACTS_LOW)
        )
        most = next((most for most in (4, 3, 2) if len(hang_facts(facts, width, most)) <= room), 1)
        self.facts.show([(Span(" "), *piece) for piece in hang_facts(facts, width, most)[:room]])

    def head_lines(self) -> list[Line]:
        """Return the lines that say who asks, since when, and the hash of the request, and below for which task."""
        asks, *task = self.who_lines()
        beside = (*asks, Span("  "), *self.binding_line)
        splits = width_of(beside) > self._screen.size.width - 2 and self._screen.size.height >= TALL
        return [*([asks, self.binding_line] if splits else [beside]), *task]

    @property
    def binding_line(self) -> Line:
        """Return the line with the hash and the id of the request, to which an answer is bound."""
        return (Span("SHA ", "dim"), say(f"{self.seen.sha256[:6]}…"), Span("  REQ ", "dim"), say(self.seen.id))

    def who_lines(self, *, apart: bool = False) -> list[Line]:
        """Return the lines that say who asks and since when, and below for which task.

        With `apart`, the time of waiting has a line of its own, and the labels are as wide as those of the facts.
        """
        request, view = self.seen, self._context.view
        agent = view.agent(request.from_)
        who = request.from_
        if agent:
            engine = agent.spec.engine if agent.spec is not None else None
            about = (agent.type, f"engine {engine.name}" if engine is not None else "", f"pid {agent.pid or '—'}")
            who += f" ({', '.join(filter(None, about))})"
        waiting = format_age(self._context.now - request.created_at)
        label = LABEL if apart else 0
        asks: Line = (Span(f"{'FROM ':<{label}}", "dim"), say(who, "bold"))
        waits: Line = (Span(f"{'WAITING ':<{label}}", "dim"), Span(waiting))
        lines: list[Line] = [asks] if self.outcome else [asks, waits] if apart else [(*asks, Span("  "), *waits)]
        if agent is not None and agent.task is not None:
            subject = next((task.subject for task in view.tasks if task.id == agent.task), "")
            lines.append((Span(f"{'TASK ':<{label}}", "dim"), say(f"#{agent.task} {subject}")))
        return lines

    def outcome_lines(self) -> list[Line]:
        """Return what happened to the request, in one line; empty while it waits."""
        return [(say(self.outcome, "error-pill"),)] if self.outcome else []


def hang_facts(facts: list[Line], width: int, most: int) -> list[Line]:
    """Return each fact in at most `most` lines, which begin behind its label."""
    labels = [cell_len(fact[0].text) if len(fact) > 1 else 1 for fact in facts]
    return [piece for fact, label in zip(facts, labels, strict=True) for piece in hang(fact, width, label, most)]


LABEL = 10

_FILES = "Files it names"
_LISTS = (("commands", "Commands it names"), ("risk", "Risk"))


def asked(request: Request) -> str:
    """Return exactly what a request asks for: its plan, question, command, diff or summary; empty without these."""
    payload = request.payload
    given = payload.get("input")
    command = given.get("command") if isinstance(given, dict) else None
    found = (request.plan, payload.get("question"), command, payload.get("diff"), payload.get("summary"))
    return next((text for text in found if isinstance(text, str) and text), "")


def plan_text(
    request: Request,
    touches: FileActivity | None,
    now: float,
    width: int,
    drafts: Sequence[Note] | None = None,
    verdicts: Mapping[int, str] = MappingProxyType({}),
    before: Request | None = None,
) -> Iterator[Passage]:
    """Yield a plan, as `plan_alone` does, and the lists that were submitted with it.

    `touches` is None until the file accesses are read.
    """
    yield from plan_alone(request, width, drafts, verdicts, before)
    yield from plan_lists(request, touches, now, width)


_GUTTER = 5
"""Cells for the number of a line."""


@lru_cache(maxsize=2)
def _news(before: str, plan: str) -> frozenset[int]:
    """Return the numbers of the lines of a plan that the version before did not have."""
    return frozenset(number for mark, number in marked_lines(before, plan) if mark == "+")


def _head(number: int, place: range, news: frozenset[int]) -> Span:
    """Return the number of the first line of a `place` in a plan, with a `+` if the place has lines in `news`."""
    text = f"{number:>{_GUTTER - 1}} "
    if news.isdisjoint(place):
        return Span(text, "dim")
    return Span(f"+{text[1:]}" if text.startswith(" ") else text, "success")


def plan_alone(
    request: Request,
    width: int,
    drafts: Sequence[Note] | None = None,
    verdicts: Mapping[int, str] = MappingProxyType({}),
    before: Request | None = None,
) -> Iterator[Passage]:
    """Yield a plan without the lists submitted with it.

    Each note is below its lines; notes without lines are at the end.

    The lines are numbered if there are notes, or if `drafts` is not None; a draft that is settled can no longer be
    sent. `verdicts` are texts about steps, by the line at which a step begins: each is shown below that line. Numbers
    of lines that the version `before` did not have are marked.
    """
    news = _news(before.plan, request.plan) if before is not None else frozenset[int]()
    notes = [*request.earlier_notes, *request.notes, *(drafts or ())]
    is_numbered = bool(notes) or drafts is not None
    blocks = markdown_blocks(request.plan, max(1, width - _GUTTER * is_numbered))
    ends = [number - 1 for number, _ in blocks[1:]]
    for (number, block), end in zip_longest(blocks, ends):
        place = range(number, (end or max(number, len(lines_of(request.plan)))) + 1)
        lines = [
            ((Span(" " * _GUTTER) if at else _head(number, place, news), *line) if is_numbered else line)
            for at, line in enumerate(block)
        ]
        yield Passage(named(request, f"plan {number}"), lines, place, _GUTTER * is_numbered)
        if (verdict := verdicts.get(number)) is not None:
            said = [(Span(" " * _GUTTER), Span(piece, "warning")) for piece in wrap(verdict, max(1, width - _GUTTER))]
            yield Passage(named(request, f"verdict {number} {verdict}"), said, place)
        for note in notes:
            if number <= note.end and (end is None or note.end <= end):
                yield Passage(named(request, f"note {note.id} {note.place}"), _note_lines(note, width), place)
    for note in notes:
        if not note.line:
            yield Passage(named(request, f"note {note.id}"), _note_lines(note, width))


_CONTINUES = "│ "
"""The mark before each further line of a note or an answer, so that none of them looks like another note."""


def _note_lines(note: Note, width: int) -> list[Line]:
    """Return a note with its answer, in lines of at most `width` cells."""
    who = (
        f"✎ {note.id}, {note.place}, {note.state}: "
        if note.id
        else f"✎ your note, {note.place}{', not sent' * note.settled}: "
    )
    texts = [(f"{who}{note.text}", "warning")]
    texts += [(f"> {line}", "dim") for line in note.quoted if not note.line]
    texts += [(f"answer: {note.answer}", "info")] if note.answer else []
    room = max(1, width - _GUTTER)
    return [
        (Span(" " * _GUTTER), Span(piece, style))
        for text, style in texts
        for at, line in enumerate(safe_lines(text))
        for piece in wrap(f"{_CONTINUES if at else ''}{line}", room, _CONTINUES)
    ]


def plan_lists(request: Request, touches: FileActivity | None, now: float, width: int) -> Iterator[Passage]:
    """Yield the lists that were submitted with a plan: files, commands, risk.

    `touches` is None until the file accesses are read.
    """
    for at, lines in enumerate(file_lines(request, touches, now, width)):
        if not at:
            yield Passage(named(request, "files"), [(), (Span(_FILES, "bold"),)])
        yield Passage(named(request, f"file {at}"), lines)
    for name, title in _LISTS:
        value = request.payload.get(name)
        if values := _run(value) if name == "commands" else texts(value):
            lines = [(), (Span(title, "bold"),)]
            lines += [(Span(piece),) for value in values for piece in wrap(f"  {value}", width, "    ")]
            yield Passage(named(request, name), lines)


def revision_text(before: Request, after: Request, names: tuple[str, str], width: int) -> list[Line]:
    """Return the difference between two revisions of a plan, which are called `names`."""
    diff = changed(_as_text(before), _as_text(after), names)
    return diff_lines(diff, width) if diff else [(Span("the same words as before", "dim"),)]


def _as_text(request: Request) -> str:
    lines = [request.plan]
    others = [(title, _run(request.payload.get(name))) for name, title in _LISTS]
    for title, values in [(_FILES, _files(request.payload)), *others]:
        if values:
            lines += ["", title, *(f"  {value}" for value in values)]
    return "\n".join(lines)


def texts(value: object) -> list[str]:
    """Return a value of a payload as a list of texts, each on one line; a single text is a list of one.

    A line break becomes a visible mark, because in a command it ends the command, or a comment before it.
    """
    values = value if isinstance(value, list) else [value] if value else []
    return [safe_line(str(each).strip(" \t\n").replace("\n", " ␊ ")) for each in values]


def plan_impact_lines(request: Request, touches: FileActivity | None, now: float, *, lists: bool = False) -> list[Line]:
    """Return files, commands, risk and other facts of a plan, one line each; `touches` is None until it is read.

    With `lists`, facts are left out that the lists beside these lines show.
    """
    payload = request.payload
    lines: list[Line] = []
    if files := _files(payload):
        names: Line = () if lists else (Span(" · ", "dim"), say(" · ".join(files), "dim"))
        lines.append((_label("FILES"), *_touches(request, files, touches, now), *names))
    if (commands := _run(payload.get("commands"))) and not lists:
        lines.append((_label("COMMANDS"), Span("bash: "), say(" · ".join(commands))))
    if runs := _run(collisions.run_on_your_machine(payload)):
        said = f"{executed_files.RUNS}: {' · '.join(runs)}"
        lines.append((Span(f"{'MACHINE':<{LABEL}}", "warning bold"), say(said, "warning")))
    if payload.get("why"):
        lines.append((_label("WHY"), say(str(payload["why"]))))
    if payload.get("risk") and not lists:
        lines.append((Span(f"{'RISK':<{LABEL}}", "warning bold"), say(str(payload["risk"]))))
    return lines


def overlap_lines(request: Request, view: TeamView) -> list[Line]:
    """Return a line for each plan of another agent that names files of this plan."""
    if request.type != "plan_approval":
        return []
    works = {agent.name: agent.status.work for agent in view.agents}
    return [
        (Span(f"{'⚠ PLANS':<{LABEL}}", "warning bold"), say(each.describe(), "warning"))
        for each in collisions.plan_overlaps(request, works, view.requests, str(view.root))
    ]


def _files(payload: Mapping[str, JsonValue]) -> list[str]:
    return _run(collisions.shown_files(payload))


def _run(value: object) -> list[str]:
    """Return `texts` of commands or of names of files, with what could deceive a reader made visible."""
    return texts([as_run(str(each)) for each in value] if isinstance(value, list) else as_run(str(value or "")))


def deviation_line(request: Request, deviations: Deviations) -> Line:
    """Return the line with the calls beyond a plan. For a waiting revision, that is the plan before."""
    plan = "it does not name" if deviations.plan == request.id else "the plan before does not name"
    calls = f"{counted(deviations.count, 'call')} that {plan}"
    return (Span(f"{'DEVIATED':<{LABEL}}", "warning bold"), say(f"{calls}: {' · '.join(deviations.calls)}", "warning"))


def _label(text: str) -> Span:
    return Span(f"{text:<{LABEL}}", "dim")


def _touches(request: Request, files: list[str], touches: FileActivity | None, now: float) -> Line:
    """Return the number of files, and which other agents have them open."""
    count = Span(str(len(files)))
    if touches is None:
        return (count,)
    shared = {path: touches.others(path, request.from_, now) for path in files}
    both = [path for path in files if shared[path]]
    if not both:
        return (count, Span(" · not open elsewhere", "success"))
    who = sorted({touch.agent for path in both for touch in shared[path]})
    clash = any(touch.changed for path in both for touch in shared[path])
    warning = Span("  ⚠ overlap", "warning bold") if clash else Span("")
    which = "" if len(files) == 1 else "all " if both == files else f"{len(both)} "
    return (count, Span(f" · {which}also open in {', '.join(who)}", "warning" if clash else ""), warning)


def file_lines(request: Request, touches: FileActivity | None, now: float, width: int) -> Iterator[list[Line]]:
    """Yield the lines of each file of the plan, with the recent accesses by other agents below."""
    for path in _files(request.payload):
        shared = touches.others(path, request.from_, now) if touches else []
        *above, last = wrap(f"  {path}", width, "    ") or ("",)
        lines: list[Line] = [(Span(piece),) for piece in above]
        who = file_marks(path, shared)
        fits = bool(who) and width_of((Span(last), *who)) < width
        lines.append(spread((Span(last),), who, width) if fits else (Span(last),))
        for touch in shared:
            lines += hang((Span("    "), *shared_line(touch, now)), width, 6, 4)
        yield lines
