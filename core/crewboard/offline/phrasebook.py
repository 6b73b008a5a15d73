"""The phrasebook of the offline model: patterns read from `phrasebook.toml`, and the tools to call for each.

A text is cut into clauses, and each clause must match one pattern from its beginning to its end, or consist of parts of
one phrase. Words in a clause that a pattern names, such as a path or an agent, are the words of an `Order`. There is no
grammar behind this: a clause that no pattern matches becomes an order that is not known, and
`respond.py` answers it.
"""

import re
import tomllib
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import chain, count, groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path

from msgspec import Struct, convert

from crewboard.offline.conversation import Call

_MOST_JOINTS = 12
_LONGEST_TEXT = 20_000
_QUOTED = r'```.*?```|`[^`\n]+`|"[^"]*"|“[^”]*”|(?<!\w)\'[^\'\n]*\'(?!\w)'
_NEW_TEAM = (
    r"\b(?:create|make|set up|start|form|open|build|begin|like|need|want)(?: (?:me|us|an?|the|our|new|agent))*"
    r" team\. call it\b"
)
_VERBATIM = re.compile(
    rf"\n*```.*?```|{_QUOTED}|\b(?:run|execute|bash)\s*:[^\n]+|{_NEW_TEAM}", re.DOTALL | re.IGNORECASE
)
"""Parts of a text that are not cut into clauses: quotes, commands, and a new team with its name."""
_ENDS = re.compile(
    r"\n+|;\s+(?!(?:name|call) it\b)|(?<=[.!?])\s+(?=[A-Z`\"'“@]|\w+ (?:should|must|has to) )"
    r"|,?\s*\b(?i:and\s+)?(?<!should )(?<!must )(?i:then)\b[,:]?\s*"
)
_THEN = re.compile(r"\bthen\b", re.IGNORECASE)
_JOINTS = re.compile(r",\s*(?:(?:and|but|also|after that)\s+)*|\s+(?:and|but)\s+", re.IGNORECASE)
_ITEM = re.compile(r"(?:^|\s+)\(?(\d{1,2})[.)]\s+", re.MULTILINE)
_GOES_ON = re.compile(r"\s|[-*•]|\d{1,2}[.)]\s")
"""The beginning of a line that continues the line before, if that one is addressed to an agent."""
_MACRO = re.compile(r"<(?:(\w+):)?([A-Z_]+)>")
_PATH = re.compile(
    r"(?<![\w/.])(?:(?:\.{0,2}[\w-]*/)*[\w.-]*[\w-]\.[A-Za-z]\w{0,5}\b(?!/)|(?:[\w.-]+/)+[\w-]*|README\b|Makefile\b)"
)


class Step(Call, frozen=True):
    """A tool to call, once, or with `each`, once for each path or name in a word or a result.

    `each` is `names` or another word of the clause, or the name of a tool that was called before, whose result is then
    meant.
    """

    each: str = ""


class Phrase(Struct, frozen=True, forbid_unknown_fields=True):
    """Patterns (`match`), and the steps and the answer for a clause that one of them matches.

    A clause that begins with `head` matches too, if the rest consists of `parts`, each at most once and in any order,
    and has at least one word of each group in `needs`, such as `name|type`. `kind` names a phrase that needs more than
    its steps (see `respond`). `none` is the answer if there was nothing to take the last step for. `otherwise` is the
    phrase for an agent without the tool of the first step. Steps and answers can quote `texts`, as they do words.
    """

    match: tuple[str, ...] = ()
    head: str = ""
    parts: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    kind: str = ""
    steps: tuple[Step, ...] = ()
    answer: str = ""
    none: str = ""
    texts: dict[str, str] = {}
    otherwise: "Phrase | None" = None

    def for_tools(self, tools: Collection[str]) -> "Phrase":
        """Return the phrase for an agent with these tools: `otherwise` if it lacks the tool of the first step."""
        return self.otherwise if self.otherwise and self.steps[0].tool not in tools else self


class _Book(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `phrasebook.toml`. `lead` and `every` are the phrases of leads and of all agents, by an example.

    `first` are examples that are shown to a user who was not understood. `words` are patterns by the name that other
    patterns use, `types`, `verbs` and `states` the words for types of agents, their work, and states in a list.
    """

    first: tuple[str, ...]
    pronouns: str
    words: dict[str, str]
    types: dict[str, str]
    states: dict[str, str]
    verbs: dict[str, str]
    endings: dict[str, str]
    lead: dict[str, Phrase]
    every: dict[str, Phrase]

    def phrases(self, *, lead: bool) -> dict[str, Phrase]:
        """Return the phrases that an agent understands, by an example of each; more for a lead."""
        return {**self.lead, **self.every} if lead else self.every


@cache
def book() -> _Book:
    """Return the phrasebook, which is read once."""
    text = (Path(__file__).parent / "phrasebook.toml").read_text(encoding="utf-8")
    return convert(tomllib.loads(text), _Book)


UNKNOWN = Phrase(kind="unknown")
"""The phrase of a clause that is not understood."""

STRANGER = Phrase(kind="stranger")
"""The phrase of a line that is addressed to an agent that is not on the team."""


@dataclass(frozen=True)
class Order:
    """A clause: its phrase, or what stands for one, and its words by name, such as `path`; `clause` is all its text."""

    phrase: Phrase
    words: dict[str, str]

    @property
    def kind(self) -> str:
        """Return the kind of the phrase."""
        return self.phrase.kind

    @property
    def clause(self) -> str:
        """Return the whole text of the clause."""
        return self.words["clause"]

    @property
    def is_known(self) -> bool:
        """Return True if the clause was understood."""
        return self.phrase not in (UNKNOWN, STRANGER)

    @property
    def ends_agents(self) -> bool:
        """Return True if this stops agents, or deletes the team."""
        return self.kind == "stop" or any(step.tool == "delete_team" for step in self.phrase.steps)

    @property
    def name(self) -> str:
        """Return the name of the agent that the order is about; empty if none is named."""
        return self.words.get("name", "")

    def having(self, **words: str) -> "Order":
        """Return the order with these words set."""
        return replace(self, words={**self.words, **words})


@lru_cache(maxsize=1024)
def understand(text: str, *, lead: bool, members: frozenset[str] | None = None) -> tuple[Order, ...]:
    """Return an order for each clause of a text; one that is not understood is of the phrase `UNKNOWN`.

    The clauses stay in the order of the text, but agents without work are hired first. If a clause that is not
    understood may forbid the others, return the whole text as one clause. In a text for a lead, a line can be addressed
    to one of the `members` of its team; if they are not known, to any name.
    """
    pieces = list(_split_by_addressee(text, members)) if lead and len(text) <= _LONGEST_TEXT else []
    if any(isinstance(piece, Order) for piece in pieces):
        found = [
            one
            for piece in pieces
            for one in ([piece] if isinstance(piece, Order) else understand(piece, lead=True, members=members))
        ]
        return (_unknown(text.strip()),) if _forbids(found) else tuple(found)
    text = _split_items(text) if len(text) <= _LONGEST_TEXT else text
    whole = (_unknown(text.strip()),)
    clauses: list[Order] = []
    last = at_work = ""
    cuts = [(0, 0), *(_cuts(_ENDS, text) if len(text) <= _LONGEST_TEXT else ()), (len(text), len(text))]
    for (begin, start), (end, _) in pairwise(cuts):
        sentence = text[start:end]
        if not _THEN.search(text[begin:start]) or text[:begin].endswith((".", "!", "?")):
            at_work = ""
        bare = re.sub(r"^\s*(?:[-*•]|\(?\d{1,2}[.)])\s+", "", sentence).strip(" ,\t")
        orders = _read(bare, lead=lead)
        clauses += [_unknown(bare)] if not orders and re.search(r"[^\W_]", bare) else []
        for order in chain.from_iterable(_one_each(order, clauses, last) for order in orders):
            if order.kind == "name" and any(one.kind == "spawn" for one in clauses):
                if not (last := _name(clauses, order)):
                    # Agents would be hired under other names than those that were asked for.
                    return whole
                continue
            left_out = (order.kind in {"plan", "review"} or "self" in order.words) and not order.name
            is_pronoun = order.name in book().pronouns.split()
            # Who shall "exit" is clear only behind work for an agent, in the same sentence.
            known = at_work if "self" in order.words else last
            needs_name = is_pronoun or "self" in order.words or (left_out and order.kind == "plan")
            if order.kind == "name" or (needs_name and not known):
                clauses.append(_unknown(order.clause))
                continue
            named = order.having(name=known) if left_out or is_pronoun else order
            last = named.name or last
            at_work = named.name if "errand" in named.words else at_work
            if not _join(clauses, named, at_work):
                clauses.append(_unknown(named.clause) if named.kind == "assign" else named)
    # What is meant for an agent that is not there must not end the others.
    ends_others = lead and any(one.ends_agents for one in clauses) and has_addressee(text)
    # What the rest waits for cannot be weighed.
    is_held = any(_compiled("<HELD>").match(one.clause) for one in clauses[:-1])
    if ends_others or is_held or (lead and _forbids(clauses)):
        return whole
    stops = {one.name for one in clauses if one.kind == "stop"}
    clauses = [one.having(wait="yes") if one.kind == "give" and one.name in stops else one for one in clauses]
    # Agents without work are hired before their neighbours, so that mail finds them.
    runs = groupby(clauses, key=lambda one: one.kind == "spawn")
    sorted_runs = (sorted(run, key=lambda one: hires and "errand" in one.words) for hires, run in runs)
    return tuple(chain.from_iterable(sorted_runs))


def _unknown(clause: str) -> Order:
    return Order(UNKNOWN, {"clause": clause})


def orders_in(text: str, *, lead: bool) -> list[Order]:
    """Return an order for each clause of a text that is understood.

    `lead` is True for a text to a lead.
    """
    return [order for order in understand(text, lead=lead) if order.is_known]


def _split_items(text: str) -> str:
    """Return the text with each item of a numbered list on a line of its own, without its number."""
    held = [found.span() for found in _VERBATIM.finditer(text)]
    found = [one for one in _ITEM.finditer(text) if not any(start <= one.start() < end for start, end in held)]
    begins = bool(found) and not text[: found[0].start()].strip()
    # A list that is typed line by line begins with any number.
    first = int(found[0][1]) if begins else 1
    if not (begins or len(found) > 1) or [int(one[1]) for one in found] != list(range(first, first + len(found))):
        return text
    ends = [*(one.start() for one in found[1:]), len(text)]
    items = [text[one.end() : end] for one, end in zip(found, ends, strict=True)]
    return "\n".join([text[: found[0].start()], *items])


def _one_each(order: Order, clauses: Sequence[Order], last: str) -> list[Order]:
    """Split an order to hire several agents, to add several tasks, or about `them`, into one order for each.

    `them` are the agents hired last in `clauses`, if `last` is one of these.
    """
    if subjects := order.words.get("subjects", ""):
        return [order.having(subject=unquoted(subject)) for subject in _listed(subjects)]
    hired = [one.name for one in _hired_last(clauses)]
    if order.name in {"they", "them", "their"} and hired[-1:] == [last]:
        return [order.having(name=name) for name in hired]
    names = names_in(order.words.get("names", ""))
    if order.kind in {"stop", "name"}:
        return [order]
    if count := order.words.get("count", ""):
        names = [order.name, *(f"{order.name}{number}" for number in range(2, _number(count) + 1))]
    return [order.having(name=name) for name in names] or [order]


def _number(word: str) -> int:
    """Return the number that a word such as `two` or `2` means."""
    return int(word) if word.isdecimal() else book().words["MANY"].split("|").index(word.lower()) + 2


def _hired_last(clauses: Sequence[Order]) -> list[Order]:
    """Return the orders to hire that were made from the last clause that hires agents."""
    hired = [one for one in clauses if one.kind == "spawn"]
    return [one for one in hired if one.clause == hired[-1].clause]


def _name(clauses: list[Order], order: Order) -> str:
    """Give the agents hired last, in `clauses`, the names in an order; return the last one, "" if they do not fit."""
    names, hired = names_in(order.words.get("names", order.name)), _hired_last(clauses)
    if len(names) != len(hired) or any("unnamed" not in one.words for one in hired):
        return ""
    for one, name in zip(hired, names, strict=True):
        words = {key: word for key, word in one.words.items() if key not in {"unnamed", "count"}}
        clauses[clauses.index(one)] = Order(one.phrase, {**words, "name": name})
    return names[-1]


def _forbids(clauses: Sequence[Order]) -> bool:
    """Return True if no clause should be obeyed, because one that is not understood may limit or forbid the others.

    This is also so if it, or a question or a wait, comes before an order that ends agents: it may be a condition.
    """
    is_open = _compiled("<CONDITION>").match
    opens = [at for at, one in enumerate(clauses) if not one.is_known or is_open(one.clause)]
    is_ungated = any(one.kind in {"spawn", "give"} and "plan" not in one.words for one in clauses)
    limits = [_compiled("<LIMITS>"), *([_compiled("<PLANNED>")] if is_ungated else [])]
    return any(one.ends_agents for at in opens[:1] for one in clauses[at:]) or any(
        limit.search(one.clause) for one in clauses if not one.is_known for limit in limits
    )


def has_addressee(text: str) -> bool:
    """Return True if a line of a text may be addressed to an agent, if there is one of that name."""
    return any(isinstance(piece, Order) for piece in _split_by_addressee(text, None))


def _split_by_addressee(text: str, members: frozenset[str] | None) -> Iterator[str | Order]:
    """Yield the lines of a text; one that is addressed to an agent by its name, as in a chat, as an order.

    If the agent is not among `members`, that order is of the phrase `STRANGER`.
    """
    lines = [part for line in text.splitlines(keepends=True) for part in _parts_by_name(line, members)]
    while lines:
        line = lines.pop(0).strip()
        found = _compiled("<ADDRESSED>").fullmatch(line)
        first = line[: next((start for start, _ in _cuts(_ENDS, line)), len(line))]
        given = _given(found) if found else {}
        name, errand = given.get("name", "").lower().lstrip("@"), given.get("errand", "")
        is_there = members is None or name in members
        # A line may begin with any word and a colon; a heading is followed by no work.
        is_heading = (
            not is_there
            and given.get("name", "")[:1].isupper()
            and ("comma" in given or not orders_in(errand, lead=False))
        )
        if not found or is_heading or _read(first, lead=True):
            yield f"{line}\n"
            continue
        while lines and _GOES_ON.match(lines[0]):
            errand += f"\n{lines.pop(0).rstrip()}"
        if not is_there:
            yield Order(STRANGER, {"name": name, "clause": f"{name}: {errand}"})
            continue
        # What a phrase says as a whole is more than mail: a shutdown, a plan.
        asked = _match(f"ask {name} to {errand}", lead=True)
        letter = Order(book().lead["Have alice send bob a message"], {"name": name, "errand": errand.strip()})
        order = asked if asked and asked.name == name and asked.kind != "give" else letter
        yield order.having(clause=line)


def _parts_by_name(line: str, members: frozenset[str] | None) -> Iterator[str]:
    """Yield the parts of a line that addresses several agents, as in `alice: read it; bob: write it`."""
    start = 0
    for at, end in (
        _cuts(_compiled("[;.,]\\s+(?=(?:<NAME>):\\s)"), line) if _compiled("<ADDRESSED>").match(line) else ()
    ):
        name = line[end:].partition(":")[0].lower().lstrip("@")
        if line[at] == ";" or name in (members or ()):
            yield line[start:at]
            start = end
    yield line[start:]


def names_in(text: str) -> list[str]:
    """Return the names of a list such as `alice, bob and carol`, in lower case, without `the` and `@`."""
    names = (name.lower().removeprefix("the ").lstrip("@") for name in _listed(text))
    return [name for name in names if name]


def _listed(text: str) -> list[str]:
    """Return the items of a list such as `alice, bob and carol`; quotations are not cut."""
    cuts = [(0, 0), *_cuts(_compiled(",? and |, "), text), (len(text), len(text))]
    return [text[start:end] for (_, start), (end, _) in pairwise(cuts)]


def _read(text: str, *, lead: bool) -> Sequence[Order]:
    """Return the orders in a sentence: in the whole, else in its first clause and the rest, else in all but its tail.

    Return nothing if a part of it is not understood.
    """
    if order := _match(text, lead=lead):
        return [order]
    joints = islice(_cuts(_JOINTS, text), _MOST_JOINTS)
    firsts = ((left, right, _match_loosely(text[:left], lead=lead)) for left, right in joints)
    for (left, right, first), (*_, longer) in pairwise(chain(firsts, [(0, 0, None)])):
        # A list of tasks ends where the next item is none.
        goes_on = longer is not None and "subjects" in longer.words
        if first is None or goes_on or _compiled("(?:<THANKS>)[.!? ]*").fullmatch(text, right):
            continue
        # Another task needs no verb.
        if first.kind == "task" and (more := _compiled("<ONE_MORE>").match(text, right)):
            return [first, *_read(f"create a task{text[more.end() :]}", lead=lead)]
        if rest := _read(text[right:], lead=lead):
            return [first, *rest]
        # Nor does who is hired beside the first one. Of `two agents, alice and bob`, the rest says which two.
        is_open = first.kind == "spawn" and not {"errand", "bare"} & first.words.keys()
        if is_open and ("count" not in first.words or _compiled("(?:<COUNT>|<MANY>) ").match(text, right)):
            rest = _read(f"hire {text[right:]}", lead=lead)
            if rest and rest[0].kind == "spawn" and "bare" not in rest[0].words:
                # Behind `two agents, ` stands who these are.
                is_list = _number(first.words.get("count", "0")) == len(rest) and not _first(_types(), text[:left])
                return rest if is_list else [first, *rest]
        if "path" in first.words and _compiled("(?:<PATH>)(?:(?:,? and |, )(?:<PATH>))*").fullmatch(text, right):
            return [first, *_read(f"write {text[right:]}", lead=lead)]
    order = _match_loosely(text, lead=lead)
    return [order] if order else []


def _match_loosely(text: str, *, lead: bool) -> Order | None:
    """Return the order in a clause, if need be without a tail such as "when you can"; None if nothing matches.

    A tail that is more than thanks is in the word `left_out`.
    """
    if order := _match(text, lead=lead):
        return order
    for start, _ in _cuts(_compiled("<TAIL>"), text):
        if order := _match(text[:start], lead=lead):
            tail = text[start:].strip(" .!?,")
            if order.kind == "stop" and _compiled("<LATER>").search(tail):
                # Asked now, an agent would leave its work unfinished.
                return None
            return order if _compiled("(?:(?:<THANKS>)[, ]*)+").fullmatch(tail) else order.having(left_out=tail)
    return None


def _match(text: str, *, lead: bool) -> Order | None:
    """Return the order in a whole clause; None if nothing matches.

    Where it hires an agent or gives work, and asks for a plan first, that is in the word `plan`, and not in the work.
    """
    unplanned = _compiled("<UNPLANNED>").search(text) if lead else None
    if unplanned and not _compiled("<LIMITS>").search(text[: unplanned.start()]):
        order = _match_pattern(text[: unplanned.start()], lead=lead)
        if order and order.kind in {"spawn", "give"}:
            return order.having(clause=text)
    says_plan = lead and _compiled("\\b(?:plan|approv)").search(text)
    for start, end in _cuts(_compiled("(?<![^\\s,(])<GATE>"), text) if says_plan else ():
        if _compiled("<NEEDED>").search(text, start, end) and not _compiled("<DANGLING>").search(text[:start]):
            rest = re.sub(r"^\s*(?=\w+ing\b)", " to ", text[end:])
            order = _match_pattern(f"{text[:start].rstrip(' ,(')}{rest}", lead=lead)
            if order and order.kind in {"spawn", "give"}:
                return _gated(order).having(clause=text)
    order = _match_pattern(text, lead=lead)
    # A plan too many does no harm; work that should have waited for one does.
    if not order or order.kind not in {"spawn", "give"}:
        return order
    return _gated(order) if _compiled("<APPROVAL>").search(order.words.get("errand", "")) else order


def _gated(order: Order) -> Order:
    """Return an order to hire or to give work, changed so that the agent must submit a plan first."""
    errand = _compiled("<ONLY_PLAN>").sub("", order.words.get("errand", ""))
    words = {**order.words, "plan": "yes", "errand": re.sub(r"^\w+ing\b", _base, errand)}
    phrase = order.phrase if order.kind == "spawn" else book().lead["Have bob submit a plan first"]
    return Order(phrase, {key: word for key, word in words.items() if word or key != "errand"})


def _base(word: re.Match[str]) -> str:
    """Return the verb that a word such as `writing` is made of, if the phrasebook has it, else the word."""
    verbs = {verb for verbs in book().verbs.values() for verb in verbs.split()}
    stem = word[0].lower().removesuffix("ing")
    return next((verb for verb in (stem, f"{stem}e", stem[:-1]) if verb in verbs), word[0])


def _match_pattern(text: str, *, lead: bool) -> Order | None:
    bare = _compiled(r"\A<FILLER>").sub("", text)
    bare = bare.rstrip("? ") if "you" in text.removesuffix(bare).lower() else bare
    order = _match_bare(bare, text, lead=lead)
    short = _compiled("<POLITE>").sub("", bare)
    if short == bare or (order and _quotes(order)):
        return order
    return _match_bare(short, text, lead=lead) or order


def _quotes(order: Order) -> bool:
    """Return True if an order, or the work in it, has text to write or send, in which "please" may be meant."""
    if order.words.keys() & {"content", "text", "subject"}:
        return True
    work = _match_pattern(order.words.get("errand", ""), lead=False)
    return work is not None and _quotes(work)


def _match_bare(bare: str, clause: str, *, lead: bool) -> Order | None:
    """Return the order in `bare`, a clause without filler before it; None if nothing matches. `clause` is the whole."""
    short = bare.rstrip(" .!?,")
    for phrase in book().phrases(lead=lead).values():
        patterns = map(_compiled, phrase.match)
        found = next(filter(None, (one.fullmatch(bare) or one.fullmatch(short) for one in patterns)), None)
        given = _given(found) if found else _in_parts(phrase, short)
        if found or given:
            # `two agents, alice and bob` are these two; of other numbers it is not clear who is meant.
            listed = given.get("names") or given.get("subjects")
            if listed and "count" in given and _number(given.pop("count")) != len(_listed(listed)):
                return None
            return Order(phrase, _words(phrase, given, clause))
    return None


def _in_parts(phrase: Phrase, text: str) -> dict[str, str]:
    """Return the words of a text that consists of a phrase's head and parts; empty if it does not."""
    found = _compiled(phrase.head).match(text) if phrase.head else None
    given, parts = _given(found) if found else {}, list(phrase.parts)
    while found and found.end() < len(text):
        at = found.end()
        tried = ((part, _compiled(rf"[\s,;:()]*(?:{part})(?![\w-])\)?").match(text, at)) for part in parts)
        fitting = ((part, one) for part, one in tried if one and not given.keys() & _given(one).keys())
        part, found = next(fitting, ("", None))
        if found:
            given |= _given(found)
            parts.remove(part)
    return given if found and all(given.keys() & set(words.split("|")) for words in phrase.needs) else {}


def _given(found: re.Match[str]) -> dict[str, str]:
    # A word may stand in several places of a pattern, so its groups are numbered.
    return {key.rstrip("0123456789"): value for key, value in found.groupdict().items() if value}


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    macros = {
        **book().words,
        "STATES": "|".join(book().states),
        "TYPE": f"(?:{'|'.join(sorted(_types(), key=len, reverse=True))})s?",
    }
    # `the reviewer agent` is `reviewer`.
    pattern = re.sub("<name:NAME>(?!<)", "(?:<ONE>)", pattern)
    while _MACRO.search(pattern):
        pattern = _MACRO.sub(lambda found: f"({f'?P<{found[1]}>' if found[1] else '?:'}{macros[found[2]]})", pattern)
    number = count()
    numbered = re.sub(r"\(\?P<([a-z]+)>", lambda found: f"(?P<{found[1]}{next(number)}>", pattern)
    return re.compile(numbered, re.IGNORECASE | re.DOTALL)


def _words(phrase: Phrase, given: dict[str, str], clause: str) -> dict[str, str]:
    said = {key: value.strip() if key == "command" else unquoted(value) for key, value in given.items()}
    words = {**phrase.texts, **said}
    words |= {key: words[key].lower().lstrip("@") for key in ("name", "team") if key in words}
    # The ending is a glob; a kind that is no language is a part of the name.
    kind = words.get("kind", "").lower().removeprefix("*")
    words |= {
        "clause": clause,
        "ending": book().endings.get(kind, kind if not kind or kind.startswith(".") else f"{kind}*"),
    }
    if "errand" in words:
        words["errand"] = re.sub(r"^\w+ing\b", _base, words["errand"])
    words["folder"] = f"{words['folder']}/" if "folder" in words else ""
    if phrase.kind == "spawn":
        about = f"{words.get('type', '')} {words.get('person', '')} {words.get('role', '')} {words.get('name', '')}"
        if found := re.search(r",? in the (background)(?:, please)?$", words.get("errand", "")):
            words |= {"errand": words["errand"][: found.start()], "background": found[1]}
        if re.search(rf"\b(?:that|which|who) {re.escape(words.get('errand', '-'))}", clause):
            # An agent that lists files is told: list files.
            words["errand"] = re.sub(r"^(\w+?)(?:(?<=[cs]h|.x|.o)es|s)\b", r"\1", words["errand"])
        words["type"] = _first(_types(), about) or type_for(words.get("errand", ""))
        if not {"name", "names"} & words.keys():
            usual = book().types[words["type"]].split()[0]
            words |= {"name": words.get("person", "").lower() or usual, "unnamed": "yes"}
    elif "type" in words:
        words["type"] = _first(_types(), words["type"])
    return words


def type_for(errand: str) -> str:
    """Return the type of agent that fits a piece of work, by its verb; `explore` if none is known."""
    verbs = {verb: kind for kind, verbs in book().verbs.items() for verb in verbs.split()}
    return _first(verbs, " ".join(errand.split()[:3])) or "explore"


def _types() -> dict[str, str]:
    return {word: kind for kind, words in book().types.items() for word in words.split()}


def _first(known: dict[str, str], text: str) -> str:
    """Return the value in `known` of the first word of a text that is a key there; empty if none is."""
    words = re.findall("[a-z]+", text.lower())
    return next((known[form] for word in words for form in (word, word.removesuffix("s")) if form in known), "")


def _join(before: list[Order], order: Order, at_work: str) -> bool:
    """Put an order into an earlier one of `before`: work, a plan, or an owner for the task just before.

    What writes files or runs commands after `then` is more work for the agent `at_work`. Return False, and change
    nothing, if there is no order that it fits.
    """
    if at_work and any(step.tool in {"write_file", "bash"} for step in order.phrase.steps):
        for at, one in enumerate(before):
            if one.name == at_work and "errand" in one.words:
                before[at] = one.having(errand=f"{one.words['errand']}, then {order.clause}")
        return True
    task = before[-1] if before else order
    if order.kind == "assign" and task.kind == "task" and not {"name", "type"} & task.words.keys():
        before[-1] = task.having(**{key: order.words[key] for key in ("name", "type") if key in order.words})
        return True
    fits = {"give": ("spawn",), "plan": ("spawn", "give")}.get(order.kind, ())
    for place, other in reversed(list(enumerate(before))):
        if other.kind not in fits or other.name != order.name:
            continue
        if "errand" in order.words and "errand" in other.words:
            return False
        errand = {key: word for one in (order, other) for key, word in one.words.items() if key == "errand"}
        gated = {"plan": "yes"} if order.kind == "plan" else {}
        kept = order if other.kind == "give" else other
        fits_work = {"type": type_for(errand["errand"])} if "bare" in other.words and errand else {}
        before[place] = kept.having(**errand, **gated, **fits_work)
        return True
    return False


def paths_in(text: str) -> list[str]:
    """Return the words of a text that look like paths, in their order and once each."""
    found = (match[0].rstrip(".") for match in _PATH.finditer(text))
    return list(dict.fromkeys(path for path in found if not re.fullmatch(r"[\d.]+|e\.g|i\.e|and/or", path)))


def unquoted(text: str) -> str:
    """Return a text without the quotation marks or code fence around it, else without a full stop at its end."""
    text = text.strip(" ,;:")
    if block := re.fullmatch(r"```(?:\w*\n)?(.*?)\n?```\.?", text, re.DOTALL):
        return block[1]
    if re.fullmatch(rf"(?:{_QUOTED})\.?", text, re.DOTALL):
        return text.rstrip(".")[1:-1]
    return re.sub(r"(?<!\.)\.$", "", text)


def _cuts(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each match of a pattern in a text, but for those inside quotations and commands."""
    held = [found.span() for found in _VERBATIM.finditer(text)]
    for found in pattern.finditer(text):
        next_held = bisect_right(held, found.start(), key=itemgetter(1))
        if found[0] and not any(start < found.end() for start, _ in held[next_held : next_held + 1]):
            yield found.span()
