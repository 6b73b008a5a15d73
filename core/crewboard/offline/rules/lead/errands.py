"""What an agent is to do, in words that it can work by: plain orders, with every message written out."""

import re

from crewboard.offline.ask import paths, quoted
from crewboard.offline.rules.lead.words import NAME, imperative, in_quotes, is_order

SUMMARY = "Give me a summary of what you did."

_MESSAGE = (
    r"(?:(?:a|an|another|some|one|the)\s+)?(?:(?:short|quick|friendly|test|first)\s+)*"
    r"(?:message|mail|note|greeting|word|hello)"
)
_NOTHING_SAID = re.compile(
    rf"(?:(?:send|write|give|drop)\s+(?:to\s+)?(?P<a>{NAME})\s+{_MESSAGE}"
    rf"|(?:send|write)\s+{_MESSAGE}\s+to\s+(?P<b>{NAME})"
    rf"|(?:message|greet|ping|contact|mail|say (?:hello|hi) to)\s+(?P<c>{NAME}))\W*",
    re.IGNORECASE,
)
_SAYS = r"(?:saying|that says|that reads|reading|with the (?:text|content|words?|message)|containing|:)\s*:?"
_SAID = re.compile(
    rf"(?:send|write|tell|message|give)\s+"
    rf"(?:(?:to\s+)?(?P<a>{NAME})(?:\s+{_MESSAGE})?|{_MESSAGE}\s+to\s+(?P<b>{NAME}))\s*{_SAYS}\s*(?P<text>.+)",
    re.IGNORECASE | re.DOTALL,
)
_ASKS_SUMMARY = re.compile(
    r"(?:(?:for|(?:to )?(?:give|send|write|provide)(?: (?:me|us|you))?|about|on)\s+)?"
    r"(?:(?:a|the|its|his|her|their|your|another)\s+)?(?:(?:short|brief|quick|final)\s+)?"
    r"(?:summary|status(?: report)?|report|results?|findings|progress(?: report)?|update)\b.*"
    r"|(?:to\s+)?(?:summari[sz]e|report)(?:\s+(?:back|on)\b.*|\s+(?:its|his|her|their|the)\s+(?:work|findings|results?)\b.*)?"
    r"|what\s+(?:it|he|she|they)\s.*|how far .*",
    re.IGNORECASE | re.DOTALL,
)

_A_PLAN = r"(?:a|an|the|his|her|its|their)\s+(?:\w+\s+)?plan\b(?!\.\w)"
_PLAN = re.compile(
    r"(?:\b(?:first|must|should|shall|(?:has|have|needs?|is) to|will|and|he|she|it|they|who|which|that|but)\s+)*"
    r"(?:\b(?:submit|hand|make|write|propose|present|prepare|draft|create|provide|deliver)(?:s|t?ting|ing)?\s+"
    rf"(?:in\s+)?{_A_PLAN}"
    rf"|\b(?:for|requires?|requiring|needs?|needing)\s+{_A_PLAN}"
    r"|\b(?:with\s+)?(?:a\s+)?plan\b(?:[\s-]+(?:approval|is|mode|gate|required|first|needed))+|\bplan[- ]gated\b)"
    r"(?:\s+(?:first|beforehand|approval|approved|for (?:approval|review))\b)*",
    re.IGNORECASE,
)
_BEFORE_ALL = re.compile(
    r"\s+before (?:(?:he|she|it|they) (?:do|start|begin|write|change|touch|run)(?:e?s)?|doing|starting)\b[^:;]*",
    re.IGNORECASE,
)
_JOINS = re.compile(
    r"^[\s,;:.-]*(?:(?:before|for|to|on|how to|that|which|and|then|of|about|he|she|it|they|with|starting|working on|"
    r"doing (?:it|so|anything))\b[\s,:]*)*",
    re.IGNORECASE,
)


def polished(errand: str, by: str) -> str:
    """An errand for the agent `by` as an order to it."""
    text = re.sub(r"(?<=[\w)\"”'`])\.$", "", errand.strip(" ,;"))
    if asks_summary(text):
        return SUMMARY
    ordered = imperative(text)
    if found := _NOTHING_SAID.fullmatch(ordered):
        return f"Send {_to(found)} the message {in_quotes(f'{by} says hello.')}"
    if found := _SAID.fullmatch(ordered):
        said = quoted(found["text"])
        return f"Send {_to(found)} the message {in_quotes(said[0] if said else found['text'].strip())}"
    return ordered


def _to(found: re.Match[str]) -> str:
    return next(name for key, name in found.groupdict().items() if key != "text" and name).lower()


def asks_summary(text: str) -> bool:
    """Whether it asks for a report of what was done, and of nothing else."""
    return _ASKS_SUMMARY.fullmatch(text.strip(" .?!")) is not None and not paths(text)


def without_plan(text: str) -> tuple[str, bool]:
    """What is to be done apart from handing in a plan first, and whether a plan was spoken of."""
    found = _PLAN.search(text)
    if found is None:
        return text, False
    before, after = text[: found.start()].strip(" ,;:."), text[found.end() :]
    after = _BEFORE_ALL.sub("", after)
    rest = _JOINS.sub("", after).strip(" ,;.")
    return " ".join(part for part in (before, rest) if part), True


def plan_order(task: str) -> str:
    """The order to hand in a plan for a task, and to do it then."""
    task = imperative(_JOINS.sub("", task).strip(" ,;."))
    if not task:
        return "Submit a plan for your work."
    small = task[:1].lower() + task[1:]
    return f"Submit a plan to {small}." if is_order(small) else f"Submit a plan for {small}."
