"""Working through orders without a memory: steps are repeated from the start and fed with what the conversation holds.

Steps are a generator that yields calls and is sent what they returned. The first call that the conversation has no
result for is the reply. A worker that was killed thus resumes where its journal ends.
"""

import re
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from crewboard.agent_types.builtin import GATED_TOOLS
from crewboard.names import LEAD, OPERATOR
from crewboard.offline.conversation import NOTICE, Call, Conversation, Done, Mail, Said, mail_in
from crewboard.offline.phrasebook import Order, Step, book, paths_in
from crewboard.offline.results import bullets, entries, exit_code, fill, first_line, is_rejected

Steps = Generator[Call, Done, str]

_MOST_FILES = 6
"""Files that one clause may make an agent read."""

_TESTS = "python -m pytest -q"
_APPROVED = re.compile(r"\bplan\b[^\n]*\bapproved\b", re.IGNORECASE)


@dataclass
class Work:
    """One piece of mail being worked on, and the calls of the assignment."""

    talk: Conversation
    item: Mail
    left: deque[Done]
    """Calls on record that no step was fed with yet; shared by all items of the assignment."""
    made: list[Done] = field(default_factory=list)
    approved: list[bool] = field(default_factory=list)
    """Holds anything if a plan was approved; once is enough for an assignment. Shared as well."""

    @property
    def gated(self) -> bool:
        """Return True if a plan must be approved before anything is written or run."""
        # The system prompt names the tool where a plan is required.
        return "submit_plan" in self.talk.tools and "submit_plan" in self.talk.system and not self.approved

    @property
    def seen(self) -> list[Done]:
        """Return the calls up to the present step, the same each time that it is repeated."""
        ahead = {id(done) for done in self.left}
        return [done for done in self.talk.done if id(done) not in ahead]

    def take(self, steps: Steps) -> Call | str:
        """Feed the steps with what their calls returned; return the first call still to be made, or the answer.

        A call that is not the next on record was not offered when its turn came, so nothing was called.
        """
        try:
            call = next(steps)
            while True:
                if self.left and self.left[0].tool == call.tool:
                    self.made.append(self.left.popleft())
                    if self.made[-1].left_out:
                        return f"What {call.tool} returned was left out to save room; I cannot answer from it any more."
                    call = steps.send(self.made[-1])
                elif self.left or call.tool not in self.talk.tools:
                    call = steps.send(Done(call.tool, call.input, "", unavailable=True))
                else:
                    return call
        except StopIteration as end:
            return str(end.value)

    def act(self, call: Call) -> Generator[Call, Done, Done]:
        """Make a call; where a plan must be approved first, submit one and make the call then."""
        if call.tool in GATED_TOOLS and self.gated:
            decided = yield from self.submit_plan()
            if not decided.ok:
                return Done(call.tool, call.input, f"the plan is not approved: {decided.text.strip()}", is_error=True)
        return (yield call)

    def submit_plan(self) -> Generator[Call, Done, Done]:
        """Submit a plan for the item, and again after each rejection; return what submit_plan said last."""
        objections: list[str] = []
        while True:
            done = yield Call("submit_plan", _plan(self.item.text, objections), say="Here is my plan.")
            if not is_rejected(done):
                self.approved += [True] if done.ok else []
                return done
            objections.append(fill("{submit_plan:feedback}", [done]))

    def carry_out(self, order: Order) -> Steps:
        """Take the steps of a phrase, and answer from what they returned."""
        phrase, made = order.phrase, list[Done]()
        words = {**facts(self.talk, order), **order.words}
        for step in phrase.steps:
            for more in _each(step, words, made):
                call = Call(step.tool, inputs(step.input, more), fill(step.say, made, more))
                done = yield from self.act(call)
                if done.unavailable or not (done.ok or step.each):
                    return refused(done)
                made.append(done)
        nothing = phrase.none and made[-1].tool != phrase.steps[-1].tool
        return str(fill(phrase.none if nothing else phrase.answer, made, words)).strip()


def _each(step: Step, words: Mapping[str, str], made: list[Done]) -> Iterator[dict[str, str]]:
    """Yield the words for each time that a step is taken."""
    if not step.each:
        yield dict(words)
        return
    source = [done for done in made if done.tool == step.each][-1:]
    found = entries(source[0]) if source else paths_in(words.get(step.each, ""))
    for path in found[:_MOST_FILES]:
        yield {**words, "path": path}


def inputs(template: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, object]:
    """Fill a tool's input; what quotes a word that was not said is left out."""
    given: dict[str, object] = {}
    for key, value in template.items():
        quoted = re.fullmatch(r"\{(\w+)(\??)\}", str(value))
        if not quoted or quoted[1] in words:
            given[key] = True if quoted and quoted[2] else fill(value, [], words)
    return given


def _plan(task: str, objections: list[str]) -> dict[str, object]:
    files = paths_in(task)
    text = (
        f"# Plan\n\nThe task, word for word:\n\n{_quoted(task)}\n\n## Steps\n\n1. Read what the task names.\n"
        "2. Do what the task says, and nothing else.\n3. Say what was done, and what was not."
    )
    for number, objection in enumerate(objections, 2):
        text += f"\n\n## Revision {number}\n\nChanged to follow this feedback:\n\n{_quoted(objection)}"
    return {"plan": text, "files": files, "risk": "Low: only what the task names is touched."}


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.strip().splitlines())


def approvals(talk: Conversation) -> list[bool]:
    """Return an approval if a summary of the conversation reports one."""
    return [
        True for entry in talk.span if isinstance(entry, Mail) and entry.kind == NOTICE and _APPROVED.search(entry.text)
    ]


# ---------------------------------------------------------------------------------------------------- wording


def refused(done: Done) -> str:
    """Say that a tool did not do what it was asked."""
    if done.unavailable:
        return f"I may not use {done.tool}: it is not among my tools, so I left that undone."
    return f"{done.tool} was refused: {done.text.strip() or 'no reason given'}"


def facts(talk: Conversation, order: Order) -> dict[str, str]:
    """Return what a phrase can quote beside the words of the prompt."""
    own = [text for text in re.findall(r"`([^`\n]+)`", talk.system) if re.search(r"\w\s.*test|^pytest", text)]
    mail = [one for one in mail_in(talk.before) if one.author != OPERATOR and one.kind != "prompt"]
    told = [f"{one.kind} from {one.author}: {first_line(one.text)}" for one in mail[-12:]]
    return {
        "path": f"{talk.name}.txt",
        "content": f"{talk.name} was asked: {order.words['clause']}\n",
        "text": f"{talk.name} says hello.",
        "command": next(iter(own), _TESTS),
        "mail": f"What came before, the newest last:\n{bullets(told)}" if told else "",
        "status": status(talk),
        "introduction": introduction(talk),
    }


def introduction(talk: Conversation) -> str:
    """Say who speaks, that it is no language model, and what it understands."""
    phrases = book().phrases(lead=talk.type == LEAD)
    known = bullets([text for text, one in phrases.items() if all(step.tool in talk.tools for step in one.steps)])
    return (
        f"I am {talk.name}, of type {talk.type}. I run on crewboard's embedded model, which is a phrasebook and no "
        f"language model. I understand:\n{known}"
    )


def not_understood(talk: Conversation, *clauses: str) -> str:
    """Say what was not understood, and what would be."""
    quoted = ", ".join(f"“{first_line(clause)}”" for clause in clauses)
    return f"I do not know how to do this: {quoted}\n\n{introduction(talk)}"


def status(talk: Conversation) -> str:
    """Say what was asked, done and answered in a conversation, from its record."""
    told = [f"I am {talk.name}, of type {talk.type} in the team {talk.team}."]
    asked = [mail for mail in mail_in(talk.entries) if mail.kind in {"prompt", "task_assignment"}]
    told += [f"{mail.author} asked me: “{first_line(mail.text)}”" for mail in asked]
    deeds = list(dict.fromkeys(map(_deed, talk.done)))
    told.append(f"What I did:\n{bullets(deeds, 60)}" if deeds else "I have called no tool yet.")
    answers = [entry.text for entry in talk.entries if isinstance(entry, Said) and entry.final and entry.text]
    told += [f"What I answered:\n\n{answers[0] if len(answers) == 1 else answers[-1]}"] if answers else []
    return "\n\n".join(told)


def _deed(done: Done) -> str:
    values = ", ".join(first_line(str(value), 80) for value in done.input.values())
    code = exit_code(done)
    outcome = "refused: " if not done.ok and code is None else ""
    said = f"exit code {code}" if code is not None else first_line(done.text, 80)
    return f"{done.tool} {values}: {outcome}{said}"
