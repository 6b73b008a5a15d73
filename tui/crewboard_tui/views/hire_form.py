"""The fields of the hire form, their checks, and the command line that does the same."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Input, Label, TextArea

from crewboard import (
    Hire,
    HireOptions,
    TeamView,
    UsageError,
    agent_types,
    engines,
    env,
    mcp_servers,
    models,
    pricing,
    type_files,
    web,
)
from crewboard.commands import hire as commands_hire
from crewboard.commands.context import NONE, CommandLine, Team, has_key
from crewboard.names import check_agent
from crewboard.readmodel.states import why_no_host
from crewboard.records.agents import Effort, Profile, Thinking
from crewboard.store import hosts, roster
from crewboard.store.tasks import CLOSED, blockers, check_type
from crewboard.untrusted import on_one_line
from crewboard_tui.compose.draft_input import Editor
from crewboard_tui.keymap.bindings import Pressed, bindings_of, default_key
from crewboard_tui.render.lines import one_line
from crewboard_tui.render.sanitize import has_hidden, safe_line, safe_text
from crewboard_tui.widgets.form import Checkbox, Fold, Radio, Section, SegmentedControl, Select
from crewboard_tui.widgets.painter import Frame

_FOREGROUND = "foreground"
_MOST_DIGITS = 9
_LONGEST_STEM = 28
_MARKED = ("name", "engine", "limits", "memory", "domains", "labels")
"""Fields with space below for an error message."""

_FOLDED = frozenset({"engine", "limits", "memory", "labels"})
"""Fields that are hidden until one of them is wrong."""

_TICKS = ("plan", "strict_plan", "ask", "network", "autoclaim", "once", "restart")
"""The options with a checkbox, except those for which a type has its own default."""

_MODEL = ("", "none: a model")
"""The option that means no engine: its value and its label."""

_ANY_DOMAIN = "any domain; or only some: docs.python.org pypi.org"
_ABOUT_WEB = "the API searches without asking you; queries leave this machine"


class Problem(NamedTuple):
    """A reason why the agent cannot be hired yet, and the field to correct."""

    field: str
    says: str


class Field(Input):
    """A one-line field; Enter goes to the next field."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("form")]

    def __init__(
        self, ident: str, placeholder: str = "", value: str = "", *, suggester: Suggester | None = None
    ) -> None:
        super().__init__(value, id=ident, compact=True, placeholder=placeholder, suggester=suggester)

    def _on_paste(self, event: events.Paste) -> None:
        # Textual, whose handler is called next, takes the first line and drops the others.
        event.text = " ".join(event.text.splitlines())


class SuggestWords(Suggester):
    """Suggests one of `words` to complete the last word of a field."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(use_cache=False)
        self._words = words

    async def get_suggestion(self, value: str) -> str | None:
        before, space, last = value.rpartition(" ")
        fitting = (word for word in self._words if last and word.startswith(last) and word not in before.split())
        found = next(fitting, None)
        return f"{before}{space}{found}" if found is not None else None


class Prompt(Editor):
    """The prompt field; Enter adds a line, Tab goes to the next field."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("prompt", "text")]

    def __init__(self, placeholder: str) -> None:
        super().__init__(id="hire-prompt", compact=True, soft_wrap=True, tab_behavior="focus", placeholder=placeholder)


class HireForm(Frame):
    """The options of `spawn` as fields; `pressed` returns how the key with an id is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("form")]

    def __init__(
        self, name: str, types: Mapping[str, agent_types.AgentType], view: TeamView, team: Team, pressed: Pressed
    ) -> None:
        super().__init__(id="form", classes="pane")
        self._unaccepted = ""
        self._pressed = pressed
        self._first_name = name
        self._types = types
        self._view = view
        self._environment = team.worker_environment
        self._team = team
        self._config = team.config
        self._engines = [each for each in engines.find_all(team.directory.root) if each.path is not None]
        self._engine = ""
        """The engine that the form was filled with; it may not be installed here."""
        self._had_engine: str | None = None
        """The usual engine of the last painted type, to tell whether the user made another choice."""
        self._on_hosts = view.supervisor.hosts is not None
        """True if the team has or had hosts, which start its agents."""
        self._host = ""
        """The host that the form was filled with; it may not be up."""
        self._stated_size: tuple[int | None, int | None] = (None, None)
        """The context window and the longest reply that the form was filled with. It has no fields for them."""
        self.capabilities: dict[str, models.Capabilities | None] = {}
        """What the API said about models, by their names; None while it is asked, or if it did not answer."""
        self._had = {"worktree": False, "web": False}
        """The defaults of the last painted type, for the checkboxes that the user did not change."""
        self.rule.entitle("Who?")

    def compose(self) -> ComposeResult:
        # Set now, so that the name is selected on focus and typing replaces it.
        yield _row("Name", Field("hire-name", value=self._first_name))
        yield _row("", Label("", classes="wrong"), id="wrong-name")
        yield _row("Type", SegmentedControl([(name, name) for name in self._types], id="hire-type"))
        yield _row("", Label("", id="hire-may"))
        yield _row("", Label("", id="hire-unaccepted"), id="row-unaccepted")
        yield _row("Role", Field("hire-role", "its role in a few words"))
        yield Section("What shall it do?")
        on = self._pressed("prompt.next")
        yield _row("Prompt", Prompt(f"its task; {on} goes on"), classes="-tall-row")
        yield Section("How far may it go alone?")
        plan, strictly = (
            Checkbox("an approved plan first", id="hire-plan"),
            Checkbox("nothing beyond it", id="hire-strict_plan"),
        )
        yield _row("Require", plan, strictly)
        yield _row("", Checkbox("my approval of each write and command", id="hire-ask"), id="row-ask")
        network, searches = Checkbox("network", id="hire-network"), Checkbox("web: sends data out", id="hire-web")
        yield _row("Allow", network, searches)
        yield _row("Web", Field("hire-domains"), id="row-domains")
        yield _row("", Label(_ABOUT_WEB, classes="aside"), id="row-web")
        yield _row("", Label("", classes="wrong"), id="wrong-domains")
        yield _row("Where", Checkbox("own checkout", id="hire-worktree"), id="row-own")
        yield Fold("More", self._pressed("tick.turn"), id="hire-more")
        yield _row("", Label("", classes="aside", id="hire-values"), id="row-values")
        with Vertical(id="more"):
            modes = [("", "background"), (_FOREGROUND, "foreground: watch it")]
            yield _row("Mode", Radio(modes, id="hire-mode"))
            yield _row("Work", Checkbox("claim tasks", id="hire-autoclaim"), Checkbox("run once", id="hire-once"))
            limits = (Label(" turns ", classes="aside"), Field("hire-turns"), Label(" budget ", classes="aside"))
            yield _row("Model", Field("hire-model"), *limits, Field("hire-budget", "none"))
            yield _row("", Label("", classes="wrong"), id="wrong-limits")
            yield _row("Engine", Select([_MODEL], id="hire-engine"), id="row-engine")
            yield _row("", Label("", classes="aside", id="engine-costs"), id="row-engine-costs")
            yield _row("", Label("", classes="wrong"), id="wrong-engine")
            # A segmented control would be cut in a narrow terminal.
            effort, thinking = (Select(_or_usual(ways), id=f"hire-{ident}") for ident, ways in _EFFORT_FIELDS.items())
            yield _row("Effort", effort, Label(" thinking ", classes="aside"), thinking, id="row-effort")
            # What the agent works on, and where. On a host it has a checkout if a workspace was pushed.
            tasks, board = self._view.tasks, {task.id: task for task in self._view.tasks}
            unowned = (task for task in tasks if task.status not in CLOSED and task.owner is None)
            free = [task for task in unowned if not blockers(task, board)]
            task = Select(
                [("", "none"), *((str(each.id), f"#{each.id} {each.subject}") for each in free)], id="hire-task"
            )
            restart = Checkbox("restart after a crash", id="hire-restart")
            memory = (Label(" memory ", classes="aside"), Field("hire-memory", "no limit"))
            if self._on_hosts:
                known = sorted({label for host in self._view.hosts if host.is_up for label in host.record.labels})
                labels = Field(
                    "hire-labels", f"none; {', '.join(known)}" if known else "none", suggester=SuggestWords(known)
                )
                yield _row("Task", task, restart)
                yield _row(
                    "Host",
                    Select(_host_options(self._view), id="hire-host"),
                    Label(" labels ", classes="aside"),
                    labels,
                    *memory,
                )
            else:
                yield _row("Task", task)
                yield _row("Process", restart, *memory)
            yield _row("", Label("", classes="waits"), id="row-waits")
            yield _row("", Label("", classes="wrong"), id="wrong-labels")
            yield _row("", Label("", classes="wrong"), id="wrong-memory")

    def on_resize(self) -> None:
        """Keep the field with the cursor visible, as the form gets lower when the footer needs a second line."""
        focused = self.screen.focused
        if focused is not None and self in focused.ancestors:
            self.call_after_refresh(focused.scroll_visible, animate=False)

    @property
    def kind(self) -> agent_types.AgentType:
        """Return the chosen type."""
        return self._types[self.query_one("#hire-type", Select).value]

    @property
    def model(self) -> str:
        """Return the model that the agent would have."""
        return commands_hire.choose_model(self.kind, self._text("model") or None, self._environment, self._config)

    @property
    def refused_effort(self) -> str | None:
        """Return why the model does not take the chosen effort or thinking; None if it does, or if that is unknown."""
        can = self.capabilities.get(self.model)
        return models.refusal(self.model, can, self._chosen("effort"), self._chosen("thinking"))

    @property
    def agent_name(self) -> str:
        """Return the content of the name field."""
        return self._text("name")

    @property
    def prompt(self) -> str:
        """Return the content of the prompt field."""
        return self.query_one("#hire-prompt", TextArea).text

    @property
    def foreground(self) -> bool:
        """Return True if the result is to be awaited in the foreground."""
        return bool(self.query_one("#hire-mode", Radio).value)

    def paint(self, view: TeamView) -> None:
        """Show what the chosen type may do, only the options that apply to the type, and where the agent can run."""
        kind = self.kind
        self._view = view
        waits = None
        if self._on_hosts:
            chosen = self.query_one("#hire-host", Select)
            chosen.offer(_host_options(self._view, chosen.value, self._host))
            flags = HireOptions(host=self._chosen("host"), needs=self._labels()[0])
            waits = why_no_host(flags, {host.name: host.found for host in self._view.hosts}, self._chosen("engine"))
        waiting = self.query_one("#row-waits")
        waiting.display = waits is not None and self._labels()[1] is None
        if waiting.display:
            self.query_one("#hire-more", Fold).value = True
        waiting.query_one(".waits", Label).update(Content(one_line(waits or "")))
        if (
            waiting.display
            and self.screen.focused is not None
            and self.screen.focused.id in ("hire-host", "hire-labels")
        ):
            self.call_after_refresh(waiting.scroll_visible, animate=False)
        # What the user must accept has all of the limits.
        limits = agent_types.describe_limits(kind) if self.is_accepted else []
        self.query_one("#hire-may", Label).update(Content(one_line(" · ".join([kind.summary, *limits]))))
        self.query_one("#row-unaccepted").display = not self.is_accepted
        if not self.is_accepted:
            servers = mcp_servers.of_type(kind).servers.values()
            said = [
                each for server in servers for each in (f"server {server.name}: {server.shown}", *server.settings())
            ]
            said += [f"not understood: {each}" for each in kind.not_understood]
            text = "; ".join([f"{kind.file} is not accepted yet: {agent_types.describe_powers(kind)}", *said])
            self._unaccepted = safe_line(on_one_line(text))
            self.query_one("#hire-unaccepted", Label).update(Content(self._unaccepted))
        engine = self._offer_engines()
        self.query_one("#hire-network").display = kind.executes or engine is not None
        self.query_one("#row-ask").display = not self._has_own_tools and (kind.executes or kind.writes)
        self.query_one("#row-effort").display = engine is None
        self.query_one("#row-own").display = not self._on_hosts
        usual_model = commands_hire.choose_model(kind, None, self._environment, self._config)
        self.query_one("#hire-model", Input).placeholder = (
            "offline model" if self._is_offline else one_line(usual_model) if engine is None else "its own"
        )
        # A choice that the model does not take stays as long as it is chosen.
        can = self.capabilities.get(self.model)
        refused = {way for way in models.EFFORTS if models.refusal("", can, way)}
        refused |= {way for way in models.THINKING if models.refusal("", can, thinking=way)}
        for ident, ways in _EFFORT_FIELDS.items():
            field = self.query_one(f"#hire-{ident}", Select)
            field.offer(_or_usual(way for way in ways if way not in refused or way == field.value))
        usual = self._usual
        for ident, had in self._had.items():
            tick = self.query_one(f"#hire-{ident}", Checkbox)
            if tick.value == had:
                tick.value = usual[ident]
        self._had = usual
        for row in ("#row-domains", "#row-web"):
            self.query_one(row).display = self._ticked("web")
        self._sum_up()
        domains = f"only on {', '.join(kind.allowed_domains)}" if kind.allowed_domains else _ANY_DOMAIN
        self.query_one("#hire-domains", Input).placeholder = domains

    def _sum_up(self) -> None:
        """Show or hide the fields below More, and show in short the values that are not usual."""
        more = self.query_one("#hire-more", Fold)
        if self.query_one("#more").display != more.value:
            self.query_one("#more").display = more.value
            if more.value and more.has_focus:
                self.call_after_refresh(self.query_one("#more").scroll_visible, animate=False)
        usual = (
            self._text("model") or "usual model",
            f"{self._text('turns')} turns",
            self._text("budget") or "no budget",
        )
        more.sum_up(one_line(" · ".join(usual)))
        engine = self._chosen("engine")
        said = {
            f"engine {_title(engine or '')}": engine,
            f"effort {self._chosen('effort')}": engine is None and self._chosen("effort"),
            f"thinking {self._chosen('thinking')}": engine is None and self._chosen("thinking"),
            "foreground": self.foreground,
            "claims tasks": self._ticked("autoclaim"),
            "runs once": self._ticked("once"),
            "restarts": self._ticked("restart"),
            f"memory {self._text('memory')}": self._text("memory"),
            f"task #{self._chosen('task')}": self._chosen("task"),
        }
        if self._on_hosts:
            said[f"host {self._chosen('host')}"] = self._chosen("host")
            said[f"labels {self._text('labels')}"] = self._text("labels")
        text = one_line(" · ".join(text for text, applies in said.items() if applies))
        self.query_one("#row-values").display = bool(text) and not more.value
        self.query_one("#hire-values", Label).update(Content(text))

    def consequences(self) -> list[str]:
        """Return sentences that say what the agent may do, and, unless a limit is invalid, what it may cost."""
        hire = self.hire(max_turns=1)
        try:
            return [self._describe_rights(hire), self._describe_cost(hire.flags.budget)]
        except UsageError:
            return [self._describe_rights(hire)]

    def _describe_rights(self, hire: Hire) -> str:
        kind, flags, engine = self.kind, hire.flags, self._chosen("engine")
        place = "a checkout of its own" if flags.worktree else "your files"
        place = "the files of its host" if self._on_hosts else place
        acts = [*(["writes"] if kind.writes else []), *(["runs commands"] if kind.executes else [])]
        does = [f"{_enumerate(['reads', *acts])} in {place}" if acts else f"reads {place}"]
        does += ["hires agents"] if "spawn_agent" in kind.tools else []
        does += ["searches the web"] if flags.web else []
        words = [f"{hire.name or 'It'} {_enumerate(does)}"]
        if engine is not None and engines.known(engine).hosts and not flags.network:
            words.append("without network but for its API")
        elif engine is not None or kind.executes:
            words.append(f"{'with' if flags.network else 'without'} network")
        has_plan = flags.plan or flags.strict_plan or kind.plan
        approver = (
            "the lead"
            if hire.name != self._config.lead and roster.lead_reviews(self._config, self._team.directory)
            else "you"
        )
        words += [f"after {approver} approved its plan"] if has_plan else []
        asks = self._describe_questions(hire, engine)
        words += asks or (["without asking you"] if (acts or engine is not None) and not has_plan else [])
        return f"{', '.join(words)}."

    def _describe_questions(self, hire: Hire, engine: str | None) -> list[str]:
        """Return phrases that say when the agent asks the user; empty if it never asks."""
        kind, config = self.kind, self._config
        if engine is not None and self._has_own_tools:
            return ["asking you as it decides"] if engines.known(engine).asks else []
        acts = [*(["write"] if kind.writes else []), *(["command"] if kind.executes else [])]
        if not acts:
            return []
        effects = {rule.effect for rule in config.rules if rule.applies_to(hire.name, kind.name)}
        unless = " that no rule allows" if "allow" in effects else ""
        if hire.flags.ask or kind.asks == "all":
            return [f"asking you before each {_enumerate(acts)}{unless}"]
        asks = [f"before each command{unless}"] if kind.asks else []
        asks += ["where a rule says so"] if "ask" in effects else []
        asks += ["before it changes a file of another agent"] if kind.writes and config.collisions == "hold" else []
        return [f"asking you {_enumerate(asks)}"] if asks else []

    def _describe_cost(self, budget: str | None) -> str:
        """Return a sentence that says what a prompt may cost.

        Raises:
            UsageError: The turn limit or the budget is invalid.
        """
        if self._is_offline:
            return "It costs nothing: the offline model answers."
        turns, engine = self._turns(), self._chosen("engine")
        own = [str(pricing.parse_budget(budget))] if budget is not None else []
        turns = min(turns, self.kind.max_turns or turns)
        of_team = pricing.budget_or_none(self._config.budget)
        budgets = [*own, *([f"the team's {of_team}"] if of_team is not None else [])]
        limit = f"until {' or '.join(budgets)} is used" if budgets else "without a budget"
        if engine is None and not self._on_hosts and not has_key(self._environment):
            return f"It cannot start: there is no key for {one_line(self.model)}."
        if engine is None:
            return f"It may make {turns} calls of {one_line(self.model)} for a prompt, {limit}."
        title = _title(engine)
        return (
            f"{title} works on a prompt until its turn limit of {turns}, {limit}; limits are looked at between turns."
        )

    def _offer_engines(self) -> str | None:
        """Offer the engines that are installed and fit the type; return the chosen one, None if a model works."""
        usual, field = self._usual_engine, self.query_one("#hire-engine", Select)
        here = [each.engine.name for each in self._engines]
        if self._on_hosts:
            here = sorted({name for host in self._view.hosts if host.is_up for name in host.record.engines})
        named = [each for each in (*here, usual, self._engine) if each and not self._is_offline]
        names = dict.fromkeys(each for each in named if commands_hire.why_no_engine(self.kind, each) is None)
        titles = [(name, _title(name)) for name in names]
        before = field.value
        field.offer([_MODEL, *titles])
        if before == (self._had_engine or _MODEL[0]):
            # The user left it as it is usual.
            field.choose(usual or _MODEL[0])
        self._had_engine = usual
        chosen = self._chosen("engine")
        self.query_one("#row-engine").display = bool(names)
        row = self.query_one("#row-engine-costs")
        # Their login or key is that of the host.
        row.display = chosen is not None and not self._on_hosts
        if chosen is not None and not self._on_hosts:
            costs = engines.describe_costs(chosen, Path.home(), self._environment, network=self._ticked("network"))
            row.query_one("#engine-costs", Label).update(Content(one_line(costs)))
        return chosen

    @property
    def _has_own_tools(self) -> bool:
        """Return True if an engine is chosen that works with tools of its own."""
        engine = self._chosen("engine")
        return engine is not None and engines.known(engine).own_tools

    @property
    def _usual_engine(self) -> str | None:
        """Return the engine that the agent gets if its hire names none; None if that is a model."""
        is_for_model = self._is_offline or self._on_hosts or bool(self._text("model"))
        return commands_hire.usual_engine(self._config, self.kind, is_for_model=is_for_model)

    @property
    def refused_engine(self) -> str | None:
        """Return what the chosen engine cannot do of the form; None if it can do all, or if a model works."""
        engine = self._chosen("engine")
        try:
            if engine is not None:
                commands_hire.check_engine(self._team, self.hire(max_turns=1), self.kind, engine)
        except UsageError as error:
            return str(error)
        return None

    @property
    def is_accepted(self) -> bool:
        """Return True if the user need not accept the chosen type."""
        return type_files.is_accepted(self.kind, self._environment)

    def scroll_to_warning(self) -> None:
        """Scroll to the rights that the user must accept."""
        self.scroll_to_widget(self.query_one("#hire-unaccepted"), animate=False, immediate=True)

    @property
    def is_warning_visible(self) -> bool:
        """Return True if all rights that the user must accept are on the screen now."""
        region = self.query_one("#hire-unaccepted").region
        fits = region.area > 0 and self.content_region.contains_region(region)
        return fits and not has_hidden(self._unaccepted)

    @property
    def _usual(self) -> dict[str, bool]:
        """Return the defaults of the chosen type for `worktree` and `web`."""
        kind = self.kind
        own = commands_hire.has_worktree_by_default(self._config, kind, own_tools=self._has_own_tools)
        return {"worktree": own, "web": kind.web}

    @property
    def _is_offline(self) -> bool:
        """Return True if the agent would use the offline model."""
        return env.is_offline(self._environment) or (self._on_hosts and self._view.model_backend == "offline")

    def mark(self, problems: Sequence[Problem]) -> list[str]:
        """Show errors below their fields; return the names of the fields that now show one."""
        told = {field: "; ".join(each.says for each in problems if each.field == field) for field in _MARKED}
        for field, says in told.items():
            row = self.query_one(f"#wrong-{field}")
            if says and field in _FOLDED:
                self.query_one("#hire-more", Fold).value = True
            if says and not row.display:
                # An error of several lines may end below the form.
                self.call_after_refresh(row.scroll_visible, animate=False)
            row.display = bool(says)
            row.query_one(".wrong", Label).update(Content(one_line(says)))
        return [field for field, says in told.items() if says]

    # ----------------------------------------------------------------------------------------- filled and read

    def fill(self, name: str, profile: Profile, *, is_new: bool = False) -> None:
        """Fill the fields from `profile`; an unknown type leaves the type unchanged.

        If it `is_new`, no user chose the options: the boxes for an own checkout and the web then show what is usual.
        """
        self.query_one("#hire-name", Input).value = name
        self.query_one("#hire-type", Select).choose(profile.type)
        prompt = self.query_one("#hire-prompt", TextArea)
        prompt.text = safe_text(profile.prompt)
        prompt.move_cursor(prompt.document.end)
        flags = profile.flags
        self._stated_size = (flags.window, flags.max_reply)
        for ident, text in (("role", profile.role), ("model", profile.model), ("budget", flags.budget)):
            self.query_one(f"#hire-{ident}", Input).value = one_line(text or "")
        self.query_one("#hire-turns", Input).value = str(flags.max_turns)
        memory = roster.format_size(flags.max_memory) if flags.max_memory else ""
        self.query_one("#hire-memory", Input).value = memory
        self.query_one("#hire-domains", Input).value = one_line(" ".join(flags.allowed_domains))
        for ident in _TICKS:
            self.query_one(f"#hire-{ident}", Checkbox).value = getattr(flags, ident)
        for ident in ("effort", "thinking"):
            self.query_one(f"#hire-{ident}", Select).choose(getattr(flags, ident) or "")
        if self._on_hosts:
            self._host = flags.host or ""
            host = self.query_one("#hire-host", Select)
            host.offer(_host_options(self._view, self._host))
            host.choose(self._host)
            self.query_one("#hire-labels", Input).value = " ".join(flags.needs)
        self._had_engine = self._usual_engine
        chosen = self._had_engine if profile.engine is None else profile.engine if profile.engine != NONE else None
        # Another one than those that are here, such as a command.
        self._engine = chosen or ""
        field = self.query_one("#hire-engine", Select)
        field.offer([_MODEL, *([(chosen, chosen)] if chosen else [])])
        field.choose(chosen or _MODEL[0])
        self._had = self._usual
        for ident, usual in self._had.items():
            is_fixed = is_new or (ident == "worktree" and self._on_hosts)
            self.query_one(f"#hire-{ident}", Checkbox).value = usual if is_fixed else getattr(flags, ident)
        self.query_one("#hire-mode", Radio).choose(_FOREGROUND if profile.foreground else "")

    def profile(self, max_turns: int | None = None) -> Profile:
        """Return the fields without name and task as a profile; `max_turns` replaces an invalid turn limit.

        Raises:
            UsageError: The turn limit is not a number.
        """
        hire = self.hire(max_turns)
        return Profile(
            type=hire.type,
            role=hire.role,
            prompt=hire.prompt,
            model=hire.model,
            engine=hire.engine,
            flags=hire.flags.replace(task=None),
            foreground=self.foreground,
        )

    def hire(self, max_turns: int | None = None) -> commands_hire.Hire:
        """Return the hire that the form describes; `max_turns` replaces an invalid turn limit.

        Raises:
            UsageError: The turn limit is not a number.
        """
        kind, engine = self.kind, self._chosen("engine")
        task = self.query_one("#hire-task", Select).value
        ticks: dict[str, Any] = {ident: self._ticked(ident) for ident in (*_TICKS, "web", "worktree")}
        ticks["ask"] &= not self._has_own_tools and (kind.executes or kind.writes)
        ticks["network"] &= kind.executes or engine is not None
        flags = HireOptions(
            **ticks,
            allowed_domains=self._domains()[0] if ticks["web"] else [],
            effort=cast("Effort | None", self._chosen("effort")) if engine is None else None,
            thinking=cast("Thinking | None", self._chosen("thinking")) if engine is None else None,
            window=self._stated_size[0],
            max_reply=self._stated_size[1],
            max_memory=self._memory()[0],
            budget=self._text("budget") or None,
            max_turns=max_turns or self._turns(),
            task=int(task) if task else None,
            host=self._chosen("host") if self._on_hosts else None,
            needs=self._labels()[0],
        )
        # An agent that exists keeps the checkout that it has, unless the user says otherwise.
        usual = self._usual
        left_out = {"worktree", "base"} if flags.worktree == usual["worktree"] else set()
        left_out |= {"web"} if flags.web == usual["web"] else set()
        left_out |= {name for name in ("host", "needs") if not getattr(flags, name)}
        given = frozenset(HireOptions.__struct_fields__) - left_out
        return commands_hire.Hire(
            self.agent_name, kind.name, self.prompt, self._text("role"), self._text("model") or None, flags, given,
            engine=None if engine == self._usual_engine else engine or NONE,
        )  # fmt: skip

    def wrong_fields(self) -> list[Problem]:
        """Return the problems of the fields for memory, domains and labels. `hire` leaves invalid ones out."""
        domains = self._domains()[1] if self._ticked("web") else None
        found = {"memory": self._memory()[1], "domains": domains, "labels": self._labels()[1]}
        return [Problem(field, says) for field, says in found.items() if says is not None]

    def _domains(self) -> tuple[list[str], str | None]:
        try:
            return web.parse_domains(self._text("domains")), None
        except UsageError as error:
            return [], str(error)

    def _labels(self) -> tuple[list[str], str | None]:
        labels = list(dict.fromkeys(self._text("labels").replace(",", " ").split())) if self._on_hosts else []
        try:
            hosts.check_labels(labels)
        except UsageError as error:
            return [], str(error)
        return labels, None

    def _memory(self) -> tuple[int | None, str | None]:
        text = self._text("memory")
        try:
            return roster.parse_memory_limit(text) if text else None, None
        except UsageError as error:
            return None, str(error)

    def _turns(self) -> int:
        turns = self._text("turns")
        if not (turns.isascii() and turns.isdigit() and len(turns) <= _MOST_DIGITS) or int(turns) < 1:
            raise UsageError("the turn limit must be 1 or more")
        return int(turns)

    def _text(self, ident: str) -> str:
        return self.query_one(f"#hire-{ident}", Input).value.strip()

    def _chosen(self, ident: str) -> str | None:
        return self.query_one(f"#hire-{ident}", Select).value or None

    def _ticked(self, ident: str) -> bool:
        return self.query_one(f"#hire-{ident}", Checkbox).value


_EFFORT_FIELDS = {"effort": models.EFFORTS, "thinking": models.THINKING}


def _title(engine: str) -> str:
    """Return the name of an engine for the screen."""
    return one_line(engines.KNOWN[engine].title if engine in engines.KNOWN else engine)


def _enumerate(words: Sequence[str]) -> str:
    """Join words as in a sentence: `reads, writes and runs commands`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _or_usual(ways: Iterable[str]) -> list[tuple[str, str]]:
    return [("", "usual"), *((way, way) for way in ways)]


def _host_options(view: TeamView, *chosen: str) -> list[tuple[str, str]]:
    """Return options for the hosts that are up, with their slots, and for hosts that were `chosen` before."""
    taking = {host.name: f"{host.used}/{host.record.slots}" for host in view.hosts if host.state == "up"}
    left = dict.fromkeys(name for name in chosen if name and name not in taking)
    options = [(name, f"{name} {slots}") for name, slots in taking.items()]
    return [("", "any"), *options, *((name, name) for name in left)]


def _row(label: str, *fields: Widget, classes: str = "", id: str | None = None) -> Horizontal:
    return Horizontal(Label(label, classes="field-label"), *fields, classes=f"field-row {classes}", id=id)


def spawn_words(hire: Hire, typed: CommandLine, *, foreground: bool = False) -> list[str]:
    """Return the words of the command that hires the same agent."""
    flags = hire.flags
    terms: list[tuple[str, object]] = [
        ("--role", hire.role),
        ("--model", hire.model),
        ("--engine", hire.engine),
        ("--effort", flags.effort),
        ("--thinking", flags.thinking),
        ("--window", flags.window),
        ("--max-reply", flags.max_reply),
        ("--plan", flags.plan and not flags.strict_plan),
        ("--strict-plan", flags.strict_plan),
        ("--ask", flags.ask),
        ("--network", flags.network),
        ("--web" if flags.web else "--no-web", hire.given is None or "web" in hire.given),
        ("--allowed-domains", ",".join(flags.allowed_domains)),
        ("--autoclaim", flags.autoclaim),
        ("--once", flags.once),
        ("--restart", flags.restart),
        ("--worktree" if flags.worktree else "--no-worktree", hire.given is None or "worktree" in hire.given),
        ("--max-memory", roster.format_size(flags.max_memory) if flags.max_memory else None),
        ("--max-turns", flags.max_turns if flags.max_turns != HireOptions().max_turns else None),
        ("--budget", flags.budget),
        ("--task", flags.task),
        ("--host", flags.host),
        *(("--needs", label) for label in flags.needs),
        ("--background", not foreground),
    ]
    words = typed.words("spawn", hire.name or "NAME", "--type", hire.type)
    for name, value in terms:
        if value:
            words += [name] if value is True else [name, str(value)]
    return [*words, "--prompt", hire.prompt.strip() or "…"]


def shell_line(words: list[str]) -> str:
    """Join words to one line, without line breaks, that a shell splits into the same words."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_escaped(word)}'" for word in words)


def _escaped(word: str) -> str:
    known = {"\\": r"\\", "'": r"\'", "\n": r"\n", "\t": r"\t"}
    return "".join(
        known.get(sign) or (sign if sign.isprintable() else "".join(rf"\x{byte:02x}" for byte in sign.encode()))
        for sign in word
    )


def problems(hire: Hire, view: TeamView, pressed: Pressed = default_key) -> list[Problem]:
    """Return the problems of a hire, at most one per field; empty if the agent can be hired."""
    wrong: dict[str, str] = {}
    member = view.agent(hire.name)
    try:
        check_agent(hire.name, hire.type)
    except UsageError as error:
        wrong["name"] = str(error)
    else:
        if member is not None and member.type != hire.type:
            wrong["name"] = f"{hire.name} is of type {member.type}; choose another name"
        elif member is not None and member.alive and member.state != "idle":
            message = pressed("agent.message")
            wrong["name"] = f"{hire.name} is running; choose another name, or message it with {message}"
    try:
        if hire.flags.budget is not None:
            pricing.parse_budget(hire.flags.budget)
    except UsageError as error:
        wrong["limits"] = str(error)
    task = next((task for task in view.tasks if task.id == hire.flags.task), None)
    try:
        if task is not None:
            check_type(f"task {task.id}", task.required_type, hire.name, hire.type)
    except UsageError as error:
        wrong["task"] = str(error)
    if not hire.prompt.strip():
        wrong["prompt"] = "it needs a prompt"
    return [Problem(field, says) for field, says in wrong.items()]


def free_name(view: TeamView, like: str) -> str:
    """Return `like` if no agent has that name, else the same name with the next free number."""
    taken = {agent.name for agent in view.agents}
    if like not in taken:
        return like
    stem = like.rstrip("0123456789")[:_LONGEST_STEM]
    return next(name for number in range(2, len(taken) + 3) if (name := f"{stem}{number}") not in taken)
