"""What somebody wants of the embedded model, and the words to look for in it.

A rule is a generator: it yields the calls that it wants, is sent what each gave, and returns what to say. It never
asks which tools are offered: it tries, and what is not offered comes back as `unavailable`. So the same steps can be
walked again from a later request, in which other tools may be offered.
"""

import re
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

from crewboard.offline.conversation import Call, Conversation, Done, Entry, Mail

Steps = Generator[Call, Done, str]

_QUOTED = re.compile(
    r"```(?:\w*\n)?(?P<block>.*?)\n?```"
    r"|`(?P<tick>[^`\n]+)`"
    r'|"(?P<double>[^"]*)"'
    r"|“(?P<curly>[^”]*)”"
    r"|(?<!\w)'(?P<single>[^'\n]*)'(?!\w)",
    re.DOTALL,
)
_VERBATIM = re.compile(
    r"\n{1,9}```.*?```|"  # a block is no line of its own, but belongs to what stands before it
    + _QUOTED.pattern
    + r"|\b(?:run|execute|bash)\s*:[^\n]+"  # a command, up to the end of its line
    + r"|\b(?:containing|contents?|with|saying)\s*:\s*\n.+\Z",  # a file's content, up to the end
    re.DOTALL | re.IGNORECASE,
)
_GAPS = re.compile(r"(\s{20})\s+")
"""White space that is longer than any text needs, and that would take long to look through."""

_PATH = re.compile(
    r"(?<![\w/.])(?:"
    r"(?:\.?[\w-]+/)*[\w.-]*[\w-]\.[A-Za-z]\w{0,5}\b(?!/)"  # with an ending: a.py, docs/b.md
    r"|(?:[\w.-]+/)+[\w-]*"  # with a slash: src/, src/api
    r"|(?:README|Makefile|LICENSE|Dockerfile|CHANGELOG)\b"
    r")"
)
_VERBS = "(?:tell|send|ask|run|re-?run|list|mark|complete|claim|submit|search|grep|read|notify|message)"
"""Words that begin a piece of work of its own behind "and"."""

_TELLS = re.compile(
    r"\b(?:ask|say|reply|message|plan|containing|saying|(?:tell|send)(?!\s+(?:me|us)\b))\b", re.IGNORECASE
)
"""Words behind which "and" may belong to what is to be said."""

_NO_PATH = re.compile(r"^(?:e\.g|i\.e|etc|and/or)\b|^\d+(\.\d+)*$", re.IGNORECASE)


@dataclass
class Walk:
    """One walk through the steps of an assignment. `left` are the calls on record that no step was fed with yet."""

    left: deque[Done]
    made: list[Done] = field(default_factory=list)
    """The calls that steps were fed with."""
    plan: Done | None = None
    """The approval of a plan; one is enough for an assignment."""


@dataclass(frozen=True)
class Ask:
    """One piece of work: a clause of somebody's mail. `whole` is all that they wrote."""

    text: str
    whole: str
    author: str
    kind: str
    talk: Conversation
    dispatch: Callable[["Ask"], "Steps | None"]
    """Finds the steps for what is asked, clause by clause; None if no rule knows any of it."""
    walk: Walk
    before: tuple[Entry, ...] = ()
    """What stands in the conversation before that mail."""

    @property
    def low(self) -> str:
        """The text in lower case."""
        return self.text.lower()

    def has(self, pattern: str) -> bool:
        """Whether the text holds what `pattern` says, capitals aside."""
        return re.search(pattern, self.text, re.IGNORECASE) is not None

    def match(self, pattern: str) -> re.Match[str] | None:
        """Where the text holds what `pattern` says, capitals aside."""
        return re.search(pattern, self.text, re.IGNORECASE | re.DOTALL)

    def written(self, mail: Mail) -> "Ask":
        """The same, wanted by other mail."""
        return replace(self, text=mail.text, whole=mail.text, author=mail.author, kind=mail.kind)

    def about(self, text: str) -> "Ask":
        """The same asker wanting something else."""
        return replace(self, text=text)


Rule = Callable[[Ask], Steps | None]


def quoted(text: str) -> list[str]:
    """What stands in quotes, backticks or a fenced block, in order."""
    return [next(part for part in found.groups() if part is not None) for found in _QUOTED.finditer(text)]


def unquoted(text: str) -> str:
    """The text without what stands in quotes."""
    return _QUOTED.sub(" ", text)


def paths(text: str) -> list[str]:
    """What looks like a path, quoted or not, in order and once each."""
    found = (match[0].rstrip(".") for match in _PATH.finditer(text))
    return list(dict.fromkeys(path for path in found if path and not _NO_PATH.match(path)))


class Mask:
    """A text in which what stands verbatim is out of the way, so that it can be cut: `text` holds marks for it."""

    def __init__(self, text: str) -> None:
        self._held: list[str] = []
        masked = _VERBATIM.sub(self._hold, text.replace("\0", ""))
        self.text = _GAPS.sub(r"\1", masked)

    def _hold(self, found: re.Match[str]) -> str:
        self._held.append(found[0])
        return f"\0{len(self._held) - 1}\0"

    def back(self, piece: str) -> str:
        """A piece of `text` as it was written."""
        return re.sub(r"\0(\d+)\0", lambda found: self._held[int(found[1])], piece)


def clauses(text: str) -> list[str]:
    """Cut a text into pieces of work: at line ends, sentences' ends, `;` and "then", never inside quotes."""
    mask = Mask(text)
    pieces = [part for sentence in _sentences(mask.text) for part in _cut_at_and(sentence)]
    restored = (mask.back(piece) for piece in pieces)
    return [piece.strip(" ,") for piece in restored if piece.strip(" ,.-*")]


def _sentences(text: str) -> list[str]:
    return re.split(r"\n+|;\s+|(?<=[.!?])\s+(?=[A-Z\0])|,?\s*\b(?i:and\s+)?(?i:then)\b[,:]?\s*", text)


def _cut_at_and(sentence: str) -> list[str]:
    """Cut before "and" where another piece of work follows, but not in what somebody is to be told."""
    pieces = re.split(rf",?\s+and\s+(?={_VERBS}\b)", sentence, flags=re.IGNORECASE)
    for place, piece in enumerate(pieces):
        if _TELLS.search(piece):
            return [*pieces[:place], " and ".join(pieces[place:])]
    return pieces


def refused(tool: str, done: Done) -> str:
    """What to say when a tool did not do what it was asked."""
    if done.unavailable:
        return f"I may not use {tool}: it is not among my tools, so I left that undone."
    return f"{tool} was refused: {done.text.strip() or 'no reason given'}"


def bullets(items: list[str], limit: int = 60) -> str:
    """A list, cut where it gets too long to read, saying so."""
    shown = [f"- {item}" for item in items[:limit]]
    rest = len(items) - len(shown)
    return "\n".join([*shown, f"- … and {rest} more"] if rest else shown)


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 file, 2 files, 3 matches, 0 directories."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith(("s", "ch")):
        return f"{number} {noun}es"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"
