"""Who is to be hired: names, types and errands out of one order."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from crewboard.offline.ask import Mask, quoted
from crewboard.offline.rules.lead.cut import FILLER, SOMEBODY
from crewboard.offline.rules.lead.errands import polished, without_plan
from crewboard.offline.rules.lead.orders import Hire
from crewboard.offline.rules.lead.words import (
    CALLED,
    DETERMINER,
    NAME,
    NOUN,
    PERSON,
    TYPE,
    type_for,
    type_in,
    type_of,
)  # fmt: skip

_IN_BACKGROUND = r"\(?\b(?:(?:running|run)\s+)?(?:in|on) (?:the )?background\)?"
_NAMED = r"(?:named|called|by the name(?: of)?|with the name|whose name is)"
_SURE = re.compile(
    FILLER + rf"(?:{_IN_BACKGROUND},?\s+)?{FILLER}(?:(?:spawn|hire|recruit|launch|bring in)\s+)", re.IGNORECASE
)
_LIKELY = re.compile(
    FILLER + rf"(?:{_IN_BACKGROUND},?\s+)?{FILLER}"
    r"(?:(?:create|make|start(?: up)?|add|set up|get|use|run|(?:i|we) (?:need|want))\s+)?"
    rf"(?=(?:background\s+)?{TYPE}\s+{NOUN}\s+{NAME}|(?:(?<=\s){NAME}\s+(?:as\s+an?\s+(?:background\s+)?{TYPE}|\((?:an?\s+)?{TYPE}))|(?:two|three|four|some|an?|another|one|new)\s+(?:[\w-]+\s+){{0,3}}?(?:{NOUN}|{PERSON}))",
    re.IGNORECASE,
)
_SOMEBODY = re.compile(
    FILLER + rf"(?:{_IN_BACKGROUND},?\s+)?(?:(?:have|let|get|ask|tell)\s+|(?=some))"
    rf"(?P<who>{SOMEBODY})(?:\s+{_NAMED}\s+(?P<name>{NAME}))?"
    rf"\s+(?:(?:should|must|to|shall)\s+)?(?P<errand>[a-z].*)",
    re.IGNORECASE | re.DOTALL,
)
_CROWD = re.compile(
    rf"(?:(?:two|three|four|some|the|new|\d+)\s+)*{NOUN}\s*(?:{_NAMED}\b|:|-)?\s*(?={NAME})", re.IGNORECASE
)

_ITEM = re.compile(
    rf"(?P<before>(?:(?:{DETERMINER}|background|foreground|single|{TYPE})(?![\w-])\s*)*)(?:{NOUN}\s*)?"
    rf"(?:,\s*)?(?:{_NAMED}\s+)?(?P<name>{NAME})?"
    rf"(?P<after>(?:\s*[(\[][^)\]\n]{{0,80}}[)\]]|\s+as\s+(?:(?:{DETERMINER}|background)\s+)*{TYPE}(?:\s+{NOUN})?"
    rf"|,?\s+(?:an?|the)\s+{TYPE}(?:\s+{NOUN})?(?!\s+{_NAMED})|\s+(?:of|with)\s+type\s+[\w-]+|\s+{_IN_BACKGROUND}|\s+{PERSON})*)",
    re.IGNORECASE,
)
_NEXT = re.compile(r"\s*,\s*(?:(?:and|plus)\s+)?|(?:\s+|(?<=\s))(?:and|plus|&)\s+", re.IGNORECASE)
_NEW_ITEM = re.compile(
    rf"(?:an?|another)\s+(?:background\s+)?(?:{TYPE}|{NOUN})"
    rf"|{NAME}\s*(?:\((?:an?\s+)?{TYPE}|as\s+an?\s+{TYPE}|,?\s+an?\s+{TYPE}|to\s+[a-z])",
    re.IGNORECASE,
)
_LATER_NAMED = re.compile(
    rf"[,\s]+(?:and\s+)?(?:named|called|call (?:it|him|her)|name (?:it|him|her))\s+(?P<name>{NAME})", re.IGNORECASE
)
_ERRAND = re.compile(
    r"[\s,:-]*(?:(?:and\s+)?(?:with|given?|on|as)\s+(?:(?:the|a|an|this|following|its)\s+)*"
    r"(?:prompt|instructions?|assignment|orders?|task|job)\b\s*(?:of\b|to\b|is\b|:|-)?"
    r"|(?:and\s+)?(?:have|let|get)\s+(?:it|him|her|them)\b(?:\s+to\b)?|so (?:that )?(?:it|he|she|they) (?:can|could)\b"
    r"|(?:who|that|which)\s+(?:should|must|will|shall|can|is to|has to)\b"
    r"|(?:to|for|that|who|which|with|and)\b|:)?\s*",
    re.IGNORECASE,
)
_IN_FOREGROUND = r"\b(?:in the foreground|and wait (?:for|until)\b.*|and (?:report|tell me|give me|show me)\b.*)"


@dataclass(frozen=True)
class _Item:
    found: re.Match[str]
    rest: str = ""

    @property
    def name(self) -> str:
        return (self.found["name"] or "").lower()


def parse_hires(clause: str) -> list[Hire]:
    """Everybody whom an order wants hired; nobody if it is about something else."""
    mask = Mask(_without_quoted_names(clause))
    begin = _SURE.match(mask.text) or _LIKELY.match(mask.text)
    if begin is None:
        return _anybody(mask)
    opening = re.search(_IN_BACKGROUND, begin[0], re.IGNORECASE) is not None
    text = mask.text[begin.end() :]
    crowd = _CROWD.match(text)
    items = list(_items(text[crowd.end() :] if crowd else text))
    hires = [_hire(item, mask, background=opening) for item in items]
    return _distinct(_shared(hires, items))


def _without_quoted_names(clause: str) -> str:
    """Names are names in quotes, too."""
    before = r"(\b(?:named|called|name|agent|spawn|hire|and|,|:|as)\s*)"
    quoted_name = r"[\"“'`]([a-z][\w-]{0,31})[\"”'`]"
    after = r"(?=\s*$|\s*[(,;.]|\s+(?:to|for|as|and|in|who|that|which|with|of)\b)"
    return re.sub(before + quoted_name + after, r"\1\2", clause, flags=re.IGNORECASE)


def _anybody(mask: Mask) -> list[Hire]:
    """Have somebody run the tests."""
    asked = _SOMEBODY.fullmatch(mask.text)
    if asked is None:
        return []
    errand = mask.back(asked["errand"])
    kind = type_in(asked["who"]) or type_for(errand)
    task, plan = without_plan(errand)
    name = (asked["name"] or CALLED[kind]).lower()
    background = re.search(_IN_BACKGROUND, asked[0], re.IGNORECASE) is not None
    task = re.sub(_IN_BACKGROUND, "", task, flags=re.IGNORECASE)
    anybody = not asked["name"] and "else" not in asked["who"].lower()
    return [Hire(name, kind, polished(task, name), background, plan, anybody)]


def _items(text: str) -> Iterator[_Item]:
    """Cut into people: at "," and "and", and where the errand of one ends because the next is named."""
    place = 0
    while found := _ITEM.match(text, place):
        if not found[0].strip(" ,"):
            return
        place = _end_of_errand(text, found.end())
        yield _Item(found, text[found.end() : place])
        joint = _NEXT.match(text, place)
        if joint is None:
            return
        place = joint.end()


def _end_of_errand(text: str, place: int) -> int:
    joint = _NEXT.match(text, place)
    if joint is not None and (item := _ITEM.match(text, joint.end())) and (item["name"] or item["before"]):
        return place
    joints = (joint for joint in _NEXT.finditer(text, place) if _NEW_ITEM.match(text, joint.end()))
    return next((joint.start() for joint in joints), len(text))


def _hire(item: _Item, mask: Mask, *, background: bool) -> Hire:
    rest, name = item.rest, item.name
    later = _LATER_NAMED.search(rest) if not name else None
    if later:
        name, rest = later["name"].lower(), rest[: later.start()] + rest[later.end() :]
    about = f"{item.found['before']} {item.found['after']}"
    background = background or re.search(r"\bbackground\b", about, re.IGNORECASE) is not None
    rest, asides = re.subn(_IN_BACKGROUND, "", rest, flags=re.IGNORECASE)
    rest = re.sub(_IN_FOREGROUND, "", rest, flags=re.IGNORECASE | re.DOTALL)
    errand, plan = without_plan(mask.back(rest))
    plan = plan or re.search(r"\bplan\b", item.found["after"], re.IGNORECASE) is not None
    errand = _errand(errand)
    kind = _own_kind(item, name) or ("code" if plan else type_for(errand))
    name = name or _person(item.found["before"]) or CALLED.get(kind, kind)
    return Hire(name, kind, polished(errand, name) if errand else "", background or asides > 0, plan)


def _errand(rest: str) -> str:
    told = _ERRAND.match(rest)
    text = (rest[told.end() :] if told else rest).strip(" ,;")
    text = text if text.strip(".!?") else ""
    marked = quoted(text)
    about_words = told is not None and re.search(r"prompt|instruction|order|:", told[0], re.IGNORECASE)
    return marked[0] if marked and about_words and text.strip(".")[:1] in "\"“'`" else text


def _kind(item: _Item) -> str | None:
    named = re.search(r"\btype\s+([\w-]+)", item.found["after"], re.IGNORECASE)
    if named:
        return type_of(named[1]) or named[1].lower()
    return type_in(item.found["after"]) or type_in(item.found["before"])


def _own_kind(item: _Item, name: str) -> str | None:
    return _kind(item) or type_in(re.sub("[-_]", " ", name))


def _person(words: str) -> str:
    found = re.search(PERSON, words, re.IGNORECASE)
    return found[0].lower() if found else ""


def _shared(hires: list[Hire], items: list[_Item]) -> list[Hire]:
    """What is said at the end is said of all: "ann and ben to run the tests", "ann and ben as coders"."""
    if len(hires) < 2 or any(hire.errand for hire in hires[:-1]) or items[-1].found["before"]:  # noqa: PLR2004  a pair
        return hires
    last = hires[-1]
    typed = _kind(items[-1])
    plural = re.search(rf"(?<![\w-]){TYPE}", items[-1].found["after"], re.IGNORECASE)
    shared = typed if typed and plural and plural[0].lower().endswith("s") else None
    return [
        replace(
            hire,
            errand=last.errand if hire.name not in last.errand.lower() else "",
            kind=_own_kind(item, hire.name) or shared or (type_for(last.errand) if last.errand else hire.kind),
            background=hire.background or last.background,
        )
        for hire, item in zip(hires, items, strict=True)
    ]


def _distinct(hires: list[Hire]) -> list[Hire]:
    """The same name is given once only: the next who has none of their own is called explorer-2."""
    taken: list[str] = []
    for hire in hires:
        number = taken.count(hire.name) + 1
        taken.append(hire.name)
        hires[len(taken) - 1] = replace(hire, name=f"{hire.name}-{number}") if number > 1 else hire
    return hires
