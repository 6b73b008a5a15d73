"""The page with the figures of the last run of `make bench`: `python -m tests.bench.page` writes it.

It prints what the README repeats of them.
"""

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from crewboard import __version__
from tests.bench.figures import REPORT, ROOT, Figure

PAGE = ROOT / "docs" / "performance.md"

_PEERS = "test_peers.py"
"""The file that measures other programs, where they are installed."""

_HEAD = """# Performance

`make bench` measures and writes this page; nothing on it is written by hand. crewboard {version} of
commit `{commit}`, measured on {date} on {kind}: {processor}, {cores} cores, {memory_gib} GiB of memory,
{system}, Python {python}. The load in the minute before was {load}.

Times depend on the machine, so most figures stand next to a baseline that was measured in turns with them: an empty
Textual app, a bare import, plain bash. The ratio of the two is what carries over to another machine, and where a goal
has no unit it is such a ratio. A goal that was missed says so.

`make peers` installs two other programs for many coding agents into `.cache/`, pinned, under their own licences. Where
they are installed, `make bench` measures them too, and their figures stand here: in an empty project, without agents,
next to crewboard with a team of thirty.

Each section names the file whose tests measure it: there stands what exactly a figure is. `.venv/bin/pytest FILE -n 0
-m bench` measures a section and prints its table, and with `-k WORDS` one test of it. The machine must do nothing else:
beside other work times are several times as long, and only counts, memory and ratios hold.

Figures at rest depend on the machine's load too: a wake-up costs several times more on an idle virtual machine. Compare
them with their baseline.

## What the dashboard keeps

How much memory the dashboard takes follows from what is on the screen and from the number of agents, not from how long
the team has run. Kept are, with the module that bounds it:

| what | at most | where |
|---|---|---|
| unread mail of each mailbox | 8 bytes a message, 24 a result, the ids of the newest 2,000 | `readmodel/mail.py` |
| messages of a mailbox shown | the newest 2,000, in its last 2 MB; more after `g` at its top | `readmodel/mail.py` |
| activity of an agent that was shown | the newest 500 lines, in 512 Ki characters | `readmodel/activity.py` |
| lines of the Feed | those that are loaded, 400 at first; twice as many while it opens | `queries.py`, `FeedReader` |
| mail of other programs, of each mailbox | the newest 500 messages, in 256 Ki characters | `queries.py` |
| mail that an agent sent | of each mailbox the newest, as for one that is shown | `queries.py`, `MailFrom` |
| calls for the rate of spending | those of the last ten minutes | `readmodel/usage.py` |
| lines of an agent's mail, calls and files | those looked at since the last change | `widgets/collapsible_list.py` |
| laid out activity | of 512 activities, without what a tool printed; 512 wrapped texts | `views/activity.py` |
| painted lines of a part of the screen | three screens of its height | `widgets/painter.py` |
| what was read and painted for a view that is not shown | nothing after 30 seconds | `queries.py`, `views/base.py` |
"""


def page(report: dict[str, Any]) -> str:
    """Return the page of a saved run."""
    date = datetime.fromtimestamp(report["at"], UTC).strftime("%-d %B %Y")
    parts = [_HEAD.format(version=__version__, date=date, **report["machine"])]
    figures = _figures(report)
    for section, group in groupby(figures, lambda figure: figure.section):
        members = list(group)
        # Alone, crewboard is next to nothing there.
        if members[0].file == _PEERS and all(each.name.startswith("crewboard") for each in members):
            continue
        rows = [_line(figure) for figure in members]
        head = "| figure | measured | baseline | ratio | goal |\n|---|---:|---|---:|---|"
        parts.append(
            "\n".join([f"## {section}\n", f"Measured by `tests/bench/{members[0].file}`.\n", head, *rows]) + "\n"
        )
    return "\n".join(parts)


def _figures(report: dict[str, Any]) -> list[Figure]:
    found = [Figure(**{name: raw[name] for name in Figure.__dataclass_fields__}) for raw in report["figures"]]
    # Reports of before had 0 where there was no baseline.
    return [each if each.baseline else replace(each, base=None) for each in found]


def _line(figure: Figure) -> str:
    name, measured, baseline, base, ratio, goal = figure.row()
    compared = f"{baseline}: {base}" if baseline else ""
    return "| " + " | ".join([name, measured, compared, ratio, goal.replace("  MISSED", ", **missed**")]) + " |"


def readme_lines(report: dict[str, Any]) -> str:
    """Return the figures that the README repeats; only a run of all measurements has them."""
    rows = {figure.name: figure.row() for figure in _figures(report)}
    _, picture, _, empty, *_ = rows["dashboard to the first picture of 30 agents"]
    at_rest, memory = rows["dashboard at rest, 30 agents"][1], rows["dashboard at rest, proportional memory"][1]
    return (
        f"- a board of 30 agents: its first picture after {picture}, where an empty Textual app takes {empty}\n"
        f"- at rest: {at_rest} and {memory}\n"
        f"- an idle worker: {rows['private memory of an idle worker'][1]} of its own\n"
    )


if __name__ == "__main__":
    report = json.loads(REPORT.read_text())
    PAGE.write_text(page(report))
    print(f"For README.md:\n\n{readme_lines(report)}")
