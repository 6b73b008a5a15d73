"""The page to review a plan, a permission or a finished task: it is read in full, then one key answers."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.strip import Strip
from textual.widget import Widget

from crewboard import CrewboardError, Request, agent_types
from crewboard.commands import rules
from crewboard.readmodel.file_activity import FileActivity
from crewboard.records.agents import VERDICTS, Deviations, Terms, next_verdict
from crewboard.records.base import counted
from crewboard.records.requests import (
    NewNote,
    Note,
    display_decider,
    lines_of,
    parse_note,
    question_in,
    step_lines,
    versions_before,
)
from crewboard_tui.actions.registry import Action, Layer, Selection
from crewboard_tui.actions.requests import newest_of, revision_of
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.compose.draft_input import DraftInput
from crewboard_tui.drafts import carry_over_comment, carry_over_notes, note_on, notes_on_plan
from crewboard_tui.keymap.bindings import BY_ID, bindings_of
from crewboard_tui.queries import Query, Snapshot, TouchedFiles
from crewboard_tui.render.formats import format_money, format_percent, share_bar
from crewboard_tui.render.lines import Line, Span, exact_lines, one_line, plain, rule_line, say, width_of
from crewboard_tui.views.base import MEDIUM, SHORT, TALL, WIDE, AppContext, BaseScreen
from crewboard_tui.views.requests.base import (
    LABEL,
    RequestPage,
    deviation_line,
    hang_facts,
    overlap_lines,
    plan_alone,
    plan_impact_lines,
    plan_lists,
    plan_text,
    revision_text,
)
from crewboard_tui.views.requests.feedback import Feedback, PlanEditor, TermsList
from crewboard_tui.views.rows import permission_text, review_text
from crewboard_tui.widgets.bars import StaticLines
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.reading import Passage, ReadText, named

_FACT_LINES = 4
"""The most lines of one fact; the lists below the plan have it in full."""

_WHOLE = 1000
"""The most lines of one fact beside the plan: in effect no limit, because facts that do not fit are above it."""

_BESIDE_FROM = 110
"""Terminal width from which on the facts of a plan are beside it."""

_IMPACT_WIDTH = 42
"""The least columns of the pane of facts: it also gets those that the text does not need."""

_END = "end of the plan"

_MEASURE = 78
"""The most cells of a line of a plan: longer ones are hard to read."""

_METER = 10
"""Cells of the bar that shows how much was read."""

_ANSWERS = (
    "request.approve", "request.rule", "request.rule_for", "request.deny", "request.edit", "edit.send",
    "request.note", "plan.step", "request.ask_back", "request.compare", "request.terms",
    "plan.next_note",
)  # fmt: skip
"""The ids of the keys that are shown below the meter, in this order."""

_EDITING = "not while you edit"

_EDIT_NOT_SENT = "not sent: this request was already answered; your edit is printed when you leave"

_NO_NOTES = "no note to send"

_NO_RULE = "no rule covers this"

_NO_PLAN = "only about a plan"
"""The reason why no revision can be asked for: after the refusal of a call the agent goes on without it."""


def _note_in(text: str) -> NewNote:
    """Return the note in a text. If nothing follows its lines, which removes the note there, its text is `-`.

    Raises:
        UsageError: The text is no note.
    """
    return parse_note(f"{text}-" if _is_bare(text) else text)


def _is_bare(text: str) -> bool:
    lines, colon, words = text.partition(":")
    return bool(lines and colon) and not words.strip()


class PlanText(LineView):
    """The text of a request. Once the user moves in a plan, it has a cursor, and can have a range of lines."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("plan"), *bindings_of("log")]

    def __init__(self, review: "ReviewScreen") -> None:
        super().__init__(id="plan", classes="pane", follows=False)
        self._review = review
        self._at: int | None = None
        """The row of the cursor; None while there is none."""
        self._from: int | None = None
        """The row at which the range began; None without a range."""
        self._away: tuple[int, int | None] | None = None
        """The cursor and the start of the range in the plan, while another text is shown here."""
        self._places: Sequence[range] = ()

    @property
    def chosen(self) -> range:
        """Return the numbers of the plan's lines under the cursor, or in the range; empty without a cursor."""
        places = [self._places[at] for at in self._rows if at < len(self._places) and self._places[at]]
        return range(places[0].start, places[-1].stop) if places else range(0)

    @property
    def turns(self) -> str | None:
        """Return what the key `plan.step` does at the cursor; None if it does nothing."""
        is_on_plan = self._at is not None and self._at < len(self._places) and bool(self._places[self._at])
        return self._review.next_verdict(self.chosen) if is_on_plan else None

    @property
    def _rows(self) -> range:
        if self._at is None:
            return range(0)
        ends = sorted((self._at, self._at if self._from is None else self._from))
        return range(ends[0], ends[1] + 1)

    def mark(self, places: Sequence[range]) -> None:
        """Set which lines of the plan each row shows; `places` is empty while another text is shown.

        The cursor stays on its line, and is there again when the plan is shown again.
        """
        before, self._places = self._places, places
        if self._away is not None and any(places):
            (self._at, self._from), self._away = self._away, None
        elif self._at is None or before == places:
            return
        elif not any(places):
            self._away = self._at, self._from
            self._at = self._from = None
        else:
            self._at = self._follow(self._at, before)
            self._from = None if self._from is None else self._follow(self._from, before)
        self.refresh()
        self._review.cursor_moved()

    def _follow(self, row: int, before: Sequence[range]) -> int:
        """Return the row to which the line of a row has moved; `before` are the places of the rows before."""
        line = before[row].start if row < len(before) and before[row] else 0
        same = next((at for at, place in enumerate(self._places) if line and place and line in place), row)
        first = next((at for at, place in enumerate(before) if line and place and line in place), row)
        return min(same + row - first, len(self._places) - 1) if same != row else min(row, len(self._places) - 1)

    @property
    def line_width(self) -> int:
        return max(1, super().line_width - (self._at is not None))

    def render_line(self, y: int) -> Strip:
        if self._at is None:
            return super().render_line(y)
        row = y + self.scroll_offset.y
        here = self.has_focus and row in self._rows
        content = self.lines[row] if row < len(self.lines) else ()
        mark = Span("▌" if here else " ", "key")
        return self._painter.strip(content, self.line_width + 1, under="cursor" if here else "", before=(mark,))

    def action_scroll_line(self, rows: int) -> None:
        self._from = None
        self._move(rows)

    def action_more(self, rows: int) -> None:
        """Move the cursor, and extend the range to it."""
        if self._at is not None and self._from is None:
            self._from = self._at
        if self._at is None or self._on_plan(self._at + rows) != self._at:
            self._move(rows)

    def _move(self, rows: int) -> None:
        if not any(self._places):
            super().action_scroll_line(rows)
            return
        in_sight = self._lines_in(self.in_sight)
        if self._at is None and in_sight:
            self._at = in_sight[0 if rows > 0 else -1]
        elif self._at is None or self._at not in in_sight or self._on_plan(self._at + rows) == self._at:
            # Below the plan and above it there is more to read.
            self._scroll(rows)
            return
        else:
            self._at = self._on_plan(self._at + rows)
        # What comes next is in sight, too.
        self._keep_in_sight(self._at, self.size.height // 3, down=rows > 0)

    def _keep_in_sight(self, at: int, margin: int, *, down: bool) -> None:
        top = self.scroll_offset.y
        wanted = max(at + margin + 1 - self.size.height, top) if down else min(at - margin, top)
        if wanted != top:
            super()._scroll(wanted - top)
        self.refresh()
        self._review.cursor_moved()

    def _lines_in(self, rows: Iterable[int]) -> list[int]:
        """Return those of `rows` that show lines of the plan."""
        return [at for at in rows if 0 <= at < len(self._places) and self._places[at]]

    def _on_plan(self, row: int) -> int:
        """Return the nearest row that shows lines of the plan."""
        return min(self._lines_in(range(len(self._places))), key=lambda at: abs(at - row), default=row)

    def _scroll(self, rows: int) -> None:
        super()._scroll(rows)
        if self._at is not None:
            in_sight = self._lines_in(self.in_sight)
            at = max(in_sight[0], min(self._at + rows, in_sight[-1])) if in_sight else self.scroll_offset.y
            self._at, self._from = self._on_plan(at), None
            self.refresh()
            self._review.cursor_moved()

    def action_note(self, by: int) -> None:
        """Move to the next line that has a note; with -1 to the one before."""
        at, before = self._at if self._at is not None else self.scroll_offset.y - by, range(0)
        rows, noted = list[int](), {*self._review.noted_lines}
        for row, place in enumerate(self._places):
            rows += [row] if place != before and not noted.isdisjoint(place) else []
            before = place
        ahead = [row for row in rows if (row - at) * by > 0]
        if ahead:
            self._at, self._from = min(ahead, key=lambda row: abs(row - at)), None
            # The note below the line is in sight, too.
            self._keep_in_sight(self._at, self.size.height // 2, down=by > 0)

    def action_step(self) -> None:
        if self.turns is not None:
            self._review.turn_steps(self.chosen)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "step":
            return self.turns is not None
        if action == "note":
            return any(self._places) and any(self._review.noted_lines)
        return super().check_action(action, parameters)


class ReviewScreen(BaseScreen):
    """The page of a plan, a single tool call or a finished task that waits for approval."""

    CSS_PATH = "plan_screen.tcss"
    AUTO_FOCUS = "#plan"

    def __init__(self, context: AppContext, request: Request) -> None:
        super().__init__(context)
        self.subject = self.page = RequestPage(self, request, self._title_word)
        carried = [] if self.page.is_over or context.read_only else [*versions_before(request, context.view.asked)]
        self._text, self._plan, self._meter = Horizontal(id="text"), PlanText(self), StaticLines(id="meter")
        self._impact = LineView(id="impact", classes="pane", follows=False)
        # It only stands there whole, so that there is nothing to scroll.
        self._impact.can_focus = False
        notes = carry_over_notes(request, carried, context.drafts)
        self._carried = [counted(notes, "note")] if notes else []
        """What was not sent with earlier versions and was moved here, in words."""
        self._carried += ["your words for a yes"] if carry_over_comment(request, carried, context.drafts) else []
        self._editing = False
        self._comparing = False
        self._choosing = False
        """True while the terms are shown in place of the plan."""
        self._other_place = 0
        """The scroll position of the text that is not shown: the plan, or the comparison."""
        self._asked = ReadText(context, self._plan)
        """The text of the request. The comparison of two revisions is shown in the same pane."""
        self._compared = ReadText(context, self._plan)
        self._beside = ReadText(context, self._impact)
        """The facts beside the text."""
        self._is_apart = False
        """True while the facts are beside the text and not in it, so that both must be read."""
        self._was_read = False
        self.texts = (self._asked, self._beside, self._compared)
        self._numbers = False
        """True once the user began a note: the lines of the plan are then numbered."""
        self._rule_for: rules.RuleFor = "agent"
        """For which agents the offered rule is: at first for the agent alone."""
        self.editor = PlanEditor(context, request)
        self.terms = TermsList(context, request)
        self.feedback = Feedback(context, request.id, self._leave_feedback)
        self.back_layers = (
            Layer(lambda: self.feedback.denying or self.feedback.has_cursor, self._leave_feedback),
            Layer(lambda: self._editing or self._choosing, self._read_on),
            Layer(lambda: self._comparing, self._compare),
            self.panes.layer,
        )
        own = (
            Action(
                "edit.send",
                lambda _: self._approve("edit.send", self.editor.text) if self._editing else self._send_back(),
                self._why_no_send,
                lambda _: None if self._editing else "send back",
            ),
            Action(
                "request.approve", lambda _: self._approve("request.approve"), self._why_no_answer, self._approve_label
            ),
            Action(
                "request.terms",
                lambda _: self._choose_terms(),
                self._why_no_terms,
                lambda _: "plan" if self._choosing else None,
            ),
            Action("request.rule", lambda _: self._approve_rule(), self._why_no_rule),
            Action("request.rule_for", lambda _: self._widen_rule(), self._why_no_rule),
            Action("request.deny", lambda _: self._deny_with(ask=False), self._why_no_answer),
            Action("request.edit", lambda _: self._edit(), self._why_no_revision, self._edit_label),
            Action("request.note", lambda _: self._write_note(), self._why_no_revision),
            Action("request.ask_back", lambda _: self._deny_with(ask=True), self._why_no_revision),
            Action("request.compare", lambda _: self._compare(), self._why_no_compare),
        )
        self.offer(own, self.page.actions, self.panes.actions)

    def body(self) -> Iterable[Widget]:
        self._impact.styles.width = self._impact_width
        yield self.page.facts
        with self._text:
            yield from (self._plan, self.terms, self.editor, self._impact)
        yield self._meter
        yield self.feedback

    def compose(self) -> ComposeResult:
        # Known before the first layout, as the size of the screen is.
        self.set_class(self._is_plan and self.app.size.width >= _BESIDE_FROM, "-beside", update=False)
        yield from super().compose()

    @property
    def _impact_width(self) -> int:
        return max(_IMPACT_WIDTH, self.app.size.width - _MEASURE - 4)

    @property
    def _has_meter(self) -> bool:
        return self.size.width >= _BESIDE_FROM and self.size.height >= TALL and self.panes.zoomed is None

    @property
    def keys_in_body(self) -> Sequence[str]:
        """Return the ids of the keys that are shown below the meter, and not in the footer."""
        return _ANSWERS if self._has_meter else ()

    @property
    def filled_key(self) -> str:
        """Return the id of the key that approves, once all of the request was on the screen; empty before."""
        return "request.approve" if self._is_read else ""

    @property
    def _is_read(self) -> bool:
        texts = (self._asked, self._beside) if self._is_apart else (self._asked,)
        return not any(text.hides or text.unread for text in texts)

    @property
    def _is_plan(self) -> bool:
        return self.page.seen.type == "plan_approval"

    @property
    def _scope(self) -> str | None:
        """Return the scope of the rule that is offered; None if no rule is offered."""
        return rules.scope_of(self.page.seen)

    @property
    def _before(self) -> Request | None:
        """Return the revision before this one; None if it is the first."""
        return next(versions_before(self.page.seen, self.context.view.asked), None)

    @property
    def _pair(self) -> tuple[Request, Request] | None:
        """Return the revisions to compare: this one with its replacement, else with the one that it replaced.

        A plan that was edited and approved is compared with the plan as submitted. None if there is nothing to compare.
        """
        if (shown := self._shown).edited is not None:
            return shown.replace(edited=None), shown
        if (newest := newest_of(self.page.seen, self.context.view)) is not None:
            return self.page.seen, newest
        return (self._before, self.page.seen) if self._before is not None else None

    @property
    def copied(self) -> str:
        """Return the text to copy: the difference while revisions are compared, else the request as it is shown."""
        if self._comparing:
            return self._plan.copied
        return self._shown.plan if self._is_plan else super().copied

    def _title_word(self) -> str:
        if not self._is_plan:
            return "REVIEW" if self.page.seen.type == "task_review" else self.page.seen.type.upper()
        return f"PLAN v{revision_of(self.page.seen, self.context.view)}"

    def on_mount(self) -> None:
        if not self.page.is_over:
            self.terms.carry_over(versions_before(self.page.seen, self.context.view.asked))
        self._show_mode()
        if self._carried:
            self.context.say(f"not sent with the version before: {', '.join(self._carried)}, kept for this one")
        if self.editor.rewritten:
            edit = self.context.key("request.edit")
            what = f"what you made of this plan is kept: {edit} shows it"
            self.context.say(_EDIT_NOT_SENT if self.page.is_over else what, "warning")

    # ------------------------------------------------------------------------------------------------ painting

    def queries(self) -> Iterable[Query[object]]:
        return (TouchedFiles(),) if self._is_plan else ()

    @property
    def _touches(self) -> FileActivity | None:
        """Return the file accesses of the agents; None while they are not read."""
        return self.context.snapshot.get(TouchedFiles())

    def paint(self, snapshot: Snapshot) -> None:
        self.page.read(snapshot)
        self.feedback.end(over=bool(self.page.outcome))
        self.editor.end(over=bool(self.page.outcome))
        facts: list[Line] = []
        if self.editor.rewritten and not self._editing and self.size.height < SHORT:
            # The plan's pane has no title to say so.
            edit = self.context.key("request.edit")
            what = "your edit was not sent" if self.page.outcome else f"your edit is kept: {edit} shows it"
            facts.append((Span(what, "warning"),))
        self.page.show_facts([*facts, *self._terms_lines(), *self.page.outcome_lines()])
        if self._choosing:
            self.terms.paint()
        is_beside = self._show_beside()
        plan = self._plan
        if plan.size:  # hidden, or not laid out again yet, it has no width to break lines at
            if self._comparing and (pair := self._pair):
                names = [f"v{revision_of(each, snapshot.view)}" for each in pair]
                names[1] += " as approved" * (pair[1].edited is not None)
                lines = revision_text(*pair, (names[0], names[1]), plan.line_width)
                self._compared.show([Passage(named(pair[1], f"after {pair[0].id}"), lines)])
                plan.mark(())
            else:
                self._is_apart = is_beside
                self._asked.show(self._whole(min(plan.line_width, _MEASURE) if self._is_plan else plan.line_width))
                plan.mark(self._asked.places if self._is_plan else ())
            self._show_progress()

    def _show_beside(self) -> bool:
        """Show the facts beside the text if all of them fit there; return True if they do.

        Facts that had to be scrolled, or that another pane hides, might not be seen before an approval: they are then
        at the top of the text.
        """
        passages: list[Passage] = []
        if self._is_plan and self.size.width >= _BESIDE_FROM:
            request, width = self.page.seen, self._impact_width - 3
            who = hang_facts(self.page.who_lines(apart=True), width, _WHOLE)
            binding = hang_facts([self.page.binding_line], width, _WHOLE)
            passages = [
                Passage(named(request, "who"), who),
                *(
                    Passage(named(request, f"{plain(fact)} beside"), hang_facts([fact], width, _WHOLE))
                    for fact in [*self._answer_before(), *self._notes_line(), *self._impact_facts(lists=True)]
                ),
                *plan_lists(request, self._touches, self.context.now, width),
                Passage(named(request, "binding"), [(), *binding]),
            ]
        room = self._text.size.height - 1
        more = [piece for fact in self._context_facts() for piece in hang_facts([fact], self._impact_width - 3, _WHOLE)]
        if passages and more and sum(len(passage.lines) for passage in passages) + 1 + len(more) <= room:
            # Named without its numbers: a cost that grows is no news to read.
            passages.insert(-1, Passage(named(self.page.seen, "context"), [(), *more]))
        fits = 0 < sum(len(passage.lines) for passage in passages) <= room and self.panes.zoomed is None
        if fits != self.has_class("-beside") and room > 0:
            self.set_class(fits, "-beside")
            self.refresh_soon()
        self._impact.styles.width = self._impact_width
        if fits and self._impact.size:
            self._impact.rule.entitle("Facts")
            self._beside.show(passages)
        return fits

    def _context_facts(self) -> Iterator[Line]:
        """Yield what the agent has used so far, and what it may do after an approval."""
        agent = self.context.view.agent(self.page.seen.from_)
        if agent is None or self.page.outcome:
            return
        status, spec = agent.status, agent.spec
        used = [counted(status.turn, "model call")] if status.turn else []
        used += (
            [f"context {format_percent(status.context.used / status.context.limit)}"] if status.context.limit else []
        )
        used += [format_money(status.cost_usd)] if status.cost_usd is not None else []
        if used:
            yield (Span(f"{'SO FAR':<{LABEL}}", "dim"), say(" · ".join(used)))
        kind = agent_types.known_type(spec.type, spec.definition) if spec is not None else None
        lets = ""
        if self.context.view.attached is not None:
            lets = "it goes on, by the rules of Claude Code"
        elif spec is not None and not spec.has_own_tools and kind is not None:
            terms = self.terms.terms
            kept = {tool for tool in kind.tools if agent_types.kept_by_terms(terms, tool)}
            may = ["write"] if kept & {*agent_types.WRITE_TOOLS} else []
            may += ["run commands"] if kind.executes and "bash" in kept else []
            only_reads = f"the type {spec.type} only reads" if terms.tools is None else "with these terms it only reads"
            lets = f"it may {' and '.join(may)} until its result" if may else f"it goes on; {only_reads}"
            lets += ", each time with your yes" if may and (spec.flags.ask or terms.ask) else ""
        if lets:
            yield (Span(f"{'A YES':<{LABEL}}", "dim"), say(lets))

    def _terms_lines(self) -> list[Line]:
        """Return the chosen terms, or those with which the plan was approved."""
        decided = next((each for each in self.context.view.asked if each.id == self.page.seen.id), None)
        over = self.page.outcome and decided is not None
        terms = decided.terms if over and decided is not None else self.terms.terms
        words, lacking = self.terms.describe(terms), self.terms.lacking(terms)
        tail = " · until its result" if self.size.width >= MEDIUM else ""
        lines: list[Line] = [(Span(f"{'TERMS':<{LABEL}}", "warning bold"), say(words, "bold"), Span(tail, "dim"))]
        lines += [(Span(f"{'LACKS':<{LABEL}}", "warning bold"), say(lacking, "warning"))] if lacking else []
        # Below the steps of a plan that waits it stands, too.
        is_listed = self._choosing or bool(self.page.outcome)
        said = agent_types.describe_steps(terms) if terms is not None and is_listed else []
        lines += [
            (Span(f"{'STEPS' if not at else '':<{LABEL}}", "warning bold"), say(each)) for at, each in enumerate(said)
        ]
        lines = lines if words else []
        if over and (unsent := self.terms.describe(self.terms.terms)):
            lines.append((Span(f"{'TERMS':<{LABEL}}", "warning bold"), say(f"not sent: {unsent}", "warning")))
        gone = [] if over or not self.terms.gone else [f"{' · '.join(self.terms.gone)}: no step of this version"]
        return [*lines, *((Span(f"{'GONE':<{LABEL}}", "warning bold"), say(each, "warning")) for each in gone)]

    def _answer_before(self) -> list[Line]:
        """Return the answer to the revision before, to compare it with this one; empty without one."""
        before = self._before
        if before is None or not before.feedback or before.decided_by is None:
            return []
        asked = question_in(before.feedback)
        did = "SAID" if asked is None else "ASKED"
        said = before.feedback if asked is None else asked
        who = one_line(display_decider(before, self.context.team.operator)).upper()
        return [(Span(f"{who} {did:<6}", "dim"), say(said, "bold"))]

    @property
    def _deviations(self) -> Deviations | None:
        """Return the calls that this plan does not name; while it waits, those that the plan before does not name.

        None if there are none.
        """
        agent = self.context.view.agent(self.page.seen.from_)
        found = agent.status.deviations if agent is not None and self._is_plan else None
        known = found is not None and (found.plan == self.page.seen.id or not self.page.outcome)
        return found if known else None

    def _impact_facts(self, *, lists: bool = False) -> list[Line]:
        """Return facts about what the request touches, one line each.

        With `lists`, the lists are shown with these facts.
        """
        found = plan_impact_lines(self.page.seen, self._touches, self.context.now, lists=lists)
        found += overlap_lines(self.page.seen, self.context.view)
        if self._deviations is not None:
            found.append(deviation_line(self.page.seen, self._deviations))
        if self._scope is not None:
            found.append(
                (
                    Span("RULE  ", "dim"),
                    Span(f"{self.context.key('request.rule')} says yes to "),
                    say(self._covers(), "bold"),
                    Span(f" · {self.context.key('request.rule_for')} changes which agents", "dim"),
                )
            )
        return found

    def _covers(self) -> str:
        return rules.covers(self.page.seen, self._scope or "", self._rule_for, self._agent_type)

    @property
    def _agent_type(self) -> str:
        agent = self.context.view.agent(self.page.seen.from_)
        return agent.type if agent is not None else ""

    def _whole(self, width: int) -> Iterator[Passage]:
        """Yield the text of the request.

        The facts, unless they are beside it, are at its top: they scroll away, so that the text gets most of the
        screen.
        """
        over = bool(self.page.outcome)
        drafts = [Note(id="", line=each.line, end=each.end, text=each.text, settled=over) for each in self._notes]
        # What is decided about steps that are not approved, by the line that they begin at.
        approved = self._approved
        terms = self.terms.terms if approved is None else approved.terms or Terms()
        denied = {each.step: f"refused: {each}; the rest is an instruction" for each in terms.denied}
        decided = {
            within.start: f"{VERDICTS[verdict].decided} · {denied.get(number, 'an instruction only')}"
            if (verdict := terms.verdict(number)) != "do"
            else "released: it was held at first"
            for number, within in self._step_lines.items()
            if terms.verdict(number) != "do" or number in terms.released
        }
        # None while the lines need no numbers.
        request, known = self._shown, (drafts if drafts or self._numbers else None, decided, self._before)
        if self._is_apart:
            yield from plan_alone(request, width, *known)
            yield Passage("", [(), (Span(f" {_END} ".center(width, "╌"), "dim"),)])
            return
        yield Passage(named(request, "head"), hang_facts(self.page.head_lines(), width, _FACT_LINES))
        for fact in [*self._answer_before(), *self._notes_line(), *self._impact_facts()]:
            # Named by its words, so that a new one must be read.
            yield Passage(named(request, plain(fact)), hang_facts([fact], width, _FACT_LINES))
        yield Passage("", [()])
        if self._is_plan:
            yield from plan_text(request, self._touches, self.context.now, width, *known)
            return
        text = review_text if request.type == "task_review" else permission_text
        yield Passage(named(request, "call"), text(request, width))
        if self._scope is not None:
            words = f"{self.context.key('request.rule')} also allows, from now on:"
            rule = [(), *exact_lines(words, width, "dim"), *exact_lines(self._covers(), width)]
            yield Passage(named(request, self._covers()), rule)

    @on(LineView.Scrolled)
    def _show_progress(self) -> None:
        edit, compare = self.context.key("request.edit"), self.context.key("request.compare")
        what = "Plan" if self._is_plan else "Work" if self.page.seen.type == "task_review" else "Permission"
        if self._comparing:
            what = f"What changed · {compare} shows the plan"
        elif self._shown.edited is not None:
            what = f"Plan, as it was edited and approved · {compare} shows what was changed"
        elif self.editor.rewritten:
            kept = "was not sent" if self.page.outcome else f"is kept: {edit} shows it"
            what = f"Plan, as it came · your edit of it {kept}"
        elif (steps := len(self._step_lines)) > 1 and not (
            self.page.why_over or self.terms.why_none or self._forbidden(BY_ID["request.terms"])
        ):
            # The key of a step stands in the footer only at the cursor.
            to_one, turn = self.context.key("log.down"), self.context.key("plan.step")
            what = f"Plan · {steps} steps: {to_one} to one, {turn} holds it"
        self._plan.rule.entitle(
            what,
            "" if self._has_meter else f"{'plan ' * self._comparing}{self._asked.progress}",
        )
        self._paint_meter()

    def _paint_meter(self) -> None:
        """Paint the rule that shows how much was read, and below it the answers."""
        if not self.is_ready:
            return
        lines: list[Line] = []
        if self._has_meter:
            # Also beside a comparison: it counts the text that an answer is about.
            least = min([self._asked, *[self._beside] * self._is_apart], key=lambda text: text.percent)
            bar = plain(share_bar(least.percent / 100, _METER)).strip()
            read = f"plan {least.progress}" if self._comparing else least.progress
            below = (self._compared if self._comparing else self._asked).below
            words = f"{read} · {counted(below, 'line')} below" if below else read
            name = "decided" if self.page.outcome else "your answer"
            keys: Line = ()
            for piece in self._footer.of_body:
                # A key stands there as a whole, or not at all.
                longer = (*keys, Span("  "), *piece)
                keys = longer if width_of(longer) < self.size.width else keys
            lines = [rule_line(name, f"{bar} {words}", (), 0, self.size.width, is_focused=False), keys]
        self._meter.show(lines)

    def paint_keys(self) -> None:
        super().paint_keys()
        self._paint_meter()

    def after_paint(self) -> None:
        super().after_paint()
        if self._was_read != self._is_read:
            self._was_read = not self._was_read
            self.paint_keys_soon()

    def _show_mode(self) -> None:
        """Show plan, terms or editor, and the feedback, as they are used now."""
        self.panes.unzoom()
        self._plan.set_class(self._editing or self._choosing, "-hidden")
        self.terms.set_class(not self._choosing, "-hidden")
        key = self.context.key
        self.terms.rule.entitle(f"Terms · {key('tick.turn')} changes one, {key('request.approve')} approves with them")
        self.editor.set_class(not self._editing, "-hidden")
        self._show_progress()
        self.feedback.editing = self._editing
        self.feedback.show_use()
        self.refresh_bindings()
        self.refresh_soon()

    @property
    def key_labels(self) -> Mapping[str, str]:
        opens = {"list.open": "change"} if self._choosing else {}
        return {**super().key_labels, **opens, "plan.step": self._plan.turns or ""}

    # ------------------------------------------------------------------------------------------------ answers

    def _why_no_answer(self, selection: Selection) -> str | None:
        why = self.page.why_no_answer(selection)
        return _EDITING if why is None and self._editing else why

    def _why_no_send(self, selection: Selection) -> str | None:
        if self._editing:
            return self.page.why_no_answer(selection)
        return self._why_no_revision(selection) or (None if self._notes else _NO_NOTES)

    def _why_no_revision(self, selection: Selection) -> str | None:
        return self._why_no_answer(selection) if self._is_plan else _NO_PLAN

    def _choose_terms(self) -> None:
        """Show the terms in place of the plan, or the plan again."""
        if self._choosing:
            self._read_on()
            return
        self._choosing = True
        self._show_mode()
        self.terms.focus()

    def _why_no_rule(self, selection: Selection) -> str | None:
        why = self._why_no_answer(selection)
        if why is not None or self._scope is not None:
            return why
        # A rule that allows would change nothing.
        return f"{asks} each time" if (asks := self.page.seen.payload.get("rule")) else _NO_RULE

    def _why_no_compare(self, _: Selection) -> str | None:
        if not self._is_plan:
            return _NO_PLAN
        return _EDITING if self._editing else None if self._pair is not None else "there is no earlier revision"

    def _approve_label(self, _: Selection) -> str | None:
        if not self.terms.terms.is_empty:
            return "approve+terms"
        return "approve+notes" if self._notes else None

    def _edit_label(self, _: Selection) -> str | None:
        if self.editor.rewritten:
            return "your edit"
        if self.size.width < WIDE:
            return "edit"
        return "edit→send back" if self.context.view.attached else None

    def _holds_back(self, key: str) -> bool:
        """Return True if part of the request is unread, so that the key does not act yet; then show that part."""
        text = self._asked
        if self._is_apart and (self._beside.unread or (self._beside.hides and not (text.unread or text.hides))):
            text = self._beside
        # What stands beside the text is in sight as a whole; until it is, no second press acts.
        if not text.holds_back(key, "approves") and not (text is self._beside and text.unread):
            return False
        if self._comparing:
            self._compare()
        elif self._choosing:
            self._read_on()
        return True

    def _approve_rule(self) -> None:
        if self.feedback.with_yes:
            rule, yes = self.context.key("request.rule"), self.context.key("request.approve")
            self.context.say(f"{rule} sends no feedback: empty the box first, or approve with {yes}", "warning")
            return
        if self._holds_back("request.rule"):
            return
        approve = partial(self.page.commands.approve_with_rule, self._covers(), self._rule_for)
        self._answer("request.rule", "approving", approve)

    def _widen_rule(self) -> None:
        """Offer the rule for the next larger group of agents; after all agents, for this agent again."""
        known: list[rules.RuleFor] = ["agent", "type", "all"] if self._agent_type else ["agent", "all"]
        self._rule_for = known[(known.index(self._rule_for) + 1) % len(known)]
        self.context.say(f"{self.context.key('request.rule')} would say yes to {self._covers()}")
        self.paint(self.context.snapshot)

    # ------------------------------------------------------------------------------------------------ steps

    @property
    def _approved(self) -> Request | None:
        """Return the plan as it was approved, with its terms; None if it is not approved."""
        if not (self._is_plan and self.page.outcome):
            return None
        seen = self.page.seen
        now = next((each for each in self.context.view.asked if each.id == seen.id), seen)
        return now if now.status == "approved" else None

    @property
    def _shown(self) -> Request:
        """Return the request that is shown: a plan that was edited and approved with its edited text."""
        approved = self._approved
        return self.page.seen if approved is None or approved.edited is None else approved

    @property
    def _step_lines(self) -> dict[int, range]:
        return step_lines(self._shown.plan) if self._is_plan else {}

    def _steps_in(self, lines: range) -> list[int]:
        """Return the steps to which lines of the plan belong; of an approved plan, only held steps."""
        approved = self._approved
        held = approved.terms.hold if approved is not None and approved.terms is not None else []
        return [
            number
            for number, within in self._step_lines.items()
            if max(lines.start, within.start) < min(lines.stop, within.stop) and (approved is None or number in held)
        ]

    def next_verdict(self, lines: range) -> str | None:
        """Return the label of the key `plan.step` for these lines of the plan; None if it does nothing."""
        steps = self._steps_in(lines)
        if not steps or self._forbidden(BY_ID["request.terms"]):
            return None
        many = f" {len(steps)}" if len(steps) > 1 and self.size.width >= WIDE else ""
        if self._approved is not None:
            can_tell = self.context.view.attached is None
            return f"release{many}" if can_tell and self.page.settled else None
        if self._why_no_terms(self.selection()) is not None:
            return None
        return f"{VERDICTS[next_verdict(self.terms.terms.verdict(steps[0]))].key}{many}"

    def turn_steps(self, lines: range) -> None:
        """Give the steps in these lines of the plan the next verdict; of an approved plan, release them."""
        steps = self._steps_in(lines)
        if (approved := self._approved) is not None:
            which = agent_types.name_steps(steps)
            release = partial(self.page.commands.release, approved, steps)
            self.context.do(f"releasing {which}", release, undone=f"{which} not released")
            return
        self.terms.turn_steps(steps)
        self.paint(self.context.snapshot)
        self.cursor_moved()

    def cursor_moved(self) -> None:
        """Update the keys after the cursor of the plan moved."""
        self.refresh_bindings()
        self.refresh_soon()

    def _why_no_terms(self, selection: Selection) -> str | None:
        return self._why_no_revision(selection) or self.terms.why_none

    # ------------------------------------------------------------------------------------------------ notes

    @property
    def _notes(self) -> list[NewNote]:
        """Return the unsent notes on lines of the plan."""
        return notes_on_plan(self.page.seen.id, self.context.drafts)

    @property
    def noted_lines(self) -> list[int]:
        """Return the numbers of the lines below which notes are shown."""
        request = self._shown
        sent = [*request.earlier_notes, *request.notes] if self._is_plan else []
        return [*(note.end for note in sent if note.line), *(note.end for note in self._notes)]

    def _notes_line(self) -> list[Line]:
        """Return what happened to the notes on earlier versions, in one line; empty if there were none.

        Notes that the agent did not answer come first.
        """
        notes = self._shown.earlier_notes if self._is_plan else []
        count = Counter(note.state for note in notes)
        unanswered = ", ".join(note.id for note in notes if note.state == "open")
        moved = sum(not note.line for note in notes)
        words = [f"{count[state]} {state}" for state in ("answered", "settled") if count[state]]
        words += [f"{moved} moved to the end"] if moved else []
        not_answered = [Span(f"{count['open']} not answered: {unanswered}", "warning")] if unanswered else []
        told = [*not_answered, *map(Span, words)]
        between = [piece for each in told for piece in (Span(" · ", "dim"), each)][1:]
        return [(Span(f"{'NOTES':<{LABEL}}", "dim"), *between)] if told else []

    def _problem_of_note(self, text: str) -> str | None:
        try:
            note = _note_in(text)
        except CrewboardError as error:
            return str(error)
        most = len(lines_of(self.page.seen.plan))
        return None if 1 <= note.line <= note.end <= most else f"the lines of the plan are 1 to {most}"

    def _draft_of_note(self, text: str) -> str:
        return note_on(self.page.seen.id, _note_in(text))

    def _write_note(self) -> None:
        """Ask for a note on lines of the plan. It is a draft from the first letter on."""
        self._numbers = True
        # The lines under the cursor, as a note begins, with the note that they have; empty without a cursor.
        chosen = self._plan.chosen
        if not chosen:
            written = ""
        else:
            first, last = chosen.start, chosen.stop - 1
            where = f"{first}:" if first == last else f"{first}-{last}:"
            written = where + self.context.drafts.get(self._draft_of_note(where), "")
        self.paint(self.context.snapshot)
        kept = [] if not written or _is_bare(written) else [self._draft_of_note(written)]

        def keep(text: str) -> None:
            nonlocal written
            begins, written = text.startswith(written), text
            while kept:
                self.context.drafts.pop(kept.pop(), None)
            if self._problem_of_note(text) is not None:
                return
            if not _is_bare(text):
                kept.append(self._draft_of_note(text))
                self.context.drafts[kept[0]] = parse_note(text).text
            elif begins and (before := self.context.drafts.get(self._draft_of_note(text))):
                # Lines that have a note already: it is written on.
                written = f"{text}{before}"
                kept.append(self._draft_of_note(written))
                prompt.reload()

        def done(text: str | None) -> None:
            if text and _is_bare(text):
                self.context.drafts.pop(self._draft_of_note(text), None)
            elif text:
                keep(text)
            self.context.drafts.keep()
            self.refresh_bindings()
            self.refresh_soon()

        hint = f"LINE:TEXT or LINE-LINE:TEXT · {self.context.key('draft.send')} keeps it · without TEXT it is removed"
        prompt = PromptLine("note", lambda: written, hint=hint, check=self._problem_of_note, changed=keep)
        self.context.navigator.ask(prompt, done, lambda: done(None))

    def _compare(self) -> None:
        here, self._other_place = self._other_place, self._plan.scroll_offset.y
        self._comparing = not self._comparing
        self._show_mode()
        self.paint(self.context.snapshot)
        self._plan.scroll_to(y=here, animate=False, force=True)

    def _edit(self) -> None:
        self._editing, self._choosing = True, False
        self._show_mode()
        self.editor.focus()

    @on(DraftInput.Submitted, "#feedback")
    def _send_back(self) -> None:
        if self.refusal("request.deny") is not None:
            return
        notes = self._notes
        if not self.feedback.with_no and not notes:
            self.context.say("say why: the agent needs a reason to continue", "warning")
            return
        label = "asking back about" if self.feedback.asks else "denying"
        key = "request.ask_back" if self.feedback.asks else "request.deny"
        feedback = self.feedback.with_no

        def reject() -> str:
            said = self.page.commands.reject(feedback, notes)
            left_out = ["your edit was not sent"] if self.editor.rewritten else []
            kept = ["your words for a yes"] if self.feedback.with_yes else []
            kept += [] if self.terms.terms.is_empty else ["your terms"]
            if kept and self._is_plan:
                left_out.append(f"{' and '.join(kept)} are kept for its next version")
            elif kept:
                left_out.append(f"{' and '.join(kept)} were not sent")
            return "; ".join([said, *left_out])

        self._answer(key, label, reject, no=True, notes=notes)

    def _deny_with(self, *, ask: bool) -> None:
        self.panes.unzoom()
        self.feedback.deny(ask=ask)

    def _answer(
        self,
        key: str,
        label: str,
        command: Callable[[], str],
        *,
        no: bool = False,
        edit: bool = False,
        notes: Sequence[NewNote] = (),
    ) -> None:
        """Run the `command` that answers in a thread, and then drop the drafts that it sent.

        `key` is the id of the key. `no` says that it is a refusal, `edit` that it sends the edited plan.
        """

        def forget_drafts(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if not worked:
                return
            if edit:
                self.editor.sent()
            self.feedback.take(no=no)
            if not no:
                self.terms.forget()
            for note in notes:
                if self.context.drafts.get(name := note_on(self.page.seen.id, note)) == note.text:
                    del self.context.drafts[name]

        doing, undone = f"{label} what {self.page.seen.from_} asks", "not denied" if no else "not approved"
        self.context.do(doing, command, self.page.answered, settle=forget_drafts, undone=undone, key=key)

    def _approve(self, key: str, edited: str | None = None) -> None:
        """Approve the request as it is shown, or a plan as it was `edited`."""
        # Claude Code takes an edit as feedback, which is no yes.
        is_yes = edited is None or self.context.view.attached is None
        if is_yes and self._holds_back(key):
            return
        # What goes along is what was there when the key was pressed: the command runs in a thread.
        feedback, notes = self.feedback.with_yes, self._notes

        def approve() -> str:
            terms = self.terms.terms if self._is_plan else None
            said = self.page.commands.approve(feedback=feedback, edited=edited, terms=terms, notes=notes)
            left_out = ["your words for a no were not sent"] if self.feedback.with_no else []
            left_out += ["your edit was not sent"] if self.editor.rewritten and edited is None else []
            return "; ".join([said, *left_out])

        self._answer(key, "approving", approve, edit=edited is not None, notes=notes)

    # ------------------------------------------------------------------------------------------------- leaving

    def _read_on(self) -> None:
        was_editing, self._editing, self._choosing = self._editing, False, False
        self.feedback.rest()
        self.keep_drafts()
        if was_editing and self.editor.rewritten:
            edit, yes = self.context.key("request.edit"), self.context.key("request.approve")
            kept = f"your edit is kept, not sent: {edit} continues with it, {yes} approves what is shown"
            self.context.say(_EDIT_NOT_SENT if self.page.outcome else kept, "warning")
        self._show_mode()
        self._plan.focus()

    def _leave_feedback(self) -> None:
        """Return from the feedback to the plan, or to the editor."""
        if not self._editing:
            self._read_on()
            return
        self.feedback.rest()
        self.editor.focus()

    def leave(self) -> None:
        self.keep_drafts()
        super().leave()

    def on_unmount(self) -> None:
        self.keep_drafts()

    def keep_drafts(self) -> None:
        """Save the feedback and the edited plan as drafts."""
        self.feedback.keep()
        self.editor.keep()
