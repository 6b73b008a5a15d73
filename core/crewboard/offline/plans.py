"""Plans of the offline model: write one for a task, revise it by feedback, and find the steps that are approved."""

import re
import shlex
from collections.abc import Generator, Sequence

from crewboard.agent_types import WRITE_TOOLS
from crewboard.offline.conversation import Call, Conversation, Done, edition, fill, is_rejected, left_out_in
from crewboard.offline.phrasebook import orders_in, paths_in, understand
from crewboard.records.requests import step_lines

_LIMITS = "I do these steps and nothing else."
_NOTHING_KNOWN = (
    "Nothing in it is in my phrasebook: approved as it stands, it changes nothing. Edit it to what I know, such as: "
    "Run the tests."
)
_FOLLOWED = "The task above is changed"
_NOT_FOLLOWED = "My phrasebook cannot follow this, so nothing changed"
_FACTS = "   - In it: "
"""The beginning of the line below a step that names the files and commands that the step itself does not name."""
_CHECKS = {"py": "python3 -m py_compile", "json": "python3 -m json.tool", "sh": "bash -n"}
"""Commands that check a file of a kind, by the ending of its name."""
_NOTE = re.compile(r"^(?:Feedback: )?(n\d+), lines? [\d-]+:\n((?:  > .*\n)+)  \| (.+)", re.MULTILINE)


def submit(talk: Conversation, task: str) -> Generator[Call, Done, Done]:
    """Yield calls of submit_plan with a plan for a task, revised after each rejection; return the last result."""
    revisions = ""
    answers: dict[str, object] = {}
    while True:
        # The line that stands for the plan is its first one, so that names the task.
        title = task.partition("\n")[0].strip("# ") or "Plan"
        told = f"The task, {'revised' if revisions else 'word for word'}:\n\n{_quoted(task)}"
        steps, files, commands = _plan(talk, task)
        limits = _LIMITS if orders_in(task, lead=talk.is_lead) else _NOTHING_KNOWN
        does = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
        plan: dict[str, object] = {
            "plan": f"# {title}\n\n{told}\n\n## Steps\n\n{does}\n\n## Limits\n\n{limits}{revisions}",
            "files": files,
            "commands": commands,
            "risk": "Low: only what is named.",
            **answers,
        }
        done = yield Call("submit_plan", plan, say="Here is my plan.")
        if not is_rejected(done):
            return done
        feedback, before, given = fill("{submit_plan:feedback}", [done]), task, dict[str, str]()
        for ident, quoted, note in _NOTE.findall(done.text):
            now = _follow(talk, task, note.strip(), _step_text(re.sub("(?m)^  > ", "", quoted)))
            given[ident], task = f"{_FOLLOWED if now != task else _NOT_FOLLOWED}: {note.strip()}", now
        task = task if given else _follow(talk, task, feedback)
        answers = {"answers": given} if given else {}
        number = revisions.count("## Revision") + 2
        follows = _FOLLOWED if task != before else _NOT_FOLLOWED
        revisions += f"\n\n## Revision {number}\n\n{follows}. The feedback:\n\n{_quoted(feedback)}"


def steps_in(done: Done) -> dict[int, str]:
    """Return the steps of an approved plan by number, each without the line of its facts (`_FACTS`).

    If the plan was edited with the approval, these are the steps of the edited one.
    """
    plan = edition(done) or str(done.input.get("plan", ""))
    lines = plan.split("\n")
    texts = {number: "\n".join(lines[at - 1] for at in within) for number, within in step_lines(plan).items()}
    return {number: _step_text(text) for number, text in texts.items()}


def left_to_do(talk: Conversation, decided: Done, task: str) -> list[str]:
    """Return what an approved plan for a task says to do: the texts of its steps, or of the whole task."""
    steps, left_out, edited = steps_in(decided), left_out_in(decided), edition(decided)
    todo = [step for number, step in steps.items() if number not in left_out]
    if edited and not steps:
        # It says the task itself: in its first quotation, else as a whole.
        return ["\n".join(re.findall(r"(?m)^> ?(.*)", edited.partition("\n## ")[0])).strip() or edited]
    # The plan of a version before has steps that do not say the work.
    is_old = not edited and not left_out and not all(orders_in(step, lead=talk.is_lead) for step in todo)
    return [task] if is_old else todo


def _quoted(text: str) -> str:
    return re.sub("(?m)^", "> ", text.strip())


def _step_text(text: str) -> str:
    """Return the text of a step without its number and without the line of its facts."""
    kept = "\n".join(line for line in text.split("\n") if not line.startswith(_FACTS))
    return re.sub(r"(?m)^   ", "", re.sub(r"^\s*\d+[.)]\s+", "", kept)).strip()


def _as_step(text: str, named: Sequence[str]) -> str:
    missing = ", ".join(f"`{one}`" for one in dict.fromkeys(named) if one not in text)
    return text.strip().replace("\n", "\n   ") + (f"\n{_FACTS}{missing}" if missing else "")


def _follow(talk: Conversation, task: str, feedback: str, step: str = "") -> str:
    """Return a task changed by feedback on one step of it, or on all of it if `step` is empty.

    Feedback with work for the phrasebook takes the place of the step or task, and a single path that of a single one.
    Other feedback changes nothing.
    """
    if orders_in(feedback, lead=talk.is_lead) and (not step or step in task):
        return task.replace(step, feedback.strip()) if step else feedback.strip()
    old, new = paths_in(step) or paths_in(task), paths_in(feedback)
    return task.replace(old[0], new[0]) if len(old) == len(new) == 1 else task


def _plan(talk: Conversation, task: str) -> tuple[list[str], list[str], list[str]]:
    """Return the steps of a plan for a task, the files that it names or writes, and its commands.

    If it writes files without running a command, the last steps check these files.
    """
    clauses = understand(task, lead=talk.is_lead)
    orders = [one for one in clauses if one.is_known]
    # What is left of a task in parts must be the same work; so is what else it says, which no part holds.
    apart = len(orders) == len(clauses) > 1 and all(
        len(orders_in(one.clause, lead=talk.is_lead)) == 1 for one in orders
    )
    steps, written, commands = list[str](), list[str](), list[str]()
    for order in orders:
        calls = [
            (step.tool, fill(step.input, [], {**talk.facts(order.clause), **order.words}))
            for step in order.phrase.for_tools(talk.tools).steps
        ]
        files = [given["path"] for tool, given in calls if tool in WRITE_TOOLS]
        run = [given["command"] for tool, given in calls if tool == "bash"]
        written, commands = [*written, *files], [*commands, *run]
        steps += [_as_step(order.clause, [*files, *run])] if apart else []
    steps = steps or [_as_step(task, [*written, *commands])]
    files = list(dict.fromkeys([*paths_in(task), *written]))
    if written and not commands and "bash" in talk.tools:
        commands = [
            f"{_CHECKS.get(path.rpartition('.')[2], 'wc -c')} {shlex.quote(path)}" for path in dict.fromkeys(written)
        ]
        steps += [f"Run `{command}` to check it" for command in commands]
    return steps, files, list(dict.fromkeys(commands))
