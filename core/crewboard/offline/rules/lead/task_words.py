"""Orders about the task board: a new task, and whose it is."""

import re

from crewboard.offline.ask import Mask, quoted, unquoted
from crewboard.offline.rules.lead.cut import FILLER
from crewboard.offline.rules.lead.orders import Assign, Errand, NewTask
from crewboard.offline.rules.lead.words import DETERMINER, NAME, NOUN, TYPE, type_in, type_of

_I = re.IGNORECASE | re.DOTALL
_OWNER = (
    rf"(?P<article>(?:{DETERMINER}|a free|an idle)\s+)?"
    rf"(?:(?:{TYPE}\s+)?{NOUN}\s+(?=(?P<named>{NAME})))?"
    rf"(?P<owner>{TYPE}|{NAME})(?:\s+{NOUN})?"
)
_TASK = re.compile(
    FILLER + r"(?:(?:create|add|make|open|put|file|post|set up)\s+(?:me\s+)?"
    rf"(?:{DETERMINER}\s+|(?:new|simple)\s+)*task\b|task\s*:)(?P<rest>.*)",
    _I,
)
_ON_BOARD = re.compile(FILLER + r"(?:add|put)\s+(?P<rest>.+?)\s+(?:to|on|onto)\s+the\s+(?:task\s+)?board\W*", _I)
_GIVE_TASK = re.compile(
    FILLER + rf"(?:assign|give|hand)\s+(?:{DETERMINER}\s+)*(?:new\s+)?task\s+(?P<rest>[\"“'`\0].*)", _I
)
_TO_OWNER = re.compile(
    r"[\s,;]*(?:\b(?:and|then)\s+)*\b"
    r"(?:(?:assign(?:ed|ing)?|given?|hand(?:ed)?|going)\s+(?:it\s+|this\s+)?(?:over\s+)?to|owned by|to be done by"
    rf"|(?:for|to)(?=\s+(?:(?:an?|the|any)\s+(?:{TYPE}|{NOUN})|{NAME}\s*(?:$|[,.:\0]))))\s+{_OWNER}",
    re.IGNORECASE,
)
_ASSIGN = re.compile(
    FILLER + r"(?:assign|give|hand)\s+(?:it|this|that|them|(?:the|this|that)\s+task)\s+(?:over\s+)?to\s+"
    rf"{_OWNER}\W*",
    _I,
)
_ASSIGN_OLD = re.compile(
    FILLER + r"(?:assign|give|hand)\s+(?:the\s+)?task\s+(?:number\s+)?#?(?P<id>\d{1,9})\s+(?:over\s+)?to\s+"
    rf"(?P<name>{NAME})\W*",
    _I,
)
_DESCRIBED = re.compile(
    r"[\s,;(]*\b(?:with (?:the )?)?(?:description|described as|details?)\b\s*:?\s*(?P<text>.+?)\)?", _I
)
_BLOCKED = re.compile(
    r"[\s,;(]*\b(?:blocked by|after|depend(?:s|ing) on)\s+(?:tasks?\s+)?"
    r"(?P<ids>#?\d{1,9}(?:(?:\s*,\s*|\s+and\s+)#?\d{1,9})*)\)?",
    re.IGNORECASE,
)
_CALLED = re.compile(
    r"[\s,;:-]*(?:(?:on|to|onto)\s+the\s+(?:task\s+)?board\b)?[\s,;:-]*"
    r"(?:(?:called|named|titled|saying|to|for|of|that says)\b)?[\s:,-]*",
    re.IGNORECASE,
)


def parse_task(clause: str) -> NewTask | Assign | Errand | None:
    """Create a task "Write unit tests" and assign it to a test agent."""
    if old := _ASSIGN_OLD.fullmatch(clause):
        return Errand(old["name"].lower(), f"Claim task {int(old['id'])} and do it.")
    if later := _ASSIGN.fullmatch(clause):
        return Assign(*_owner(later))
    mask = Mask(clause)
    asked = _TASK.fullmatch(mask.text) or _GIVE_TASK.fullmatch(mask.text) or _ON_BOARD.fullmatch(mask.text)
    return _new_task(asked["rest"], mask) if asked else None


def _new_task(rest: str, mask: Mask) -> NewTask:
    rest, blocked = _taken(_BLOCKED, rest)
    rest, given = _taken(_TO_OWNER, rest)
    described = _DESCRIBED.fullmatch(rest[place.start() :]) if (place := _DESCRIBED.search(rest)) else None
    rest = rest[: place.start()] if place and described else rest
    owner, kind = _owner(given) if given else ("", "")
    return NewTask(
        subject=_words(mask.back(rest)),
        description=_words(mask.back(described["text"])) if described else "",
        owner=owner,
        kind=kind,
        blocked_by=tuple(int(number) for number in re.findall(r"\d+", blocked["ids"])) if blocked else (),
    )


def _taken(pattern: re.Pattern[str], text: str) -> tuple[str, re.Match[str] | None]:
    found = pattern.search(text)
    return (text[: found.start()] + text[found.end() :], found) if found else (text, None)


def _words(text: str) -> str:
    """What a task is called: what stands in quotes, else the words behind "called", "to" or a colon."""
    marked = quoted(text)
    if marked:
        return marked[0].strip()
    bare = unquoted(_CALLED.sub("", text, count=1)).strip(" .,;:")
    return bare[:1].upper() + bare[1:]


def _owner(given: re.Match[str]) -> tuple[str, str]:
    """A name and a type: "bob" is a name, "a tester" a type, and "tester" may be either."""
    word = given["owner"].lower()
    kind = type_of(word) or type_in(word) or ""
    return ("" if kind and given["article"] and not given["named"] else word, kind)
