"""Orders about plans: whose is approved or rejected, and why."""

import re

from crewboard.offline.ask import Mask, quoted
from crewboard.offline.rules.lead.cut import FILLER
from crewboard.offline.rules.lead.orders import Review
from crewboard.offline.rules.lead.words import NAME

_DECIDES = r"(?:approve|accept|reject|decline|deny|turn down|send back)"
_REVIEW = re.compile(
    FILLER + rf"(?P<verb>(?:have a look at|look at|review|check|read|{_DECIDES})(?:\s+and\s+{_DECIDES})?)\b"
    r"(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_ABOUT_PLAN = re.compile(r"\bplans?\b(?!\.\w)|\bplan-\w+|^\s*(?:it|them|this|that)\b", re.IGNORECASE)
_REQUEST = re.compile(r"\bplan-[0-9a-z]{4,}\b")
_WHOSE = re.compile(
    rf"(?P<a>{NAME})['’]s\s+(?:\w+\s+)?plan|\bplans?\s+(?:of|by|from)\s+(?P<b>{NAME})"
    rf"|\bplan\s+(?:(?:that|which)\s+)?(?P<c>{NAME})\s+(?:has\s+)?(?:submitted|handed in|made|sent|wrote|proposed)\b",
    re.IGNORECASE,
)
_BARE_NAME = re.compile(rf"\s*(?P<name>{NAME})\s*[.!]?\s*(?:[:,].*)?", re.IGNORECASE | re.DOTALL)
_WHY = re.compile(
    r"[\s,;]*(?:\b(?:with|and (?:give|add|leave|send))\s+(?:(?:the|a|this|him|her|it|them|following)\s+)*"
    r"(?:feedback|comment|note|remark|reason|words?|message)\b\s*(?:that\b|saying\b)?|\bbecause\b|\bsaying\b|\bsince\b"
    r"|\b(?:telling|and tell|and ask|asking)\s+(?:him|her|it|them)\b(?:\s+(?:that|to)\b)?|:)\s*[:,]?\s*(?P<why>.+)",
    re.IGNORECASE | re.DOTALL,
)


def parse_review(clause: str) -> Review | None:
    """Approve bob's plan. Review and reject it: say where the file goes."""
    asked = _REVIEW.fullmatch(clause)
    if asked is None:
        return None
    decides = re.search(_DECIDES, clause, re.IGNORECASE) is not None
    mask = Mask(asked["rest"])
    why = _WHY.search(mask.text)
    about = mask.back(mask.text[: why.start()] if why else mask.text)
    bare = _BARE_NAME.fullmatch(about) if decides else None
    if not _ABOUT_PLAN.search(about) and not bare and about.strip(" ."):
        return None
    if not decides and not _ABOUT_PLAN.search(about):
        return None
    request, whose = _REQUEST.search(about), _WHOSE.search(about)
    name = next((part for part in whose.groups() if part), "") if whose else bare["name"] if bare else ""
    return Review(
        name="" if request else name.lower(),
        request_id=request[0] if request else "",
        decision=_decision(f"{asked['verb']} {about}"),
        feedback=_feedback(mask.back(why["why"])) if why else "",
        every=re.search(r"\b(?:plans|them|every|all)\b", about, re.IGNORECASE) is not None,
    )


def _decision(words: str) -> bool | None:
    """What was decided; None where that was left to judgement."""
    yes = re.search(r"\b(?:approve|accept)", words, re.IGNORECASE)
    no = re.search(r"\b(?:reject|decline|deny|turn down|send back)", words, re.IGNORECASE)
    left_open = re.search(r"\b(?:if|unless|whether|or)\b", words, re.IGNORECASE)
    return None if left_open or bool(yes) == bool(no) else bool(yes)


def _feedback(why: str) -> str:
    marked = quoted(why)
    return marked[0] if marked and why.strip()[:1] in "\"“'`" else why.strip()
