"""The page that hires an agent: a form, what the agent could do and cost, and the command that does the same."""

import os
from collections.abc import Callable, Iterable

from textual import events, on
from textual.widget import Widget
from textual.widgets import Input, TextArea

from crewboard import AgentView, CrewboardError, HireOptions, UsageError, agent_types, env, models, type_files
from crewboard.commands import accept as commands_accept
from crewboard.commands import context as commands_context
from crewboard.commands import hire as commands_hire
from crewboard.commands import hosts, profiles
from crewboard.commands.context import CommandLine
from crewboard.records.agents import Profile
from crewboard_tui.actions.registry import Action, Selection
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.drafts import HIRE
from crewboard_tui.render.formats import format_path
from crewboard_tui.render.lines import Line, Span, hang, say
from crewboard_tui.views.base import TALL, AppContext, BaseScreen, Snapshot, why_gone
from crewboard_tui.views.hire_form import HireForm, Problem, free_name, problems, shell_line, spawn_words
from crewboard_tui.widgets.bars import StaticLines, crumbs_line
from crewboard_tui.widgets.form import Checkbox, Select

_BUSY = "not while the form opens or hires"


class HireScreen(BaseScreen):
    """The hire form. `^s` hires; the form stays open until the agent is on the team, and shows why if it is refused.

    With `like`, the form starts with the options of that agent, with `host` with that host. `hired` is called with the
    name of the new agent.
    """

    CSS_PATH = "hire.tcss"
    IS_FORM = True
    AUTO_FOCUS = "#hire-name"

    def __init__(
        self, context: AppContext, hired: Callable[[str], None], like: AgentView | None = None, host: str = ""
    ) -> None:
        super().__init__(context)
        self._hired = hired
        kept = context.drafts.claim(HIRE)
        spec = like.spec if like is not None else None
        name, terms = context.unsent_hire or ("", Profile(type="code"))
        if host:
            terms = terms.replace(flags=terms.flags.replace(host=host))
        name = like.name if like is not None else name or "agent1"
        self._types, self._skipped = type_files.find_all(context.team.directory.root)
        if spec is None:
            profile = terms.replace(prompt=kept)
        else:
            profile, team = profiles.of_agent(spec), context.team
            kind = self._types.get(profile.type)
            # An agent of its type gets this model anyway.
            if kind is not None and profile.model == commands_hire.choose_model(
                kind, None, team.worker_environment, team.config
            ):
                profile = profile.replace(model=None)
        self._first = free_name(context.view, name), profile
        self._is_clone = like is not None
        self._is_new = like is None and context.unsent_hire is None
        self._kept_elsewhere = "" if spec is None else kept
        """An unsent prompt that is stored but not shown in this form."""
        self._shown_type = ""
        """The hash of the project's own type whose rights the user has seen in full; sending again accepts it."""
        self.form = HireForm(self._first[0], self._types, context.view, context.team, context.key)
        self._word = StaticLines(id="hire-word")
        self._busy = False
        self._awaited: tuple[str, int, float] | None = None
        """The agent that is being hired: its name, its last run before, and the start of the hire (epoch seconds)."""
        self._is_sent = False
        self._refused: str | None = None
        self._typed = CommandLine.of(context.team)
        self._profiles_folder = profiles.folder(os.environ)
        self.offer(
            (
                Action("hire.send", lambda _: self._send(), self._why_no_send),
                Action("hire.cancel", lambda _: self.back()),
                Action("hire.save", lambda _: self._save_profile(), self._why_no_profile),
                Action("hire.load", lambda _: self._load_profile(), self._why_no_profile),
            )
        )

    @property
    def focus_chain(self) -> list[Widget]:
        """Return the fields in the order of the form: Textual would put a field that has no place yet first."""
        order = {field: at for at, field in enumerate(self.walk_children(Widget))}
        return sorted(super().focus_chain, key=order.__getitem__)

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        return crumbs_line([snapshot.view.name, "Hire an agent"], "", width)

    def body(self) -> Iterable[Widget]:
        yield self.form
        yield self._word

    def on_mount(self) -> None:
        self._fill(*self._first, is_new=self._is_new)
        for file in self._skipped[:1]:
            more = f" and {len(self._skipped) - 1} more" if len(self._skipped) > 1 else ""
            self.context.say(f"skipped {file.path.name}{more}: {file.why}", "warning")

    # ------------------------------------------------------------------------------------------- what it says

    def paint(self, snapshot: Snapshot) -> None:
        self.form.paint(snapshot.view)
        self._say_word()
        if self._awaited is not None and self.is_current:
            name, before, since = self._awaited
            # Its worker, and an engine even more, take seconds to start. Its row shows that.
            if _last_run(snapshot, name) > before:
                self._awaited = None
                self._go_on(name, since)

    def _say_word(self) -> None:
        wrong = self.problems()
        marked = self.form.mark(wrong)
        key = self.context.key("hire.send")
        send = Span(key, "key")
        status: Line
        if self._busy:
            status = (Span("it is coming up …", "info"),)
        elif self._refused:
            status = (say(self._refused, "error"),)
        elif wrong:
            # The first problem that no marked field has.
            what = f"fix the {' and the '.join(marked)}" if marked else wrong[0].says
            status = (send, Span(" hires, not yet: "), say(what, "error"))
        elif self.form.is_accepted:
            status = (Span("✓ ready:", "success"), Span(f" {key} hires it ", "success-pill", "hire.send"))
        elif self.form.kind.sha256 == self._shown_type:
            status = (send, Span(f" again accepts {self.form.kind.name} and hires", "warning"))
        else:
            status = (Span("the type is not accepted yet: ", "warning"), send, Span(" shows all that it may do"))
        width = max(10, self.size.width - 2)
        word = hang((Span("  "), *status), width, 2, 2)
        is_tall = self.size.height >= TALL
        command = hang((Span("  $ ", "dim"), say(self.command(), "dim")), width, 4, 2 if is_tall else 1)
        told = [piece for text in self.form.consequences() for piece in hang((Span("  "), say(text)), width, 2, 2)]
        self._word.show([*told, *command, *word] if is_tall else [*word, *command])
        self.refresh_bindings()

    def problems(self) -> list[Problem]:
        """Return the problems because of which the agent cannot be hired yet; empty if it can."""
        gone = why_gone(self.context)
        wrong = [Problem("team", gone)] if gone is not None else []
        try:
            hire = self.form.hire()
        except UsageError as error:
            hire = self.form.hire(max_turns=1)
            wrong.append(Problem("limits", str(error)))
        if self.form.refused_effort is not None:
            wrong.append(Problem("limits", self.form.refused_effort))
        if self.form.refused_engine is not None:
            wrong.append(Problem("engine", self.form.refused_engine))
        return [*wrong, *self.form.wrong_fields(), *problems(hire, self.context.view, self.context.key)]

    def command(self) -> str:
        """Return the command line that hires the same agent; an incomplete one while a field is wrong."""
        try:
            if self.form.wrong_fields():
                return self._typed("spawn …")
            return shell_line(spawn_words(self.form.hire(), self._typed, foreground=self.form.foreground))
        except CrewboardError:
            return self._typed("spawn …")

    # ------------------------------------------------------------------------------------------------ events

    @on(Input.Changed)
    @on(TextArea.Changed)
    @on(Checkbox.Changed)
    @on(Select.Changed)
    def _edited(self) -> None:
        self._refused = None
        self.paint(self.context.snapshot)

    @on(events.DescendantFocus, "#hire-effort, #hire-thinking")
    def _learn_model(self) -> None:
        """Ask the API once which effort and thinking the chosen model takes, before the user chooses."""
        model, environment, known = self.form.model, self.context.team.worker_environment, self.form.capabilities
        if model in known:
            return
        if env.is_offline(environment):
            known[model] = models.ask(model, environment)
            self.paint(self.context.snapshot)
        elif commands_context.has_key(environment):
            known[model] = None

            def ask() -> str:
                """Ask in a thread. Without an answer, all choices are offered."""
                known[model] = models.ask(model, environment)
                return ""

            def learned(*_: object) -> None:
                if self.is_attached:
                    self.paint(self.context.snapshot)

            self.context.jobs.start(f"asking what {model} takes", ask, learned)

    def action_next_field(self) -> None:
        self.focus_next()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "next_field":
            return not isinstance(self.focused, TextArea)
        return super().check_action(action, parameters)

    def _why_no_send(self, _: Selection) -> str | None:
        if not self.is_ready or self._busy:
            return _BUSY
        return next((each.says for each in self.problems()), None)

    def _why_no_profile(self, _: Selection) -> str | None:
        return _BUSY if self._busy else None

    def take(self, character: str) -> None:
        field = self.focused
        if isinstance(field, Input):
            # Insert it as if typed, so that it replaces the proposed name, which is selected.
            field.replace(character, *field.selection)
        elif field is None:
            self.call_after_refresh(self.take, character)

    def leave(self) -> None:
        self.keep_drafts()
        if self.is_ready and not self._is_clone and not self._is_sent:
            try:
                terms = self.form.profile()
            except UsageError:
                terms = self.form.profile(max_turns=HireOptions().max_turns)
            self.context.unsent_hire = self.form.agent_name, terms
        if self._is_written and HIRE in self.context.drafts and not self._busy:
            self.context.say(f"not hired; {self.context.key('agent.hire')} shows the prompt again")
        super().leave()

    @property
    def _is_written(self) -> bool:
        """Return True if the prompt was changed since the form was opened."""
        return self.is_ready and self.form.prompt != self._first[1].prompt

    def keep_drafts(self) -> None:
        """Store an unsent prompt for the next hire."""
        if self._is_written and not self._is_sent:
            self._keep(self.form.prompt, self._kept_elsewhere)

    def _keep(self, *prompts: str) -> None:
        self.context.drafts.put(HIRE, "\n\n".join(prompt for prompt in prompts if prompt.strip()))

    def _must_show(self, kind: agent_types.AgentType) -> bool:
        """Return True, and show what the type may do, if the user must accept it and did not see all of it yet."""
        if type_files.is_accepted(kind, self.context.team.environment):
            return False
        if kind.sha256 == self._shown_type and self.form.is_warning_visible:
            return False
        self._types[kind.name] = kind
        self._shown_type = ""
        self.paint(self.context.snapshot)
        self.form.scroll_to_warning()
        self.call_after_refresh(self._count_as_shown, kind)
        return True

    def _count_as_shown(self, kind: agent_types.AgentType) -> None:
        """Let sending again accept a type, if all that the type may do is on the screen; else say why not."""
        if kind == self.form.kind and self.form.is_warning_visible:
            self._shown_type, self._refused = kind.sha256, None
        else:
            accept = self._typed(f"types trust {kind.name}")
            self._refused = f"what {kind.name} may do does not fit: enlarge the terminal, or run `{accept}`"
        self._say_word()

    def _send(self) -> None:
        hire = self.form.hire()
        # Read again: what is accepted is the file as it is now.
        kind = type_files.find_all(self.context.team.directory.root)[0].get(hire.type)
        if kind is not None and self._must_show(kind):
            return
        self._busy = True
        self._say_word()
        since = self.context.now
        self._awaited = hire.name, _last_run(self.context.snapshot, hire.name), since

        def spawn() -> str:
            """Accept the type if its rights were shown, and hire the agent, in a thread."""
            if kind is not None and kind.sha256 == self._shown_type != "":
                commands_accept.accept(self.context.team, kind)
            assignment = commands_hire.spawn(self.context.team, hire)
            waits = hosts.queued(self.context.team, assignment.agent, assignment.run)
            return f"hired {assignment.agent}: {waits or f'run {assignment.run} is up'}"

        def forget_prompt(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if worked:
                self._is_sent = True
                self.context.unsent_hire = None
                self._keep(self._kept_elsewhere)

        def came_back(worked: bool, says: str) -> None:  # noqa: FBT001
            self._busy, awaited, self._awaited = False, self._awaited, None
            if worked:
                self._hired(hire.name)
            if not self.is_attached or awaited is None:
                return
            if worked and self.is_current:
                self._go_on(hire.name, since)
            else:
                self._refused = None if worked else says
                self._say_word()

        self.context.do(f"hiring {hire.name}", spawn, came_back, settle=forget_prompt)

    def _go_on(self, name: str, since: float) -> None:
        navigator = self.context.navigator
        if self.form.foreground:
            navigator.watch_agent(name, since)
        else:
            self.dismiss()
            # On to the Board, where the new agent is.
            navigator.call_later(navigator.open_view, "board", name)

    # ---------------------------------------------------------------------------------------------- profiles

    def _save_profile(self) -> None:
        try:
            profile = self.form.profile()
        except UsageError as error:
            self.context.say(str(error), "error")
            return

        def done(name: str) -> None:
            def save() -> str:
                path = profiles.save(self._profiles_folder, name.strip(), profile)
                return f"kept as {name.strip()}, without a key, in {format_path(path)}"

            self.context.do(f"keeping the profile {name}", save)

        def check(name: str) -> str | None:
            return profiles.why_not(name.strip(), profile)

        names = list(profiles.load(self._profiles_folder).profiles)
        hint = f"{self.context.key('draft.send')} keeps it"
        self.context.navigator.ask(PromptLine("keep as profile", check=check, names=names, hint=hint), done)

    def _load_profile(self) -> None:
        kept = profiles.load(self._profiles_folder)
        damaged = f"damaged, left out: {', '.join(kept.damaged)}" if kept.damaged else ""
        if not kept.profiles:
            self.context.say(
                damaged or f"no profile is kept yet: {self.context.key('hire.save')} keeps this form as one", "warning"
            )
            return
        if damaged:
            self.context.say(damaged, "warning")

        def done(name: str) -> None:
            chosen, profile = self.form.agent_name, name.strip()
            untouched = chosen in ("", self._first[0])
            self.context.say(f"filled from the profile {profile}")
            view = self.context.view
            self._fill(free_name(view, profile) if untouched else chosen, kept.profiles[profile])

        def check(name: str) -> str | None:
            return None if name.strip() in kept.profiles else f"the profiles are {', '.join(kept.profiles)}"

        self.context.navigator.ask(PromptLine("load profile", check=check, names=list(kept.profiles)), done)

    def _fill(self, name: str, profile: Profile, *, is_new: bool = False) -> None:
        self.form.fill(name, profile, is_new=is_new)
        if profile.type not in self._types:
            self.context.say(f"there is no type {profile.type} in this project: choose another", "error")


def _last_run(snapshot: Snapshot, name: str) -> int:
    agent = snapshot.view.agent(name)
    return agent.spec.run if agent is not None and agent.spec is not None else 0
