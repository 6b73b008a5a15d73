"""Orders that somebody by name do something: have alice send bob a message, ask reviewer for a summary."""

import re

from crewboard.offline.rules.lead.cut import DEEDS, FILLER, MODAL
from crewboard.offline.rules.lead.errands import asks_summary, polished, without_plan
from crewboard.offline.rules.lead.orders import Errand
from crewboard.offline.rules.lead.words import NAME, imperative

_WHO = rf"(?P<name>{NAME})"
_JOB = r"(?:an?|the|this)\s+.*\b(?:task|job|work|assignment)\b"
_REPORT = r"(?:\w+\s+)?(?:summary|report|status)\b[^,;]*?"
_ASKING = r"(?:asking|requesting|to ask)\s+(?:(?:it|him|her|them)\s+)?(?P<work>(?:for|to|what|how)\b.*)"
_ORDERS = r"(?:ask|tell|instruct|order|request|want|direct|message|write to|remind)"
_THE_ONE = rf"(?:the\s+)?{_WHO}"
_FORMS = (
    rf"(?:request|require|demand|get|ask for|want)\s+(?:a|the)\s+(?P<plan>plan)\s+(?:from|of|by)\s+{_WHO}(?P<work>.*)",
    rf"(?:(?:get|make)|have(?:\s+the)?)\s+{_WHO}\s+(?:to\s+)?(?P<work>[a-z].*)",
    rf"let\s+{_WHO}\s+(?!know\b)(?P<work>[a-z].*)",
    rf"{_ORDERS}\s+{_THE_ONE}\s+(?:agent\s+)?(?P<work>to\s+.*)",
    rf"(?:ask|message|ping|contact|write to|mail)\s+{_THE_ONE}\s+(?P<work>(?:for|about|what|how)\b.*)",
    rf"(?:send|write)\s+(?:a\s+)?(?:message|mail)\s+to\s+{_THE_ONE}\s+{_ASKING}",
    rf"(?:send|write)\s+{_WHO}\s+a\s+(?:message|mail)\s+{_ASKING}",
    rf"(?:request|get|ask for)\s+(?:a|the|another)\s+(?P<work>{_REPORT})\s+(?:from|of)\s+{_THE_ONE}\W*",
    rf"{_WHO}\s+(?P<work>(?:needs?|requires?)\s+an?\s+(?:approved\s+)?plan\b.+)",
    rf"{_WHO}\s+{MODAL}\s+(?P<work>.+)",
    rf"(?:give|hand|assign)\s+{_WHO}\s+(?P<work>{_JOB}.*)",
    rf"(?:give|hand|assign)\s+(?P<work>{_JOB}.*?)\s+to\s+{_WHO}\W*",
    rf"{_WHO}\s+(?P<work>{DEEDS}\s.+|with\s+(?:an?|the)\s+.*\bplan\b.*)",
)
_READ = tuple(re.compile(FILLER + f"(?:{form})", re.IGNORECASE | re.DOTALL) for form in _FORMS)


def parse_errand(clause: str) -> Errand | None:
    """Have alice send bob a message."""
    asked = next((found for form in _READ if (found := form.fullmatch(clause))), None)
    if asked is None:
        return None
    name = asked["name"].lower()
    if asked.groupdict().get("plan"):
        return Errand(name, imperative(re.sub(r"^(?:for|to)\s+", "", asked["work"].strip(" ,."))), plan=True)
    task, plan = without_plan(asked["work"])
    task = re.sub(r"^(?:to|with)\s+", "", task.strip(), flags=re.IGNORECASE)
    if plan:
        return Errand(name, imperative(task), plan=True)
    if re.match(r"(?:about|what|how|for)\b", task, re.IGNORECASE) and not asks_summary(task):
        return Errand(name, f"{task[:1].upper()}{task[1:]}")
    return Errand(name, polished(task, name))
