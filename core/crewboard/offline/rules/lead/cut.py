"""Cutting what the operator says into orders: between sentences, at "then", and where "," or "and" begins another."""

import re
from collections.abc import Iterator

from crewboard.offline.ask import Mask
from crewboard.offline.rules.lead.words import DETERMINER, NAME, NOUN, PERSON, TYPE

FILLER = (
    r"(?:(?:please|kindly|gracefully|politely|"
    r"now|also|finally|next|first|lastly|just|so|ok|okay|but|and|then|after that|afterwards|"
    r"go ahead and|(?:can|could|would|will) you|you (?:should|must)|(?:i|we)(?:['’]d| would) like you to|"
    r"(?:i|we) (?:want|need) you to|let['’]?s|when (?:that|this|it) is done)\b[,:]?\s+)*"
)
"""Words before an order that order nothing."""

SOMEBODY = rf"(?:(?:somebody|someone|anybody|anyone)(?:\s+else)?|{DETERMINER}\s+(?:{TYPE}(?:\s+{NOUN})?|{NOUN}))"
MODAL = r"(?:should|must|shall|has to|have to|needs? to|is to|ought to|will)"
DEEDS = r"(?:submits?|hands? in|sends?|presents?|proposes?|makes?|writes?|messages|tells|greets|prepares?|drafts?)"

_WHOSE = r"(?:the|this|our|my|your|whole|entire|\s)*"
_MADE = rf"(?:{DETERMINER}\s+|[\w-]+\s+){{0,4}}?(?:team|task|{NOUN}|{PERSON})"

_LEADS = (
    r"(?:spawn|hire|recruit|launch|bring in)\b",
    rf"(?:create|make|start|add|set up|open|put|form|call|name)\s+{_MADE}",
    rf"(?:an?|another)\s+(?:[\w-]+\s+){{0,2}}?{NOUN}",
    rf"(?:have|let|get)\s+(?:{NAME}|{SOMEBODY})\s+[a-z]+",
    rf"(?:ask|tell)\s+{SOMEBODY}\s+to\s",
    r"broadcast\b|announce\b",
    rf"(?:list|show|who|print|display|see)\b[^,;.\n]{{0,30}}\b(?:team|crew|teammates|members|roster|{NOUN})\b",
    r"(?:check|read|look|open|see|show|empty)\b[^,;.\n]{0,30}\b(?:inbox|mailbox|mail)\b",
    r"(?:request|ask for|demand|require)\b[^,;.\n]{0,40}\b(?:shut ?down|plan)\b",
    rf"(?:shut\s*down|stop|terminate|dismiss|retire|end)\s+(?:{NAME}|all|every\w*|the (?:team|crew|others|rest))\b",
    rf"(?:delete|disband|dissolve|remove|close|tear down|end|shut down)\s+{_WHOSE}(?:team|crew)\b",
    r"(?:approve|reject|accept|decline|deny|turn down)\b",
    r"review\s+and\s+(?:approve|accept|reject|decline)\b",
    rf"review\s+(?:(?:{NAME}(?:['’]s)?|the|his|her|its|their)\s+)?(?:plans?|it)\b",
    r"(?:assign|give|hand)\b[^,;.\n]{0,40}\b(?:to|task|job|work)\b",
    rf"(?:{NAME}|he|she|it|they)\s+(?:{MODAL}|{DEEDS})\s",
    rf"{NAME}\s+with\s+(?:an?|the)\s+[^,;.\n]{{0,60}}\bplan\b",
    r"(?:somebody|someone)(?:\s+else)?\s+[a-z]+",
    r"(?:report|wait|let me know|(?:tell|give|show|send|inform|notify) (?:me|us))\b",
)
"""How an order begins that only a lead can be given."""

_TALKS = r"(?:tell|ask|message|notify|inform|instruct|send|mail|ping|write to)\s"
_WORKS = (
    r"(?:run|re-?run|execute|read|search|grep|list|find|summari[sz]e|explore|survey|edit|replace|submit|"
    r"(?:create|write|make|save) (?:[\w-]+ ){0,3}(?:file|\S+\.\w{1,4}\b))\b"
)

_LEAD_HEAD = re.compile(FILLER + rf"(?:{'|'.join(_LEADS)})", re.IGNORECASE)
_TALK_HEAD = re.compile(FILLER + _TALKS, re.IGNORECASE)
_WORK_HEAD = re.compile(FILLER + _WORKS, re.IGNORECASE)

_ENDS = re.compile(
    r"\n+|\s*;\s*|(?<=[.!?])\s+|(?<=\0)\.?\s+(?=[A-Z])|\s+(?=\(?\d{1,2}[.)]\s)"
    r"|,?\s*\b(?i:and\s+)?(?i:then)\b[,:]?\s*"
    r"|,\s*(?i:(?:and\s+)?(?:next|finally|lastly|afterwards|after that|after which))\b,?\s*"
)
_JOINTS = re.compile(r"\s*,\s*(?:(?:and|but|also|plus)\s+)*|\s+(?:(?:and|but|plus|&)\s+)+", re.IGNORECASE)

_SPEAKS = re.compile(
    FILLER + rf"(?:{_TALKS}|(?:broadcast|announce|reject|decline|deny)\b|(?:have|let|get)\s+\w|(?:request|ask for)\b|"
    rf"(?:{NAME}|somebody|someone|he|she|it|they)\s+(?:{MODAL}|{DEEDS}|else)\b)",
    re.IGNORECASE,
)
_HIRES = re.compile(FILLER + rf"(?:spawn|hire|recruit|launch|bring in|use|(?:\w+\s+)?{_MADE})", re.IGNORECASE)
_PURPOSE = re.compile(r"\b(?:to|that|who|which|for|with)\s+\w|:", re.IGNORECASE)
_LIST_MARK = re.compile(
    r"^\s*(?:[-*•]|\(?\d{1,2}[.)])\s+|^(?:do the following|the following|as follows)\s*:\s*", re.IGNORECASE
)
_PERSON_MEANT = re.compile(r"(?:him|her)\b", re.IGNORECASE)
_OPENING = re.compile(r"^\s*in the background\s*$", re.IGNORECASE)


def cut(text: str) -> list[str]:
    """Cut a text into orders, in their order; what stands in quotes is never cut."""
    mask = Mask(text)
    sentences = (piece for piece in _ENDS.split(mask.text) if piece and piece.strip())
    pieces = (part for sentence in sentences for part in _cut_sentence(sentence))
    bare = (mask.back(_LIST_MARK.sub("", piece)).strip(" ,;\t") for piece in pieces)
    return [piece for piece in bare if re.search(r"[^\W\d]", piece)]


def _cut_sentence(sentence: str) -> Iterator[str]:
    sentence = _LIST_MARK.sub("", sentence)
    start = 0
    for joint in _JOINTS.finditer(sentence):
        piece = sentence[start : joint.start()]
        if piece.strip() and _begins_another(piece, joint[0], sentence, joint.end()):
            yield piece
            start = joint.end()
    yield sentence[start:]


def _begins_another(piece: str, joint: str, sentence: str, place: int) -> bool:
    """Whether an order of its own begins at `place`, and no part of what somebody else is to do or to be told."""
    if _OPENING.match(piece):
        return False
    if _LEAD_HEAD.match(sentence, place):
        return not _only_review(piece)
    speaks = _SPEAKS.match(piece) is not None
    busy = speaks or (_HIRES.match(piece) is not None and _PURPOSE.search(piece) is not None)
    if talks := _TALK_HEAD.match(sentence, place):
        return not busy or "," in joint or _PERSON_MEANT.match(sentence, talks.end()) is not None
    return not busy and _LEAD_HEAD.match(piece) is not None and _WORK_HEAD.match(sentence, place) is not None


def _only_review(piece: str) -> bool:
    """Whether the piece is "review" alone, as in "review and approve it"."""
    return re.fullmatch(FILLER + r"(?:have a look|look|review|check)", piece.strip(), re.IGNORECASE) is not None
