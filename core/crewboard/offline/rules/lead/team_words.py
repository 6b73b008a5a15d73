"""Orders about the team as a whole: its name, who is on it, what everybody is told, who is to leave, its end."""

import re

from crewboard.offline.ask import quoted
from crewboard.offline.rules.lead.cut import FILLER
from crewboard.offline.rules.lead.orders import Broadcast, CreateTeam, DeleteTeam, ListTeam, ReadInbox, Shutdown
from crewboard.offline.rules.lead.words import NAME, NOUN

_I = re.IGNORECASE | re.DOTALL
_TEAM = r"(?:team|crew)"
_WHOSE = r"(?:the|this|our|my|your|whole|entire)"
_EVERYBODY = (
    r"(?:everyone|everybody"
    r"|all(?:\s+of\s+(?:them|the\s+(?:agents|team)))?(?:\s+(?:the\s+)?(?:agents|teammates|members|others))?"
    rf"|every\s+{NOUN}|(?:the\s+)?(?:whole\s+|entire\s+)?{_TEAM}|the others)"
)

_CREATE_TEAM = re.compile(
    FILLER + r"(?:(?:create|make|set up|start|form|build|found|open)\s+(?:(?:an?|the|our|us|me|new)\s+)*"
    rf"(?P<word>[\w-]+\s+)??{_TEAM}|(?:call|name)\s+(?:the|this|our|your)\s+{_TEAM})\b(?!\s+(?:mate|task))(?P<rest>.*)",
    _I,
)
_TEAM_NAME = re.compile(
    r"\b(?:named|called|by the name(?: of)?|with the name|name:?)\s+[\"“'`]?(?P<a>[\w-]+)[\"”'`]?"
    r"|^\W*[\"“'`](?P<b>[^\"”'`]+)[\"”'`]"
    r"|^\s+(?!(?:for|to|that|which|with|who|whose|and|named|called)\b)(?P<c>[\w-]+)",
    re.IGNORECASE,
)
_TEAM_PURPOSE = re.compile(
    r"(?:(?:whose|with (?:the|a)) (?:purpose|goal|aim|job|description)\s*(?:is|of|:)?(?:\s+to\b)?|description\s*:?"
    r"|described as|(?:for|to|that|which|who)\b)\s*:?\s*(?P<text>.+?)[\s.)]*",
    _I,
)
_LIST_TEAM = re.compile(
    FILLER + r"(?:(?:(?:list|show|print|display|see|check|view|give)\b(?:\s+(?:me|us))?"
    r"|who(?:['’]?s| is| are)|what(?:['’]?s| is))\b"
    rf"[^,;\n]{{0,30}}?\b(?:{_TEAM}|teammates|team ?members|members|roster|agents|workers)\b(?!['’]s)"
    r"|what(?:['’]s| is| are)\s+(?:everyone|everybody|they|the others)\s+(?:doing|up to)\b"
    r"|team (?:list|status|overview)|who\b[^,;\n]{0,20}\b(?:doing what|there|here|on board)\b).{0,80}",
    _I,
)
_INBOX = re.compile(
    FILLER + r"(?:(?:check|read|look (?:at|in|into)|open|see|show|empty|list|go through)\b[^,;\n]{0,30}"
    r"\b(?:inbox|mailbox|mail|messages)\b|(?:is there|any|do you have)\b[^,;\n]{0,20}\bmail\b).{0,80}",
    _I,
)
_BROADCAST = re.compile(
    FILLER + r"(?:(?:broadcast|announce)\b(?:\s+"
    rf"(?:(?:to\s+)?{_EVERYBODY}(?![\w-])|that|saying|this|the following|(?:a|the) message|message)\b)*"
    r"|(?:tell|message|notify|inform|send|write|mail|let|ask)\s+(?:(?:a|the|this)\s+(?:message|mail|note)\s+)?"
    rf"(?:to\s+)?{_EVERYBODY}(?![\w-]|['’])(?:\s+(?:know|that|saying|a message|the message|to)\b)*)"
    r"\s*[:,]?\s*(?P<text>.+)",
    _I,
)
_SEND_ALL = re.compile(
    FILLER + r"(?:broadcast|send|write|announce|say)\s+(?:(?:a|the|this)\s+(?:message|mail|note)\s+)?"
    rf"(?P<text>.+?)\s+to\s+{_EVERYBODY}\W*",
    _I,
)
_DELETE_TEAM = re.compile(
    FILLER
    + r"(?:(?:delete|disband|dissolve|remove|close|clean up|tear(?: down)?|end|shut down|destroy|break up|dismiss)\s+"
    rf"(?:{_WHOSE}\s+)*{_TEAM}|delete\s+team)\b(?!['’]s)"
    r"(?:\s+[\"“'`]?[\w-]+[\"”'`]?)?\W*(?:(?:now|please|completely|again|down)\W*)*",
    _I,
)
_ALL_OTHERS = rf"{_EVERYBODY}(?:\s+else)?|the rest|all others|each of them"
_WHO = rf"{NAME}(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+|\s+&\s+){NAME})*|{_ALL_OTHERS}"
_SHUTDOWN = re.compile(
    FILLER + r"(?:(?:request|ask for|demand)\s+(?:that\s+)?(?:the\s+|a\s+)?"
    rf"(?:shut ?down\s+(?:of|from|for)\s+(?P<a>{_WHO})|(?P<b>{NAME})['’]s?\s+shut ?down|(?P<c>{NAME})\s+shuts?\s*down)"
    rf"|(?:ask|tell|have|let|get|instruct|order|request|want)\s+(?P<d>{_WHO})\s+(?:to\s+)?"
    r"(?:shut\s*down|stop|leave|end|quit|exit|go home)"
    rf"|(?:shut\s*down|stop|terminate|dismiss|retire|end)\s+(?P<e>{_WHO})"
    rf"|send\s+(?P<h>{NAME})\s+a\s+shut ?down(?:\s+request)?"
    rf"|shut\s+(?P<f>{_WHO})\s+down|send\s+(?P<g>{NAME})\s+home)\W*(?:(?:now|please|too|as well)\W*)*",
    _I,
)


def parse_whole(clause: str) -> DeleteTeam | ReadInbox | ListTeam | None:
    """List the team. Check the inbox. Delete the team."""
    if _DELETE_TEAM.fullmatch(clause):
        return DeleteTeam()
    if _INBOX.fullmatch(clause):
        return ReadInbox()
    return ListTeam() if _LIST_TEAM.fullmatch(clause) else None


def parse_create_team(clause: str) -> CreateTeam | None:
    """Create a team called "demo" for exploring this project."""
    asked = _CREATE_TEAM.fullmatch(clause)
    if asked is None:
        return None
    rest = asked["rest"]
    named = _TEAM_NAME.search(rest)
    name = next(part for part in named.groups() if part) if named else (asked["word"] or "").strip()
    rest = rest[: named.start()] + rest[named.end() :] if named else rest
    why = _TEAM_PURPOSE.search(rest)
    told = _TEAM_PURPOSE.fullmatch(rest[why.start() :]) if why else None
    words = told["text"].strip() if told else ""
    return CreateTeam(name.lower(), next(iter(quoted(words)), words))


def parse_broadcast(clause: str) -> Broadcast | None:
    """Broadcast "phase 1 complete". Tell everybody that it is late."""
    asked = _BROADCAST.fullmatch(clause) or _SEND_ALL.fullmatch(clause)
    if asked is None:
        return None
    marked = quoted(asked["text"])
    return Broadcast(marked[0] if marked else asked["text"].strip(" ,:"))


def parse_shutdown(clause: str) -> Shutdown | None:
    """Request alice's shutdown. Shut ann and ben down."""
    asked = _SHUTDOWN.fullmatch(clause)
    if asked is None:
        return None
    who = next(part for part in asked.groups() if part)
    if re.fullmatch(_ALL_OTHERS, who, re.IGNORECASE):
        return Shutdown(())
    return Shutdown(tuple(name.lower() for name in re.findall(NAME, who, re.IGNORECASE)))
