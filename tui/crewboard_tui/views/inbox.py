"""`2` Inbox: every mailbox, and the mail of the selected one. Looking never moves a worker's cursor."""

from collections.abc import Iterable
from functools import partial
from time import monotonic

from msgspec.structs import replace
from textual import events, on
from textual.containers import Horizontal
from textual.widget import Widget

from crewboard import LEAD, OPERATOR, TeamView
from crewboard.commands import messages
from crewboard.names import is_operator_mailbox, mailboxes, operator_mailboxes
from crewboard.readmodel import mail as readmodel_mail
from crewboard.readmodel.mail import MessageView, as_approved, is_notice, with_unreadable
from crewboard_tui.actions.agents import AgentActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Action, Layer, Selection, marks_layer, select
from crewboard_tui.actions.search import MAIL_GROUPS, Search, mail_in_group
from crewboard_tui.queries import Mailbox, MailTo, Query, Snapshot
from crewboard_tui.render.lines import Span, clip, clip_middle, matches, spread, width_of
from crewboard_tui.render.looks import look_of
from crewboard_tui.views.base import AppContext, BaseScreen
from crewboard_tui.views.message_list import (
    OLDER,
    SORTS,
    MailboxInfo,
    MessageList,
    message_body,
    story_lines,
    unread_of,
)
from crewboard_tui.widgets.bars import follow_words
from crewboard_tui.widgets.line_list import LineList, Row
from crewboard_tui.widgets.line_view import LineView

LOOKED_AT = 1.5
"""Seconds for which a mailbox of the operator must be open for the mail in sight to count as read afterwards."""


class InboxScreen(BaseScreen):
    """The Inbox view: mailboxes at the left, the mail of the selected one at the right.

    Enter reads a message in full.
    """

    CSS_PATH = "inbox.tcss"
    MODE = "inbox"
    AUTO_FOCUS = "#boxes"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.rows = LineList(id="boxes", classes="pane")
        self._mail = MessageList(marks=True, sorts=tuple(SORTS), id="mail", classes="pane")
        self._letter = LineView(id="letter", classes="pane", follows=False)
        self._unread_only = False
        self._most = readmodel_mail.MOST
        """The most messages of the open mailbox that are loaded; doubled when the user scrolls to the first of them."""
        self._read: tuple[str, Mailbox] = ("", Mailbox())
        self._shown_of: tuple[object, list[MessageView]] = (None, [])
        self._seen: dict[str, int] = {}
        self._came_at = monotonic()
        self._is_sent = False
        """True if another part of the dashboard chose the mailbox to show."""
        self.search = Search(context, self.narrow, "words of a message, its author or its type", MAIL_GROUPS)
        self._messaging = Messaging(context)
        self.back_layers = (
            marks_layer(self._mail),
            self.panes.layer,
            self.search.layer,
            Layer(lambda: self.focused in (self._mail, self._letter), self._leave_mail),
        )
        own = (
            Action(
                "inbox.reply",
                self._reply,
                lambda _: None if self._writes_to() else "its author is no agent of the team",
            ),
            Action("inbox.broadcast", self._messaging.broadcast, self._messaging.why_no_broadcast),
            Action("inbox.unread", self._toggle_unread),
        )
        self.offer(own, AgentActions(context).actions, self._messaging.actions, self.search.actions, self.panes.actions)

    def body(self) -> Iterable[Widget]:
        with Horizontal():
            yield self.rows
            yield self._mail
        yield self._letter

    def queries(self) -> Iterable[Query[object]]:
        return (MailTo(self._box_name, self._most),)

    @property
    def orders(self) -> dict[str, str]:
        """Return no orders: a sorted mailbox notes no mail as read, so its order is not stored."""
        return {}

    @property
    def _box_name(self) -> str:
        return self.selected or OPERATOR

    def go_to(self, key: str) -> None:
        self._is_sent = True
        super().go_to(key)

    def selection(self) -> Selection:
        view, name = self.context.view, self._box_name
        return select(view, name if view.agent(name) else None)

    # ----------------------------------------------------------------------------------------------- painting

    def paint(self, snapshot: Snapshot) -> None:
        boxes, view, width = self.rows, snapshot.view, self.rows.row_width
        rows = []
        for name in mailboxes(view.names):
            agent, count, mine = view.agent(name), view.unread.get(name, 0), is_operator_mailbox(name, view.names)
            shape = Span(f"{look_of(agent).glyph} ", look_of(agent).tone) if agent else Span("  ")
            words = (f"{count} new" if mine else f"{count} unread") if count else ""
            if len(name) + width_of((shape,)) + len(words) >= width:
                words = str(count or "")
            room = width - width_of((shape,)) - len(words) - 1
            left = (shape, Span(clip_middle(name, room), "bold" if mine else ""))
            right = Span(words, "warning" if mine or (agent and not agent.alive) else "")
            rows.append(Row(name, spread(left, (right,), width)))
        boxes.show(rows)
        boxes.rule.entitle("Mailboxes")
        self._paint_mail(snapshot)

    def _box(self, view: TeamView) -> MailboxInfo:
        name = self._box_name
        mine = is_operator_mailbox(name, view.names)
        unread = view.unread.get(name, 0)
        return MailboxInfo(name, operators=mine, unread=unread, now=self.context.now, answered=view.answered)

    def _shown(self, mailbox: Mailbox, box: MailboxInfo) -> list[MessageView]:
        """Return the messages that pass the filter; the same list while they are the same."""
        asked = self.context.view.asked
        looks = (self._unread_only, self.search.words, self.search.group)
        made_of = (mailbox.letters, mailbox.damaged, asked, replace(box, now=0), looks)
        if made_of != self._shown_of[0]:
            file = self.context.team.directory.inbox(box.name).name
            letters = (
                unread_of(mailbox.letters, box)
                if self._unread_only
                else with_unreadable(mailbox.letters, mailbox.damaged, box.name, file, box.now)
            )
            if box.operators:
                # That an agent is idle is its state, which the Board shows.
                letters = [each for each in letters if not is_notice(each.message)]
            shown = [each for each in as_approved(letters, asked) if mail_in_group(each.message, self.search.group)]
            if self.search.words:
                texts = ((each, each.message) for each in shown)
                shown = [
                    each
                    for each, said in texts
                    if matches(f"{said.from_} {said.to} {said.type} {said.content}", self.search.words)
                ]
            self._shown_of = made_of, shown
        return self._shown_of[1]

    def _paint_mail(self, snapshot: Snapshot) -> None:
        pane, below, box = self._mail, self._letter, self._box(snapshot.view)
        if below in (self.focused, self.panes.zoomed):
            # A message that is being read stays.
            pane.follow = False
        # While more of the mailbox is loaded, what was loaded before stays.
        before = self._read[1] if self._read[0] == box.name else Mailbox()
        mailbox = snapshot.get(MailTo(box.name, self._most)) or before
        self._read = box.name, mailbox
        words = f"older messages are not loaded · {self.context.key('list.top')} loads more"
        older = words if mailbox.has_older else ""
        if self.search.is_narrowed:
            nothing = f"no mail matches; {self.context.key('view.back')} shows all"
        elif self._unread_only:
            nothing = f"nothing unread; {self.context.key('inbox.unread')} shows all"
        elif box.operators:
            nothing = "no mail; messages to you appear here"
        else:
            nothing = "no mail" + ("" if self.context.read_only else f"; {self.context.key('inbox.reply')} writes some")
        pane.read(self._shown(mailbox, box), box, nothing, snapshot.view.asked, older)
        room = pane.size.width - 5
        # What the list leaves out of the mailbox, and where there is room the keys that show it.
        unread = " · unread only" if self._unread_only else ""
        unread_key = f" · {self.context.key('inbox.unread')} shows the rest" if unread else ""
        narrowed = f"{unread}{unread_key}{self.search.narrowed_to}".removeprefix(" · ")
        beside_name = room - len(f"{box.name}{pane.state} · ")
        if len(narrowed) > beside_name:
            narrowed = f"{unread}{self.search.narrowed_to.rpartition(' · ')[0]}".removeprefix(" · ")
            narrowed = clip(narrowed, max(beside_name, 1))
        follow = follow_words(pane, self.context.key("list.bottom")) if pane.has_focus or pane.follow else ""
        right = " · ".join(filter(None, (narrowed, pane.below, follow)))
        beside = len(f"{pane.state} · {narrowed}" if narrowed else pane.state)
        title = f"{_whose(box, room - beside, snapshot.view.lead)}{pane.state}"
        # An order tells why mail stays new: that is more than what is below, and how to follow it.
        pane.rule.entitle(title, right if not pane.state or len(f"{title}{right}") < room else narrowed)
        self._note_seen()
        thread, letter = pane.thread, pane.letter
        below.rule.entitle("Thread" if thread else "Message")
        if thread is not None:
            below.show(story_lines(thread, self.context.now, below.line_width, self.context.team.operator))
        else:
            body = message_body(letter, self.context.now, below.line_width, pane.void_of(letter)) if letter else []
            below.show(body)

    def _note_seen(self) -> None:
        """Note up to which message the operator's own mail was in sight; not while a filter or an order hides some."""
        snapshot, pane, name = self.context.snapshot, self._mail, self._box_name
        in_sight = (
            self.is_current and self.panes.zoomed in (None, pane) and not self.search.is_narrowed and not pane.is_sorted
        )
        mailbox = snapshot.get(MailTo(name, self._most))
        if not in_sight or name not in operator_mailboxes(snapshot.view.names) or mailbox is None:
            return
        seen = pane.shown_to(self._seen.get(name, 0))
        last = next((each.end for each in reversed(mailbox.letters) if not is_notice(each.message)), 0)
        # What cannot be read behind the last message is nothing new, and goes with it.
        self._seen[name] = seen if seen < last else mailbox.end

    # ------------------------------------------------------------------------------------------------- events

    @on(LineList.Moved, "#boxes")
    def _other_box(self) -> None:
        self._note_read(keep=self._box_name)
        self._came_at = monotonic()
        self._mail.restart()
        self._load_newest()
        self.ask()
        self._paint_mail(self.context.snapshot)
        self.paint_keys()

    def _load_newest(self) -> None:
        self._most = readmodel_mail.MOST
        self._read, self._shown_of = ("", Mailbox()), (None, [])

    @on(LineList.Moved, "#mail")
    def _other_letter(self) -> None:
        if not self.is_in_front:
            # Forgetting what was read leaves no letter; it stays forgotten.
            return
        if self._mail.selected == OLDER:
            # Twice as many messages are loaded; the cursor stays where they begin.
            mailbox = self.context.snapshot.get(MailTo(self._box_name, self._most))
            self._mail.select(next((key for key in self._mail.keys if key != OLDER), None))
            # Else those before are not there yet.
            if mailbox is not None and mailbox.has_older:
                self._most *= 2
                self.ask()
        self._letter.restart()
        self._paint_mail(self.context.snapshot)

    @on(LineList.Opened, "#boxes")
    def _into_box(self) -> None:
        self._mail.focus()

    @on(LineList.Opened, "#mail")
    def _into_letter(self) -> None:
        self.panes.read_in(self._letter)

    def on_screen_resume(self) -> None:
        if self._seen:  # it was not left, but only covered
            return
        self._came_at = monotonic()
        if self._is_sent:
            return
        # The operator's mailbox that has something new, if the selected one is another of theirs with nothing new.
        view = self.context.view
        own = [name for name in mailboxes(view.names) if is_operator_mailbox(name, view.names)]
        new = [name for name in own if view.unread.get(name)]
        if new and self._box_name not in new and self._box_name in own:
            self.rows.want(new[0])

    def on_screen_suspend(self, event: events.ScreenSuspend) -> None:  # noqa: ARG002
        # A palette or a help page on top still shows the mail behind it.
        if isinstance(self.app.screen, BaseScreen):
            self._note_read(keep=None)
            self._is_sent = False
            if self._most != readmodel_mail.MOST:
                self._load_newest()
            # It opens at what is new. If nothing is, the rows are still right.
            self._mail.restart()

    def forget(self) -> None:
        super().forget()
        self._load_newest()
        self._mail.read([], self._box(self.context.view))

    def on_unmount(self) -> None:
        self._note_read(keep=None)

    def _note_read(self, keep: str | None) -> None:
        """Mark the operator's mail that was in sight as read, in all mailboxes but `keep`."""
        looked_at = monotonic() - self._came_at >= LOOKED_AT
        for name in [name for name in self._seen if name != keep]:
            offset = self._seen.pop(name)
            if offset and looked_at and not self.context.read_only:
                self.context.note_read(partial(messages.mark_read, self.context.team, name, offset))

    def _toggle_unread(self, _: Selection) -> None:
        self._unread_only = not self._unread_only
        self._paint_mail(self.context.snapshot)

    def _writes_to(self) -> list[str]:
        """Return the agents that a reply goes to: the owner of the mailbox, or the authors of selected mail."""
        agent = self.selection().agent
        if agent is not None:
            return [agent.name]
        letters = self._mail.marked_letters or ([self._mail.letter] if self._mail.letter else [])
        authors = (letter.message.from_ for letter in letters)
        return [name for name in dict.fromkeys(authors) if self.context.view.agent(name)]

    def _reply(self, _: Selection) -> None:
        if names := self._writes_to():
            self._messaging.write_to(names, lambda _: self._mail.unmark(self._mail.shown_marks))

    def _leave_mail(self) -> None:
        """Move the focus from a message to its mailbox, or from a mailbox to the list of mailboxes."""
        (self._mail if self.focused is self._letter else self.rows).focus()

    @property
    def copied(self) -> str:
        reads_one = self.focused is self._letter and self._mail.thread is None
        return self._mail.copied if reads_one else super().copied


def _whose(box: MailboxInfo, width: int, lead: str) -> str:
    """Return the name of a mailbox, who reads it, and how much is new there, as far as there is room."""
    if not box.operators:
        unread = f"{box.name} · {box.unread} unread"
        words = f"{unread} · seen as its worker sees it"
        words = words if len(words) <= width else unread
        return words if len(words) <= width else box.name
    empty = "no lead hired yet" if lead == LEAD else f"{lead} is the lead"
    who = f"{empty}: you read it" if box.name == LEAD else "your mail"
    short = "you read it" if box.name == LEAD else "yours"
    new = f" · {box.unread} new" if box.unread else ""
    wordings = (f"{who}{new}", who, f"{short}{new}", short)
    return next((words for words in (f"{box.name} · {each}" for each in wordings) if len(words) <= width), box.name)
