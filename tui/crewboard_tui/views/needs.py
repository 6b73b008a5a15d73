"""`4` Needs-you: everything that waits for the operator, and why; and `9`, the page of the permission rules."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any

from textual import on
from textual.widget import Widget

from crewboard import Need, NeedKind, TeamView
from crewboard.commands import messages
from crewboard.commands import rules as commands_rules
from crewboard.commands.context import CommandLine
from crewboard.readmodel.needs import response_times_today, waiting_behind
from crewboard.records.base import counted
from crewboard.records.team import Rule, RuleEffect
from crewboard.store import journal
from crewboard_tui.actions.agents import NeedActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Action, Selection, marks_layer, select_in, select_needs
from crewboard_tui.actions.requests import MarkedPermissions
from crewboard_tui.actions.search import NEED_GROUPS, Search, need_in_group
from crewboard_tui.queries import CrashOf, MailTo, Query, Rules, Snapshot, WorkOf
from crewboard_tui.render.formats import format_long_age, format_moment
from crewboard_tui.render.lines import Line, Span, hang, matches, pad, say
from crewboard_tui.views.base import AppContext, BaseScreen
from crewboard_tui.views.rows import explanation_lines, fact_lines, need_rows, permission_text
from crewboard_tui.widgets.line_list import LineList, Row, keep_order
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.reading import Passage, ReadText, named

_NOTHING = "nothing needs you; plans to approve, questions and crashes appear here"


_TABS: dict[NeedKind, str] = {"result": "Mail", "collision": "Files"}
"""The tab of an agent's page that tells most about a kind of need, if it is not the first one."""

SORTS: dict[str, Callable[[TeamView, Need], Any]] = {
    "urgency": lambda _, __: 0,
    "age": lambda _, need: need.since,
    "agent": lambda _, need: need.agent,
    "kind": lambda _, need: need.kind,
    "unblocks": lambda view, need: -waiting_behind(view, need).count,
}
"""The orders of needs by sort key; equal needs are ordered by urgency."""


class NeedsScreen(BaseScreen):
    """The list of needs, and the evidence for the selected one.

    New needs are added at its end while the view is open.
    """

    CSS_PATH = "needs.tcss"
    MODE = "needs"
    AUTO_FOCUS = "#needs"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._order: list[str] = []
        self.rows = LineList(marks=True, sorts=tuple(SORTS), chosen_by_key="unblocks", id="needs", classes="pane")
        self._why = LineView(id="why", classes="pane", follows=False)
        self.search = Search(context, self.narrow, "words of a need, its agent or its kind", NEED_GROUPS)
        self.back_layers = (marks_layer(self.rows), self.panes.layer, self.search.layer)
        self._marked = ReadText(context, self._why)

        def holds_back(count: int) -> bool:
            """Return True if part of the marked permissions is unread, so that the key does not act yet."""
            is_held = self._marked.holds_back("agent.answer", f"approves {count}")
            if is_held:
                self.panes.unzoom()
            return is_held

        self._permissions = MarkedPermissions(context, holds_back)
        self.texts = (self._marked,)
        self._marked_before: tuple[str, ...] = ()
        """The hashes of the marked permissions that were shown last."""
        self.offer(
            self._permissions.actions,
            NeedActions(context, self._permissions.approve).actions,
            Messaging(context).actions,
            self.search.actions,
            self.panes.actions,
        )

    def body(self) -> Iterable[Widget]:
        yield self.rows
        yield self._why

    @cached_property
    def _typed(self) -> CommandLine:
        return CommandLine.of(self.context.team)

    def queries(self) -> Iterable[Query[object]]:
        need = self.selected_need()
        if need is None:
            return ()
        if need.kind == "result" and need.mailbox:
            return (MailTo(need.mailbox),)
        return (WorkOf(need.agent),) if need.kind == "task_failed" else (CrashOf(need.agent),)

    def selected_need(self) -> Need | None:
        """Return the need under the cursor; None if there is none."""
        return self.context.view.need(self.selected)

    @property
    def shown_need(self) -> str | None:
        return self.selected

    def selection(self) -> Selection:
        view = self.context.view
        needs = [need for key in self.rows.targets if (need := view.need(key)) is not None]
        agents = {need.key: need.agent for need in view.needs}
        return select_needs(view, needs, select_in(view, self.rows, agents.get))

    def lists(self, need: Need) -> bool:
        rows = self.rows
        return rows.display and not self.search.is_narrowed and need.key in rows.seen_keys

    def go_to(self, key: str) -> None:
        self.rows.want(key)
        self.refresh_all()

    def on_screen_resume(self) -> None:
        self._order = []

    @on(LineList.Reordered, "#needs")
    def _forget_order(self) -> None:
        self._order = []
        self.narrow()

    def paint(self, snapshot: Snapshot) -> None:
        rows, view = self.rows, snapshot.view
        rows.marked &= {need.key for need in view.needs}
        found = {
            row.key: row
            for row in need_rows(view, self.context.now, rows.row_width, self.search.words, frozenset(rows.marked))
        }
        shown = [need for need in view.needs if need.key in found and need_in_group(need, self.search.group)]
        rank = partial(SORTS[rows.order.by], view)
        wanted = [need.key for need in rows.in_order(shown, lambda need: need.key, rank)]
        self._order = keep_order(self._order, wanted)
        nothing = f"{_NOTHING}; {self.context.key('app.next')} opens the most urgent one from any view"
        rows.show([found[key] for key in self._order] or rows.empty_rows(self.search.nothing(nothing)))
        self._permissions.bind(view, rows.shown_marks)
        count = f"{len(wanted)} of {len(view.needs)}" if self.search.is_narrowed else len(wanted)
        # New needs come last while the view is open, so that no row moves under the cursor. `wanted` may be held, too.
        order = " · most urgent first" if self._order == [need.key for need in shown] else " · new ones last"
        order = "" if rows.is_sorted or not view.needs else order
        quick = response_times_today(view.asked, self.context.now)
        head, room = f"Needs you{f' · {count}' if view.needs else ''}{rows.state}", rows.size.width - 5
        right = f"answered today {quick.count} · median {format_long_age(quick.median)}" if quick else ""
        narrowed = self.search.narrowed_to
        # What is shown, and how many are marked, goes before how fast the user was; that before the order.
        order = order if len(f"{head}{order}{narrowed}{right}") < room else ""
        rows.rule.entitle(f"{head}{order}{narrowed}", right if len(f"{head}{narrowed}{right}") < room else "")
        self._paint_why(snapshot)
        # Whether the alert line is needed depends on the rows.
        self.paint_times(snapshot)

    def _paint_why(self, snapshot: Snapshot) -> None:
        pane, need = self._why, self.selected_need()
        self.panes.show_below(pane, shown=need is not None or bool(self._permissions.requests))
        if marked := self._permissions.requests:
            before, self._marked_before = self._marked_before, tuple(request.sha256 for request in marked)
            if before != self._marked_before:
                pane.restart()
            self._marked.show(self._marked_text(pane.line_width))
            pane.rule.entitle(f"{len(marked)} marked to approve or deny", self._marked.progress)
            return
        self._marked_before = ()
        if need is None:
            pane.rule.entitle("Why")
            pane.show([])
            return
        opens = bool(need.request_id or need.task or need.mailbox or need.other) and self.rows.has_focus
        about = f"#{need.task}" if need.task else need.agent
        pane.rule.entitle(f"{about} · why", f"{self.context.key('list.open')} open" if opens else "")
        pane.show(explanation_lines(need, snapshot, self.context.now, pane.line_width, self._typed))

    @on(LineList.Moved, "#needs")
    def _explain(self) -> None:
        self.ask()
        if not self._permissions.requests:
            self._why.restart()
        self._paint_why(self.context.snapshot)
        self.paint_times(self.context.snapshot)
        self.paint_keys()

    @on(LineList.Opened, "#needs")
    async def _open(self) -> None:
        """Open the request, the task, the agent or the mailbox of the selected need.

        Opening a result marks it as read, but not the earlier ones of the agent that are still to be read.
        """
        need, view = self.selected_need(), self.context.view
        if need is None:
            return
        if need.kind == "result" and need.count > 1:
            key = self.context.key("agent.acknowledge")
            remedy = "" if self.context.read_only else f" · {key} acknowledges all of them"
            self.context.say(f"{need.count} results wait{remedy}")
        elif need.kind == "result" and not self.context.read_only:
            self.context.note_read(partial(messages.acknowledge_marks, self.context.team, dict(need.marks)))
        request = view.request(need.request_id)
        if request is not None:
            self.context.navigator.open_request(request)
        elif need.in_worktrees:
            await self.context.navigator.open_view("changes", need.agent)
        elif need.task is not None:
            await self.context.navigator.open_view("tasks", str(need.task))
        elif view.agent(need.agent) is not None:
            self.context.navigator.open_agent(need.agent, _TABS.get(need.kind, "Now"), need.mailbox or "")
        elif need.mailbox:
            await self.context.navigator.open_view("inbox", need.mailbox)

    # ------------------------------------------------------------------------------------------ marked permissions

    def _marked_text(self, width: int) -> Iterator[Passage]:
        """Yield the whole text of all marked permissions."""
        for at, request in enumerate(self._permissions.requests):
            head: Line = (say(request.from_, "bold"), Span(f" {request.id}", "dim"))
            yield Passage(named(request, "head"), [*([()] if at else []), *hang(head, width, 2, 9)])
            why = fact_lines([("why", str(request.payload.get("why") or ""))], width)
            yield Passage(named(request, "call"), [*why, *permission_text(request, width)])

    @on(LineView.Scrolled)
    def _scrolled(self) -> None:
        self._paint_why(self.context.snapshot)


_RULE_HEAD = (("", 6), ("HITS", 6), ("LAST HIT", 12))

_EFFECT_TONES: dict[RuleEffect, str] = {"allow": "success", "ask": "warning", "deny": "error"}


class RulesPage(BaseScreen):
    """The permission rules of the team, how often each decided a call, and the details of the selected one."""

    CSS_PATH = "needs.tcss"
    TAB = "rules"
    AUTO_FOCUS = "#rules"
    DETAIL = "rule"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.rows = LineList(id="rules", classes="pane")
        self.search = Search(context, self.narrow, "words of a rule")
        self.back_layers = (self.search.layer,)
        why = "select a rule first"
        revoke = Action("rule.revoke", self._revoke, lambda _: None if self._selected is not None else why)
        self.offer((revoke,), self.search.actions)

    def queries(self) -> Iterable[Query[object]]:
        return (Rules(),)

    @property
    def _selected(self) -> tuple[Rule, journal.RuleUsage] | None:
        """Return the rule under the cursor, with its usage; None if there is none."""
        key = self.selected
        return next((each for each in self.context.snapshot.get(Rules()) or () if each[0].id == key), None)

    def paint(self, snapshot: Snapshot) -> None:
        rows, rules = self.rows, snapshot.get(Rules())
        if rules is None:
            rows.show(rows.empty_rows("reading the rules …"))
            return
        (_, effect), (_, hits), (_, moment) = _RULE_HEAD
        found = []
        for rule, used in rules:
            says = commands_rules.describe_rule(rule)
            last = format_moment(used.last_hit, self.context.now) if used.last_hit is not None else ""
            line = (
                Span(pad(rule.effect, effect), _EFFECT_TONES[rule.effect]),
                Span(f"{used.hits:>{hits - 2}}  ", "" if used.hits else "dim"),
                Span(pad(last, moment), "dim"),
                say(says),
            )
            if matches(f"{rule.id} {says}", self.search.words):
                found.append(Row(rule.id, line))
        approve = self.context.key("request.rule")
        nothing = f"no permission rules; {approve} on a permission adds one; so does `crewboard rules add`"
        head = "".join(pad(name, width) for name, width in _RULE_HEAD) + "RULE"
        rows.show(found or rows.empty_rows(self.search.nothing(nothing)), (Span(head, "dim"),) if found else None)
        rows.rule.entitle(
            f"Permission rules{f' · {len(found)}' if found else ''}{self.search.narrowed_to}",
            "deny wins, then ask",
        )
        self.paint_detail(snapshot)

    def paint_detail(self, snapshot: Snapshot) -> None:  # noqa: ARG002
        pane, here = self.detail, self._selected
        pane.rule.entitle(here[0].id if here else "Rule")
        self.panes.show_below(pane, shown=here is not None)
        if here is None:
            pane.show([])
            return
        rule, used = here
        hits = counted(used.hits, "call")
        last = f", the last at {format_moment(used.last_hit, self.context.now)}" if used.last_hit is not None else ""
        facts = [
            ("rule", say(commands_rules.describe_rule(rule)).text),
            ("decided", hits + last),
            ("added", f"at {format_moment(rule.at, self.context.now)}" if rule.at else ""),
            ("by", say(rule.by).text),
        ]
        pane.show(fact_lines(facts, pane.line_width))

    def _revoke(self, _: Selection) -> None:
        if self._selected is None:
            return
        rule = self._selected[0]

        def revoke() -> str:
            commands_rules.revoke(self.context.team, rule.id)
            return f"revoked: {commands_rules.describe_rule(rule)}"

        self.context.do("revoking the rule", revoke)

    def tick(self) -> None:
        """Do nothing, because no row has an age."""

    @on(LineList.Opened, "#rules")
    def _read_rule(self) -> None:
        self.detail.focus()
