"""The Process tab: usage over time, process tree, exit record, end of the log."""

from crewboard.readmodel.crash_report import CrashReport
from crewboard.readmodel.processes import ProcessNode
from crewboard.readmodel.team import AgentView
from crewboard.records import Exit
from crewboard_tui.process_history import KEPT, ProcessHistory
from crewboard_tui.queries import CrashOf, ProcessOf, Snapshot
from crewboard_tui.render import formats
from crewboard_tui.render.formats import spark
from crewboard_tui.render.lines import Line, Span, crop, say
from crewboard_tui.views.needs.explanation import death_lines, fact_lines

_LABEL = 11
_VALUE = 7
_A_CORE = 100.0
_TREE = (("PID", 8), ("CPU TIME", 10), ("RSS", 7))


def process_lines(agent: AgentView, snapshot: Snapshot, now: float, width: int) -> list[Line]:
    """Return the lines of the Process tab, for a running or an ended worker."""
    vitals = snapshot.get(ProcessOf(agent.name)) or ProcessHistory(agent.name)
    autopsy = snapshot.get(CrashOf(agent.name))
    if not agent.alive and autopsy is not None:
        return _ended(agent, autopsy, now, width)
    lines = [*_history(vitals, width), *_facts(agent, width), *_tree(vitals.family, width)]
    return [*lines, *_log(vitals.log_lines, width)]


def _ended(agent: AgentView, autopsy: CrashReport, now: float, width: int) -> list[Line]:
    lines = death_lines(autopsy, now, width)
    return [*lines, *fact_lines([("exit", _record(agent.exit))], width)]


def _record(record: Exit | None) -> str:
    """Return the content of `exit.json` in short form."""
    if record is None:
        return "none: no supervisor saw it end"
    code = f"code {record.code}" if record.code is not None else "no code"
    signal = f"signal {record.signal}" if record.signal is not None else "no signal"
    told = "the team is notified" if record.buried else "the team is not notified yet"
    return f"run {record.run}, {record.reason or 'no reason'}, {code}, {signal}; {told}"


def _facts(agent: AgentView, width: int) -> list[Line]:
    return fact_lines(
        [
            ("process", f"pid {agent.pid}, run {agent.run}" if agent.alive else "none"),
            ("state", f"{agent.state} since {formats.clock(agent.since)}" if agent.since else agent.state),
            ("why", agent.reason),
            ("sandbox", agent.sandbox),
            ("last error", agent.last_error or ""),
        ],
        width,
    )


def _history(vitals: ProcessHistory, width: int) -> list[Line]:
    """Return current CPU and memory, their history, and their peaks."""
    if not vitals.history:
        return []
    cpu = [usage.cpu_percent for usage in vitals.history]
    memory = [float(usage.rss_bytes) for usage in vitals.history]
    return [
        _course("CPU", f"{cpu[-1]:.0f}%", cpu, max(_A_CORE, *cpu), f"peak {max(cpu):.0f}%", width),
        _course(
            "memory",
            formats.size(int(memory[-1])),
            memory,
            max(memory),
            f"peak {formats.size(int(max(memory)))}",
            width,
        ),
    ]


def _course(name: str, value: str, values: list[float], top: float, peak: str, width: int) -> Line:
    room = min(KEPT, width - _LABEL - _VALUE - len(peak) - 2)
    bars = spark(values, room, top)
    return (Span(f"{name:<{_LABEL}}", "dim"), Span(f"{value:<{_VALUE}}"), Span(bars, "info"), Span(f"  {peak}", "dim"))


def _tree(relatives: tuple[ProcessNode, ...], width: int) -> list[Line]:
    if not relatives:
        return []
    head = "".join(f"{name:<{size}}" for name, size in _TREE) + "COMMAND"
    return [(), (Span(head, "dim"),), *(crop(_relative(each), width) for each in relatives)]


def _relative(each: ProcessNode) -> Line:
    numbers = (str(each.pid), f"{each.cpu_seconds:.1f}s", formats.size(each.rss_bytes))
    text = "".join(f"{cell:<{size}}" for cell, (_, size) in zip(numbers, _TREE, strict=True))
    branch = "  " * (each.depth - 1) + "└ " if each.depth else ""
    return (Span(text), Span(branch, "dim"), say(each.command, "" if each.depth else "bold"))


def _log(lines: tuple[str, ...], width: int) -> list[Line]:
    if not lines:
        return []
    return [(), (Span("the end of its log", "dim"),), *(crop((say(line),), width) for line in lines)]
