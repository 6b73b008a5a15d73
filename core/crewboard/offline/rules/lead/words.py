"""The words in which people speak of agents: types, names, and verbs in all their forms."""

import re

_TYPES = {
    "explore": "explore explorer exploring scout researcher analyst surveyor",
    "plan": "plan planner planning architect designer",
    "code": "code coder coding developer dev programmer engineer implementer",
    "test": "test tester testing qa",
}
TYPE_OF = {word: kind for kind, words in _TYPES.items() for word in words.split()}
"""Each word for a type, and the type."""

CALLED = {"explore": "explorer", "plan": "planner", "code": "coder", "test": "tester"}
"""What an agent is called of which nothing but the type was said."""

_NOT_PEOPLE = frozenset({*_TYPES, "exploring", "planning", "coding", "testing", "qa", "dev"})
_END = r"(?![\w-])"
TYPE = rf"(?:{'|'.join(sorted(TYPE_OF, key=len, reverse=True))})s?{_END}"
PERSON = rf"(?:{'|'.join(sorted(TYPE_OF.keys() - _NOT_PEOPLE, key=len, reverse=True))})s?{_END}"
"""A word for somebody of a type, which may be their name as well."""

DETERMINER = rf"(?:an?|the|another|any|some|one|new|our|my){_END}"
NOUN = rf"(?:(?:sub-?)?agent|worker|teammate|team ?member|helper|assistant|bot)s?{_END}"

_NO_NAME = (
    "a again agent agents all also an and another any anybody anyone as at background be because before both bot but "
    "by call called crew each else every everybody everyone first for foreground from have he her him his how human i "
    "if in into is it its itself lead let look mail me message must my named new next no not nothing now of off on "
    "once one operator or our out plan please same she should so some somebody someone something still task team "
    "teammate teammates that the their them then there these they this those three to too two up us user "
    "was we what when where whether which while who whom whose why will with worker workers yet you your yourself"
).replace(" ", "|")
NAME = rf"(?<![\w-])(?!(?:{_NO_NAME}){_END})[a-z][a-z0-9_-]{{0,31}}{_END}"
"""A word that may name an agent; match it without regard to capitals, and make it small."""

_VERBS_IN_WORDS = (
    "add analyse analyze answer build change check clean collect compare compile count create debug delete describe "
    "design document draft edit examine execute explain explore extract find fix generate grep hand help implement "
    "improve inspect investigate learn list look make map measure message move optimise optimize organise organize "
    "outline plan prepare present print profile propose provide read refactor remove rename repair replace report "
    "rerun research review rewrite run save say scan search send show simplify split study submit summarise summarize "
    "survey tell test tidy translate understand update use verify wait watch work write"
)
_VERBS = tuple(_VERBS_IN_WORDS.split())


def _forms(verb: str) -> list[str]:
    """What "lists" and "listing" are to "list", without regard to how odd a form looks."""
    stem = verb.removesuffix("e")
    return [f"{verb}s", f"{verb}es", f"{verb[:-1]}ies", f"{stem}ing", f"{verb}{verb[-1]}ing"]


_BASE = {form: verb for verb in _VERBS for form in _forms(verb)} | {verb: verb for verb in _VERBS}
_CODES = frozenset({
    "add", "build", "change", "create", "debug", "edit", "fix", "implement", "improve", "move", "refactor", "rename",
    "repair", "replace", "rewrite", "simplify", "tidy", "update", "write",
})  # fmt: skip


def imperative(text: str) -> str:
    """The text as an order, if it begins with a verb: "listing files" is "List files"."""
    first = re.match(r"[A-Za-z]+", text)
    verb = _BASE.get(first[0].lower()) if first else None
    ordered = text if first is None or verb is None else verb + text[first.end() :]
    return ordered[:1].upper() + ordered[1:]


def is_order(text: str) -> bool:
    """Whether the text begins with a verb that orders something."""
    first = re.match(r"[A-Za-z]+", text)
    return first is not None and first[0].lower() in _VERBS


def type_in(text: str) -> str | None:
    """The type that the first word for one names."""
    found = re.search(rf"(?<![\w-]){TYPE}", text, re.IGNORECASE)
    return type_of(found[0]) if found else None


def type_of(word: str) -> str | None:
    """The type that a word names."""
    small = word.lower()
    return TYPE_OF.get(small) or TYPE_OF.get(small.removesuffix("s"))


def type_for(errand: str) -> str:
    """The type that fits a piece of work."""
    first = re.match(r"\W*([A-Za-z]+)", errand)
    verb = _BASE.get(first[1].lower(), "") if first else ""
    if verb in _CODES or re.search(r"\brefactoring\b", errand, re.IGNORECASE):
        return "code"
    return "test" if verb in {"run", "rerun", "test", "execute"} else "explore"


def sentence(text: str) -> str:
    """What a tool said, as a sentence."""
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def in_quotes(text: str) -> str:
    """The text in quotes that it does not hold itself."""
    if '"' not in text:
        return f'"{text}"'
    return f"“{text}”" if "”" not in text else f"```\n{text}\n```"
