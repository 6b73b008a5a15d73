"""Actions on agents, tasks and needs, for every view that selects one: hire, stop, assign, acknowledge and more."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from textual.app import SuspendNotSupported

from crewboard import LEAD, AgentView, ExitCode, HireOptions, Need, Task, TryLaterError, env, pricing
from crewboard.commands.context import command_for
from crewboard.operations import OPERATIONS, Operation, split_text
from crewboard.readmodel.needs import to_acknowledge
from crewboard.readmodel.usage import Bill, bill_agent, bill_team
from crewboard.records.agents import Profile
from crewboard.redaction import is_secret
from crewboard_tui.actions.messaging import keep_unsent
from crewboard_tui.actions.registry import Action, Operations, Selection, aimed, ask_yes, either, for_fitting, not_for
from crewboard_tui.background import run_for_each
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.context import AppContext
from crewboard_tui.drafts import HIRE, TASK, edit_of_task
from crewboard_tui.keymap.bindings import BY_ID
from crewboard_tui.render.lines import clip_middle, one_line

if TYPE_CHECKING:
    from textual.app import App

    from crewboard import TeamView
    from crewboard.commands.put_back import PutBack
    from crewboard.engines import KnownEngine

_NAMED = 3
"""The most files that a question names."""

_PATH = 28
"""The most characters of a path in a question: it has two lines on a screen of 80 cells."""

_FIRST, _FIRST_TASK = "writer", 'Write a file named hello.md that says "hello".'
"""The agent that is proposed if there is no key, and its task, which the offline model understands."""


class AgentActions:
    """The actions on the selected agents. They are in `actions`."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._operations = Operations(context)
        self.actions = (
            for_fitting(
                "agent.answer",
                self._answer,
                lambda agent: bool(agent.asks or _held_by(agent)),
                lambda chosen: "held steps" if chosen.agents and not any(each.asks for each in chosen.agents) else None,
                why_not="{} not waiting for your answer".format,
            ),
            for_fitting("agent.resume", self._resume, _is_resumable, _resume_label, "{} still running".format),
            for_fitting("agent.fresh", self._resume_fresh, _is_over, why_not="{} still running".format),
            Action("agent.acknowledge", self._acknowledge, self._why_not_seen, self._acknowledge_label),
            for_fitting(
                "agent.limit",
                self._raise_limit,
                lambda agent: agent.limit is not None,
                why_not="{} stopped by no limit".format,
            ),
            Action("agent.hire", lambda selection: context.navigator.open_hire_form(selection.show_agent)),
            Action(
                "agent.clone",
                lambda selection: context.navigator.open_hire_form(selection.show_agent, selection.agent),
                _why_no_clone,
            ),
            *(
                action
                for each in OPERATIONS.values()
                if each.keys and not each.composes and not each.is_on_tasks
                for action in self._of(each)
            ),
            PuttingBack(context).action,
        )

    @property
    def _team(self) -> tuple[AgentView, ...]:
        return self._context.view.agents

    def _for_all(
        self, doing: str, names: list[str], command: Callable[[str], str], done: str, selection: Selection
    ) -> None:
        """Run a command for several agents at once, and report the outcome in one sentence."""
        if names:
            self._context.do_for_each(doing, names, command, done)
            selection.unmark(names)

    # -------------------------------------------------------------------------------------------- hire and answer

    def _answer(self, selection: Selection) -> None:
        asks = [request for agent in selection.agents for request in agent.asks]
        held = {ident for agent in selection.agents if (ident := _held_by(agent))}
        asks += [request for request in self._context.view.asked if request.id in held]
        if asks:
            self._context.navigator.open_request(asks[0])

    # -------------------------------------------------------------------------------------------------- operations

    def _of(self, operation: Operation) -> Iterator[Action]:
        """Yield the action of an operation on the selection, and the one on the whole team if there is one."""
        back = OPERATIONS.get(operation.back, operation)

        def way(selection: Selection) -> Operation:
            agents = selection.agents
            return operation if any(map(operation.fits, agents)) or not any(map(back.fits, agents)) else back

        yield for_fitting(
            operation.ident,
            lambda selection: self._do(way(selection), selection, operation.ident),
            lambda agent: operation.fits(agent) or back.fits(agent),
            lambda selection: None if way(selection) is operation else back.label,
            lambda who: operation.why_not and operation.why_not(who, self._context.key),
        )
        if operation.keys_for_all:
            ident = f"{operation.ident}_all"
            yield Action(
                ident, lambda _: self._do(way(Selection(agents=self._team)), Selection(agents=self._team), ident),
                lambda _: None if any(agent.alive for agent in self._team) else "no agent is running",
            )  # fmt: skip

    def _do(self, operation: Operation, selection: Selection, ident: str) -> None:
        """Do an operation on those selected agents that it fits. `ident` is the id of the key that was pressed."""
        fitting = {agent.name: agent for agent in selection.agents if operation.fits(agent)}
        self._operations.do(operation, ident, fitting, selection.unmark)

    # --------------------------------------------------------------------------------------------------- resuming

    def _resume(self, selection: Selection) -> None:
        """Resume agents that have ended; let running agents retry an assignment that failed.

        If one agent is selected, and its model refused, ask for another model.
        """
        if _needs_model(selection):
            agent = selection.agents[0]

            def done(text: str) -> None:
                model = text.strip()

                def retry() -> str:
                    # Imported here, as below, because hiring loads much for which the first picture need not wait.
                    from crewboard.commands import control

                    control.retry_with(self._context.team, agent.name, model=model)
                    return f"{agent.name} tries again with {model}"

                self._context.do(f"starting {agent.name} again", retry)
                selection.unmark([agent.name])

            def check(text: str) -> str | None:
                return None if text.strip() else "name a model, such as opus"

            # Imported here: it knows the words of many servers, and the first picture needs none of them.
            from crewboard import models

            text = (
                models.instead_of(agent.status.refused_by or "", self._context.team.worker_environment) or agent.model
            )
            prompt = PromptLine(f"{agent.name}: model", text, check=check, hint="the model that tries again")
            self._context.navigator.ask(prompt, done)
            return
        failed = [agent.name for agent in selection.agents if _can_retry(agent)]
        self._for_all("letting try again", failed, self._retry_one, "try again", selection)
        ended = [agent for agent in selection.agents if _is_over(agent)]
        if over := [agent.name for agent in ended]:
            refused = any(agent.exit is not None and agent.exit.code == ExitCode.CREDENTIALS for agent in ended)
            self._context.do(f"resuming {', '.join(over)}", partial(self._resume_all, over, refused=refused))
            selection.unmark(over)

    def _retry_one(self, name: str) -> str:
        from crewboard.commands import control

        agent = self._context.view.agent(name)
        control.retry(self._context.team, name)
        if agent is not None and agent.left:
            return f"{name} is told to go on with #{agent.status.unreported}"
        return f"{name} tries again, with the address and key that it has"

    def _resume_all(self, names: list[str], *, refused: bool = False) -> str:
        """Resume agents, and return which are up and which are queued.

        If credentials were `refused` before, also return which address they call now.
        """
        from crewboard.commands import hire, hosts

        waiting: dict[str, list[str]] = {}

        def resume(name: str) -> str:
            run = hire.resume(self._context.team, name)
            if waits := hosts.queued(self._context.team, name, run):
                waiting.setdefault(waits, []).append(name)
            return f"{name} is up again: run {run}, with its memory"

        says = run_for_each(names, resume, "are up again, with their memory")
        queued = "; ".join(f"{', '.join(who)} {'is' if len(who) == 1 else 'are'} {why}" for why, who in waiting.items())
        up = len(names) - sum(map(len, waiting.values()))
        if refused:
            from crewboard import endpoint

            url = endpoint.base_url(self._context.team.worker_environment)
            says += f"; it calls {endpoint.host_and_port(url)} with the key of this dashboard's shell"
        return says if not queued else f"{up} of {len(names)} are up again; {queued}" if up else queued

    def _resume_fresh(self, selection: Selection) -> None:
        specs = {agent.name: agent.spec for agent in selection.agents if _is_over(agent) and agent.spec is not None}

        def start(name: str) -> str:
            from crewboard.commands import hire, hosts, profiles

            spec = specs[name]
            terms, flags = profiles.of_agent(spec), spec.flags.replace(task=None)
            again = hire.Hire(
                name, terms.type, terms.prompt, role=terms.role, model=terms.model, flags=flags, engine=terms.engine
            )
            run = hire.spawn(self._context.team, again).run
            waits = hosts.queued(self._context.team, name, run)
            return f"{name} is {waits}" if waits else f"{name} is up again: run {run}, without memory"

        self._for_all("starting afresh", list(specs), start, "are up again, without memory", selection)

    def _raise_limit(self, selection: Selection) -> None:
        """Ask for a new limit, at first twice the old one, and continue the agent that the limit stopped."""
        agent = next(agent for agent in selection.agents if agent.limit is not None)
        flags, hint = agent.spec.flags if agent.spec is not None else HireOptions(), "the new limit · it then continues"
        if agent.limit == "turns":
            label, text, check = f"{agent.name}: model calls", str(2 * flags.max_turns), _check_turns
        elif agent.limit == "budget":
            label, text, check = f"{agent.name}: budget", _more_than(bill_agent(agent)), _check_budget
        else:
            label, text, check = "the team's budget", _more_than(bill_team(self._context.view)), _check_budget

        def done(answer: str) -> None:
            limit = answer.strip()

            def raise_it() -> str:
                from crewboard.commands import control

                team, name = self._context.team, agent.name
                if agent.limit == "team_budget":
                    resumed = control.raise_team_budget(team, limit)
                    return f"the team may use {limit}" + (f"; {', '.join(resumed)} continue" if resumed else "")
                if agent.limit == "turns":
                    control.raise_limits(team, name, max_turns=int(limit))
                    return f"{name} continues: it may call the model {limit} times"
                if control.raise_limits(team, name, budget=limit) is not None:
                    return f"{name} continues: it may use {limit}"
                return f"{name} may use {limit}, which is used up"

            self._context.do(f"raising the limit of {agent.name}", raise_it)
            selection.unmark([agent.name])

        self._context.navigator.ask(PromptLine(label, text, check=check, hint=hint), done)

    def _seen(self, selection: Selection) -> list[Need]:
        """Return the selected needs that can be acknowledged, else those of the selected agents."""
        view = self._context.view
        needs = selection.needs or tuple(
            need for agent in selection.agents for need in to_acknowledge(view, agent.name)
        )
        # All agents that were lost with one host have the same need.
        return [need for need in dict.fromkeys(needs) if need.is_acknowledgeable]

    def _why_not_seen(self, selection: Selection) -> str | None:
        if self._seen(selection):
            return None
        return "nothing there to acknowledge" if selection.agents or selection.needs else not_for(selection)

    def _acknowledge_label(self, selection: Selection) -> str | None:
        names = list(dict.fromkeys(need.agent for need in self._seen(selection)))
        return aimed(BY_ID["agent.acknowledge"].label, names) if selection.marked and names else None

    def _acknowledge(self, selection: Selection) -> None:
        needs = self._seen(selection)
        names = list(dict.fromkeys(f"#{need.task}" if need.task else need.agent for need in needs))

        def acknowledge() -> str:
            from crewboard.commands import messages

            for need in needs:
                if need.marks:
                    about = f"#{need.task}" if need.task else need.agent
                    messages.acknowledge_marks(self._context.team, dict(need.marks), about)
                else:
                    for name in need.agents or (need.agent,):
                        messages.acknowledge(self._context.team, name)
            one = needs[0]
            what = f"{one.agent} {one.summary}" if len(needs) == 1 and not one.task else ", ".join(names)
            return f"acknowledged: {what}"

        if needs:
            self._context.do("acknowledging", acknowledge)
            selection.unmark([need.agent for need in needs])


class Part(Struct, frozen=True):
    """A file that an agent changed in its checkout, or one hunk of it, counted from 1, in the snapshot `commit`."""

    path: str
    hunk: int | None
    commit: str


class PuttingBack:
    """The action that puts files back: all that an agent changed in its last assignment, or the selected `part`.

    It first shows which files these are, and asks. `then` is called when files were put back. `changed_nothing` returns
    True for an agent that is known to have changed nothing.
    """

    def __init__(
        self,
        context: AppContext,
        ident: str = "agent.put_back",
        part: Callable[[], Part | None] = lambda: None,
        then: Callable[[], None] = lambda: None,
        changed_nothing: Callable[[AgentView], bool] = lambda _: False,
    ) -> None:
        self._context = context
        self._part = part
        self._then = then
        self._changed_nothing = changed_nothing
        self.action = Action(ident, self._check, self._why_not, self._label)

    def _why_not(self, selection: Selection) -> str | None:
        agent = selection.agent
        if agent is None:
            return not_for(selection)
        # What works now may change its files at any moment.
        if agent.alive and agent.state != "idle":
            return f"{agent.name} is {agent.state}: wait for it, or stop it"
        return f"{agent.name} changed nothing" if self._changed_nothing(agent) else None

    def _label(self, _: Selection) -> str | None:
        part = self._part()
        return None if part is None else f"put {'file' if part.hunk is None else 'hunk'} back"

    def _check(self, selection: Selection) -> None:
        """Find out in a thread which files would be put back, and then ask whether to do it."""
        agent, part = selection.agent, self._part()
        if agent is None:
            return
        found: list[PutBack] = []

        def check() -> str:
            found.append(self._undo(agent, part, dry_run=True))
            return ""

        def put_back() -> str:
            """Put back exactly the files that were shown; refuse if they have changed since."""
            seen, again = found[0], self._undo(agent, part, dry_run=True)
            if (again.files, again.assignment) != (seen.files, seen.assignment):
                raise TryLaterError(f"nothing was put back: the files of {agent.name} have just changed")
            made = self._undo(agent, part, dry_run=False)
            if made.snapshot is None:
                return f"put back {_files_of(made)}"
            before = command_for(self._context.team, f"undo {agent.name} --snapshot {made.snapshot[:12]}")
            return f"put back {_files_of(made)}; `{before}` brings it back"

        def start() -> None:
            self._context.do(f"putting files of {agent.name} back", put_back, lambda *_: self._then())

        def done(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if worked:
                what, seen = "its last assignment", found[0]
                if part is not None:
                    what = f"{f'hunk {part.hunk} of ' if part.hunk is not None else ''}{_short(part.path)}"
                rest = " · what its commands changed stays" if seen.snapshot is None else ""
                ask_yes(self._context, f"{agent.name}: put {what} back?", f"{_files_of(seen)}{rest}", start)

        self._context.do(f"finding out what can be put back of {agent.name}", check, done)

    def _undo(self, agent: AgentView, part: Part | None, *, dry_run: bool) -> "PutBack":
        # Imported here because it loads sandbox and git, for which the first picture need not wait.
        from crewboard.commands import put_back

        team = self._context.team
        if agent.spec is None or agent.spec.worktree is None:
            return put_back.undo_file_tools(team, agent.name, dry_run=dry_run)
        if part is None:
            return put_back.undo_in_checkout(team, agent.name, dry_run=dry_run)
        found = put_back.undo_in_checkout(team, agent.name, path=part.path, hunk=part.hunk, dry_run=dry_run)
        if dry_run and found.snapshot != part.commit:
            again = self._context.key("changes.read")
            raise TryLaterError(f"{agent.name} has changed files since this was read; {again} reads them again")
        return found


def _short(path: str) -> str:
    return clip_middle(one_line(path), _PATH)


def _files_of(made: "PutBack") -> str:
    """Return the names of the first files, and how many more there are."""
    names = [f"{_short(each.path)}{' (removed)' if each.removed else ''}" for each in made.files[:_NAMED]]
    more = len(made.files) - _NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


class TaskActions:
    """The actions on the selected task. They are in `actions`."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._operations = Operations(context)
        of_operations = {
            each.ident: self._of(each, each.ident) for each in OPERATIONS.values() if each.is_on_tasks and each.keys
        }
        self.actions = tuple({**of_operations, "task.new": Action("task.new", self._new)}.values())
        self.reopen = of_operations["task.reopen"]
        self.retry = self._of(OPERATIONS["task.retry"], "agent.resume")
        """The action that reopens a failed task for the agent that had it.

        `NeedActions` offers it in place of `agent.resume`.
        """

    def _new(self, selection: Selection) -> None:
        from crewboard_tui.compose.draft_input import Prose

        def done(text: str) -> None:
            if text.strip():
                self._context.drafts.pop(TASK, None)
                operation, made = OPERATIONS["task.new"], list[int]()
                keys = self._context.reading.keys
                sent_at = keys.key_at

                def add() -> str:
                    done = operation.run(self._context.team, text)
                    made.append(done.data["id"])
                    return done.says + operation.after(done, self._context.key)

                def added(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
                    # After another key the cursor stays where the user is: the next one may act there.
                    if worked and keys.key_at == sent_at:
                        selection.show_task(made[0])

                unsent = keep_unsent(self._context, lambda: TASK, text)
                self._context.do(operation.doing, add, added, settle=unsent)

        keep = partial(self._context.drafts.put, TASK)
        hint, prose = self._text_hint("adds it"), Prose.of(self._context)
        prompt = PromptLine(TASK, lambda: self._context.drafts.get(TASK, ""), hint=hint, changed=keep, prose=prose)
        self._context.navigator.ask(prompt, done)

    def _edit(self, task: Task) -> None:
        operation, drafts = OPERATIONS["task.edit"], self._context.drafts
        from crewboard_tui.compose.draft_input import Prose

        name, shown = edit_of_task(task.id), as_text(task.subject, task.description)

        def keep(text: str) -> None:
            if text == shown:
                drafts.pop(name, None)
            else:
                # Also if nothing is left of it: without a draft, the line would begin anew with what is shown.
                drafts[name] = text

        def save(text: str) -> str:
            done = operation.run(self._context.team, task.id, shown, text)
            return done.says + operation.after(done, self._context.key)

        def done(text: str) -> None:
            drafts.pop(name, None)
            if text != shown:
                settle = keep_unsent(self._context, lambda: name, text)
                self._context.do(f"{operation.doing} #{task.id}", partial(save, text), settle=settle)

        prompt = PromptLine(
            f"#{task.id}", lambda: drafts.get(name, shown), hint=self._text_hint("saves"), changed=keep,
            check=lambda text: None if split_text(text)[0] else "the first line is the subject",
            prose=Prose.of(self._context),
        )  # fmt: skip
        self._context.navigator.ask(prompt, done)

    def _text_hint(self, sends: str) -> str:
        send, line, edit, leave = map(self._context.key, ("draft.send", "draft.newline", "draft.edit", "line.leave"))
        return f"{send} {sends} · {line} adds a line: the description · {edit} editor · {leave} keeps it"

    def _of(self, operation: Operation, ident: str) -> Action:
        """Return the action of an operation on those selected tasks that it fits; `ident` is the id of its key."""

        def fitting(selection: Selection) -> dict[str, Task]:
            return {f"#{task.id}": task for task in selection.marked_tasks if operation.fits(task)}

        def act(selection: Selection) -> None:
            if found := fitting(selection):
                if operation.ident == "task.edit":
                    self._edit(next(iter(found.values())))
                else:
                    self._operations.do(operation, ident, found, selection.unmark)

        def available(selection: Selection) -> str | None:
            if operation.one and len(selection.tasks) > 1:
                return "one task at a time"
            if fitting(selection):
                return None
            states = dict.fromkeys(task.status.replace("_", " ") for task in selection.marked_tasks)
            return f"not while it is {' or '.join(states)}" if states else "select a task first"

        def label(selection: Selection) -> str | None:
            found = list(fitting(selection))
            return aimed(BY_ID[ident].label, found) if len(selection.tasks) > 1 and found else None

        return Action(ident, act, available, label)


def as_text(subject: str, description: str) -> str:
    """Return a task as one text to edit: the subject is the first line, the description follows."""
    from crewboard_tui.compose.draft_input import clean

    return "\n".join(filter(None, (clean(subject, one_line=True).strip(), clean(description).strip())))


class NeedActions:
    """The actions on selected needs: on their agents, on failed tasks and on marked permissions. They are in `actions`.

    The views of tasks and of an agent offer them, too, because a task that is selected there may have failed.
    `approve` is the action that approves marked permissions, in a list where several can be marked.
    """

    def __init__(self, context: AppContext, approve: Action | None = None) -> None:
        tasks, agents = TaskActions(context), AgentActions(context)
        by_id = {action.id: action for action in (*tasks.actions, *agents.actions)}
        answer = either(by_id["task.assign"], by_id["agent.answer"], BY_ID["task.assign"].label)
        self.actions = (
            either(tasks.retry, by_id["agent.resume"], "retry"),
            either(approve, answer, BY_ID["request.approve"].label) if approve is not None else answer,
            tasks.reopen,
            *agents.actions,
        )


def _is_over(agent: AgentView) -> bool:
    return not agent.alive and (agent.state != "starting" or agent.failed_start)


def _can_retry(agent: AgentView) -> bool:
    """Return True if the agent runs, and its last assignment failed, but by no limit, or left its task unreported."""
    ended_badly = agent.status.failed is not None or agent.status.unreported is not None
    return agent.alive and ended_badly and agent.limit is None


def _is_resumable(agent: AgentView) -> bool:
    return _is_over(agent) or _can_retry(agent)


def _needs_model(selection: Selection) -> bool:
    """Return True if one agent is selected, and its model refused its last assignment."""
    return len(selection.agents) == 1 and selection.agents[0].status.refused_by is not None


def _held_by(agent: AgentView) -> str:
    """Return the id of the plan in whose approval steps of the agent are held; empty if none are."""
    return agent.status.terms.request if agent.status.terms is not None and agent.status.terms.given.hold else ""


def _resume_label(selection: Selection) -> str | None:
    if _needs_model(selection):
        return "other model"
    found = [agent for agent in selection.agents if _is_resumable(agent)]
    return "retry" if found and all(map(_can_retry, found)) else None


def _check_turns(text: str) -> str | None:
    return None if text.strip().isdecimal() and int(text) > 0 else "give a number of model calls, such as 200"


def _check_budget(text: str) -> str | None:
    return None if pricing.budget_or_none(text) is not None else "give money as $5 or tokens as 200k"


def _more_than(bill: Bill) -> str:
    """Return twice a budget as a suggestion, or twice what was used if that is more; empty without a budget."""
    if bill.budget is None:
        return ""
    if bill.budget.usd is not None:
        return f"${2 * max(bill.budget.usd, round(bill.usd or 0, 2)):g}"
    return str(2 * max(bill.budget.tokens or 0, bill.tokens.total))


def _why_no_clone(selection: Selection) -> str | None:
    agent = selection.agent
    if agent is None or agent.spec is None:
        return not_for(selection)
    return f"{agent.name} is a lead, which is not cloned" if agent.type == LEAD else None


class FirstSteps:
    """What an empty Board offers if there is no key, or offline: the offline model, the demo, an engine.

    The offers are in `actions`, and as lines in `words`. `app` returns the app, whose terminal the demo takes.
    `lacks_key` returns True if there is neither a key nor an agent. `chosen` is called, as a job calls it, once the
    user chose the offline model or an engine.
    """

    def __init__(
        self,
        context: AppContext,
        app: Callable[[], "App[object]"],
        lacks_key: Callable[[], bool],
        chosen: Callable[[bool, str], None],
    ) -> None:
        self._context, self._app, self._lacks_key, self._chosen = context, app, lacks_key, chosen
        self.actions = (
            Action("agent.offline", self._try_offline, lambda _: None if self.offered else self._why_not_offline()),
            Action(
                "agent.demo",
                self._show_demo,
                lambda _: None if self.offered else "`crewboard demo` shows a team at work",
            ),
            Action("agent.engine", self._use_engine, self._why_no_engine),
        )

    @cached_property
    def _engine(self) -> "KnownEngine | None":
        """Return an engine that is installed here, if possible one with a login or a key; None if there is none."""
        from crewboard import engines

        found = [each.engine for each in engines.find_all(self._context.team.directory.root) if each.path is not None]
        return min(found, key=lambda each: bool(engines.needed_login(each)), default=None)

    @property
    def offered(self) -> bool:
        """Return True on an empty board on which the first agent would have no key, or needs none."""
        return self._lacks_key() or (self._context.team.offline and not self._context.view.agents)

    @property
    def words(self) -> list[str]:
        """Return the offers as lines, each with its key."""
        said = [
            f"{self._context.key('agent.offline')}  hires an agent on the offline model, in this folder",
            f"{self._context.key('agent.demo')}  shows the demo",
        ]
        if self._lacks_key() and self._engine is not None:
            said.append(f"{self._context.key('agent.engine')}  uses your {self._titled(self._engine)}")
        return said

    def _titled(self, engine: "KnownEngine") -> str:
        """Return the title of an engine, and how to log in if that is needed."""
        from crewboard import engines

        login = engines.needed_login(engine)
        return engine.title + (f", once you log in with {login}" if login else "")

    async def _try_offline(self, selection: Selection) -> None:
        """Open the hire form with a task that the offline model understands.

        No file is written before the agent is hired.
        """
        context = self._context
        context.team = replace(context.team, environment={**context.team.environment, env.OFFLINE: "1"})
        self._chosen(True, "")  # noqa: FBT003  as a job calls it
        context.coach = _coach
        from crewboard.commands import hire

        # In a checkout of its own, so that there is something to merge.
        worktree = await asyncio.to_thread(hire.can_have_worktree, context.team)
        # A prompt that was not sent stays.
        context.drafts.setdefault(HIRE, _FIRST_TASK)
        context.unsent_hire = _FIRST, Profile(type="code", flags=HireOptions(plan=True, worktree=worktree))
        await context.navigator.open_hire_form(selection.show_agent)

    def _why_not_offline(self) -> str:
        if self._context.team.offline:
            return f"new agents use the offline model already: {self._context.key('agent.hire')} hires one"
        return "`crewboard --offline` starts with the offline model"

    def _show_demo(self, _: Selection) -> None:
        try:
            with self._app().suspend():
                command = [sys.executable, "-I", "-m", "crewboard_tui.cli", "demo"]
                # It has no use for credentials.
                shown = {name: value for name, value in os.environ.items() if not is_secret(name)}
                subprocess.run(command, env=shown, check=False)
        except SuspendNotSupported:
            self._context.say("only in a terminal: `crewboard demo`", "warning")

    def _why_no_engine(self, _: Selection) -> str | None:
        if not self._lacks_key():
            return "`crewboard settings engine` chooses one"
        return None if self._engine is not None else "neither Claude Code nor Codex is here: `crewboard engines`"

    def _use_engine(self, _: Selection) -> None:
        engine, team = self._engine, self._context.team
        if engine is None:
            return

        def use() -> str:
            from crewboard.commands import settings

            settings.change_setting(team.ensure(), "engine", engine.name)
            return f"new agents work with {self._titled(engine)}"

        self._context.do("choosing the engine", use, self._chosen)


def _coach(view: "TeamView", shown: str | None, key: Callable[[str], str]) -> list[str]:
    """Return lines that say what to try next with the first agent; `shown` is the key of the need on the screen."""
    plan = next((need for need in view.needs if need.kind == "plan"), None)
    if plan is not None:
        here = f"2/3 Space reads on to the end, then {key('request.approve')} approves exactly this"
        return [here if shown == plan.key else f"1/3 {plan.agent} waits for a yes. {key('app.next')} opens its plan"]
    first = view.agents[0] if view.agents and view.answered else None
    if first is None or first.shown != "idle":
        return []
    if first.spec is None or first.spec.worktree is None:
        return [f"3/3 {first.name} is done. {key('list.open')} opens its page"]
    merge = f"3/3 {key('app.changes')} shows its work, {key('changes.accept')} merges it into your branch"
    return [merge] if first.unmerged is not None else []
