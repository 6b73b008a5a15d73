"""Track which lines of a text were on the screen, and hold back an answer until all of them were."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct

from crewboard_tui.context import AGAIN_WITHIN, ShownPassage
from crewboard_tui.render.lines import Line, plain, width_of
from crewboard_tui.render.sanitize import has_hidden, revealing

if TYPE_CHECKING:
    from crewboard import Request
    from crewboard_tui.context import AppContext
    from crewboard_tui.widgets.line_view import LineView

TO_LOOK = 0.7
"""Seconds after a key has shown new lines in which no key answers: two presses by habit are quicker."""

_MOST_TRIES = 3
"""Presses that show the same line, unread again each time because its text changes, before a second press answers."""

_WHOLE = 100
"""Percent of a text all of whose lines were on the screen."""


class Passage(Struct, frozen=True):
    """A passage of a text, in lines of the width of its pane. Its name is the same at each width and in each dashboard.

    If all of a passage was read, it stays read when its text changes under the same name, as an age does.
    """

    name: str
    lines: Sequence[Line]
    place: range = range(0)
    """The numbers, from 1, of the lines of the text that the passage shows; empty if it shows something else."""
    gutter: int = 0
    """Characters at the left of each line that are no part of the text, such as its number."""


def named(request: "Request", what: str) -> str:
    """Return the name of the passage `what` of a request. It is another one for each version and for an edited one."""
    return f"{request.id} {request.sha256} {'' if request.edited is None else 'edited '}{what}"


class _Place(Struct, frozen=True):
    """The place of a line in the text of its passage; `shown` is that of the `ShownPassage`."""

    shown: bytearray
    start: int
    end: int

    @property
    def is_shown(self) -> bool:
        return 0 not in self.shown[self.start : self.end]


class ReadText:
    """The text in a pane of a screen, and which of its characters were on the screen.

    Characters are counted, not lines, because other widths break the text at other places; blanks do not count. The
    context keeps the passages as long as the dashboard runs, also for a page of the same request that is opened again.
    What is redacted is unread until the text was shown while it `reveals`.
    """

    def __init__(self, context: "AppContext", pane: "LineView") -> None:
        self._context = context
        self._pane = pane
        self._lines: list[Line] = []
        self._places: list[_Place] = []
        self._widths: list[int] = []
        self._asked: tuple[str, float] = "", 0.0
        """The key that was pressed while unread lines could not be shown, and when."""
        self._went_at = float("-inf")
        """The time at which a key last showed new lines, or the text was replaced."""
        self._sought: int | None = None
        """The line that the pane was scrolled to."""
        self._tries: tuple[int | None, int] = None, 0
        """The line that a key showed last, and how often in a row."""
        self._out_of_reach: int | None = None
        """The line that did not come onto the screen when the pane was scrolled to it."""
        self.reveals = False
        """True while nothing in the text is redacted."""
        self.hides = False
        """True if something in the text is redacted."""
        self.places: list[range] = []
        """The `place` of the passage of each line of the pane."""

    # ------------------------------------------------------------------------------------------- what was shown

    def show(self, passages: Iterable[Passage]) -> None:
        """Show this text in the pane."""
        lines: list[Line] = []
        self._places, self.hides, self.places = [], False, []
        with revealing(wanted=self.reveals):
            passages = list(passages)
        for passage in passages:
            texts = ["".join(plain(line)[passage.gutter :].split()) for line in passage.lines]
            whole = "".join(texts)
            self.hides = self.hides or (not self.reveals and has_hidden(whole))
            name = f"{passage.name}{' revealed' if self.reveals else ''}"
            known = self._context.shown.get(name)
            if known is None or known.text != whole:
                is_whole = known is not None and bool(known.text) and 0 not in known.shown
                known = self._context.shown[name] = ShownPassage(whole, bytearray([is_whole]) * len(whole))
            ends = [0]
            for text in texts:
                ends.append(ends[-1] + len(text))
            self._places += [_Place(known.shown, start, end) for start, end in pairwise(ends)]
            lines += passage.lines
            self.places += [passage.place] * len(passage.lines)
        if len(lines) != len(self._lines):
            self._sought, self._out_of_reach = None, None
        self._lines, self._widths = lines, [width_of(line) for line in lines]
        self._pane.show(lines)

    def note_shown(self) -> None:
        """Note which lines are on the screen now. Call it after a paint."""
        for at in self._in_sight():
            place = self._places[at]
            place.shown[place.start : place.end] = b"\1" * (place.end - place.start)
        if self._context.is_answered:
            if self._sought is not None and not self._places[self._sought].is_shown:
                self._out_of_reach = self._sought
            self._sought = None

    def _in_sight(self) -> Iterable[int]:
        """Return the lines that are on the screen as a whole: a line that is cut at the right edge does not count.

        None counts until all queries of the screen are answered: lines that a late answer adds would move those below.
        """
        pane = self._pane
        if pane.lines is not self._lines or not self._context.is_answered:
            return ()  # another text is in the pane, or what is there moves
        return (at for at in pane.in_sight if self._widths[at] <= pane.line_width)

    @property
    def unread(self) -> list[int]:
        """Return the numbers, from 0, of the lines that were not on the screen as a whole.

        A blank line counts as the line above it. If the text was not laid out yet, `[0]` is returned.
        """
        if not self._places:
            return [0]
        found: list[int] = []
        for at, place in enumerate(self._places):
            is_blank = place.start == place.end
            if (is_blank and found[-1:] == [at - 1]) or not (is_blank or place.is_shown):
                found.append(at)
        return found

    @property
    def progress(self) -> str:
        """Return how much of the text was read: `45% read`; `reading …` while a query of the screen is not answered."""
        return f"{self.percent}% read" if self._context.is_answered else "reading …"

    @property
    def percent(self) -> int:
        """Return the percentage of the text that was on the screen, or is with the next paint.

        It is at most 99 while something in the text is redacted.
        """
        left = set(self.unread).difference(self._in_sight())
        sizes = [place.end - place.start for place in self._places]
        read = sum(size for at, size in enumerate(sizes) if at not in left)
        percent = _WHOLE * read // sum(sizes) if sum(sizes) else _WHOLE * (not left)
        return min(percent, _WHOLE - self.hides)

    @property
    def below(self) -> int:
        """Return how many lines are below those that are in sight; 0 if none is in sight."""
        in_sight = self._pane.in_sight
        return len(self._lines) - in_sight.stop if in_sight else 0

    # ------------------------------------------------------------------------------------------ before a yes

    def note_new(self) -> None:
        """Note that the text is replaced now: for `TO_LOOK`, a key that was meant for the text before does nothing."""
        self._went_at = monotonic()

    def holds_back(self, key: str, does: str) -> bool:
        """Return True if the key does not act yet, because part of the text is unread.

        Each press says which lines are unread, and shows the first of them, until all were on the screen. For `TO_LOOK`
        after that, a press does nothing. Where lines cannot be shown, as in a terminal that is too narrow, a second
        press acts. While something in the text is redacted, no press acts. `does` is the verb for the action in these
        messages: `approves`.
        """
        if monotonic() - self._went_at < TO_LOOK:
            self._context.say("not taken: these lines had only just appeared; press it again", "warning")
            return True
        unread = self.unread
        asked, at = self._asked
        self._asked = "", 0.0
        missing = f"not shown before: {_lines(unread, self.places)}" if unread else ""
        # One that is not cut at the right edge of the pane.
        fits = (at for at in unread if at < len(self._widths) and self._widths[at] <= self._pane.line_width)
        line = next(fits, None)
        tried, count = self._tries
        self._tries = line, count + 1 if line == tried else 1
        can_show = line is not None and line != self._out_of_reach and self._tries[1] <= _MOST_TRIES
        if can_show and self._pane.in_sight:
            self._context.say(f"{missing}; {self._context.key(key)} {does} once all was shown", "warning", AGAIN_WITHIN)
            self._went_at = monotonic()
        elif self.hides:
            # What stands there may be a word of the agent that only looks like a key.
            hidden = f"a key is hidden: {self._context.key('request.reveal')} shows it"
            self._context.say(f"{hidden}; {self._context.key(key)} {does} after that", "warning", AGAIN_WITHIN)
        elif not unread or (asked == key and monotonic() - at <= AGAIN_WITHIN):
            return False
        else:
            self._asked = key, monotonic()
            press = f"{self._context.key(key)} again within {AGAIN_WITHIN:.0f} s {does}"
            self._context.say(f"{missing}; {press}", "warning", AGAIN_WITHIN)
        if unread:
            # A pane that was hidden must be laid out first.
            self._pane.screen.call_after_refresh(self._go_to, unread[0] if line is None else line)
        return True

    def _go_to(self, line: int) -> None:
        self._pane.scroll_to(y=line, animate=False, force=True)
        if self._pane.lines is self._lines and self._pane.in_sight:
            self._sought = line


def _lines(unread: Sequence[int], places: Sequence[range]) -> str:
    """Return in words which lines are unread: the first range, counted from 1, and how many more there are.

    Lines of a plan have their numbers in the plan; of lines beside the plan, only their number is told.
    """
    end = next((at for at, (one, other) in enumerate(pairwise(unread), 1) if other != one + 1), len(unread))
    first, last, more = unread[0] + 1, unread[end - 1] + 1, len(unread) - end
    of = f"of {len(places)}"
    if any(places):
        within = [places[at] for at in unread[:end] if places[at]]
        if not within:
            return f"{len(unread)} line{'s' * (len(unread) > 1)} beside the plan"
        first, last, of = within[0].start, within[-1].stop - 1, "of the plan"
    words = f"line {first}" if first == last else f"lines {first}–{last}"
    return f"{words}{f' and {more} more' if more else ''} {of}"
