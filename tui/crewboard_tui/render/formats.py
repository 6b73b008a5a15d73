"""Numbers in short form: ages, times of day, sizes, counts, costs, shares, bar charts.

An unknown price is shown as a dash, never as $0.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from crewboard import TeamView
from crewboard.readmodel import usage
from crewboard.readmodel.usage import Bill, bill_team
from crewboard.records.agents import Context, Tokens
from crewboard.records.team import Unmerged
from crewboard_tui.render.lines import Line, Span

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400

STEP = 5
"""Seconds by which a shown age grows below a minute: each change of an age paints a row for each agent at rest."""


def format_age(seconds: float) -> str:
    """Format the age of something that goes on, in at most four cells: `3s`, `4m`, `3h`, `12d`.

    From 5 s on, it grows in steps of 5 s.
    """
    return format_span(seconds if seconds < STEP else seconds // STEP * STEP)


def format_span(seconds: float) -> str:
    """Format a duration in at most four cells, rounded down: `9s`, `4m`, `3h`, `12d`."""
    seconds = max(0, int(seconds))
    if seconds < _MINUTE:
        return f"{seconds}s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m"
    if seconds < _DAY:
        return f"{seconds // _HOUR}h"
    return f"{min(seconds // _DAY, 999)}d"


def format_long_age(seconds: float) -> str:
    """Format an age in up to two units: `12s`, `4m12s`, `1h05m`, `3d`."""
    seconds = max(0, int(seconds))
    if seconds < _MINUTE:
        return f"{seconds}s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m{seconds % _MINUTE:02}s"
    if seconds < _DAY:
        return f"{seconds // _HOUR}h{seconds % _HOUR // _MINUTE:02}m"
    return f"{seconds // _DAY}d"


def format_clock(ts: float) -> str:
    """Format the time of day: `15:04:22`."""
    return time.strftime("%H:%M:%S", time.localtime(ts))


def format_minute(ts: float, *, with_day: bool) -> str:
    """Format the time of day to the minute, with the day of the week if wanted: `15:04`, `Fri 15:04`."""
    return time.strftime("%a %H:%M" if with_day else "%H:%M", time.localtime(ts))


def is_same_day(ts: float, now: float) -> bool:
    """Return True if two times are on one day, local time."""
    return time.localtime(ts)[:3] == time.localtime(now)[:3]


def format_moment(ts: float, now: float) -> str:
    """Format a time of today as `15:04:22`, and an earlier one with its date: `11-20 15:04`, `2025-11-20 15:04`."""
    if is_same_day(ts, now):
        return format_clock(ts)
    moment = time.localtime(ts)
    return time.strftime("%m-%d %H:%M" if moment[0] == time.localtime(now)[0] else "%Y-%m-%d %H:%M", moment)


def format_duration(seconds: float | None) -> str:
    """Format a duration: `0.1s`, `12s`, `4m12s`; empty if unknown."""
    if seconds is None:
        return ""
    # One decimal is precise enough from 10 seconds on.
    return f"{seconds:.1f}s" if seconds < 10 else format_long_age(seconds)  # noqa: PLR2004


def format_size(count: int) -> str:
    """Format a number of bytes in at most four cells: `96M`, `3.9G`."""
    value = float(count)
    for unit in ("B", "K", "M", "G"):
        # A fourth digit takes the next unit, also one that comes from rounding.
        if value < 999.5:  # noqa: PLR2004
            return f"{value:.1f}{unit}" if value < 9.95 and unit not in "BK" else f"{value:.0f}{unit}"  # noqa: PLR2004
        value /= 1024
    return f"{value:.0f}T"


def format_load(load: float, cores: int) -> str:
    """Format a load average divided by the cores, in at most four cells: `0.5`, `12`; a dash if `cores` is 0."""
    if not cores:
        return "—"
    each = load / cores
    return f"{each:.1f}" if each < 10 else f"{each:.0f}"  # noqa: PLR2004  a digit after the point


def format_count(number: int) -> str:
    """Format a count in at most six cells: `950`, `41.2k`, `123.5k`, `1.3M`."""
    if number < 1000:  # noqa: PLR2004
        return str(number)
    return f"{number / 1000:.1f}k" if number < 999_950 else f"{number / 1_000_000:.1f}M"  # noqa: PLR2004


def format_lines(changed: Unmerged) -> str:
    """Format how many lines were added and removed: `+120 −1.2k`."""
    return f"+{format_count(changed.added)} −{format_count(changed.removed)}"


def format_limit(number: int) -> str:
    """Format a round number of tokens: `200k`, `1M`."""
    return format_count(number).replace(".0", "")


def format_money(dollars: float) -> str:
    """Format US dollars: `$1.92`, and `<1¢` for less than a cent."""
    return "<1¢" if 0 < dollars < 0.01 else f"${dollars:.2f}"  # noqa: PLR2004


def format_places(counts: Mapping[str, int]) -> str:
    """Return places in one line, each with its count if above one: `config.json, mail of lead ×3`."""
    return ", ".join(f"{where} ×{many}" if many > 1 else where for where, many in counts.items())


def format_path(path: Path) -> str:
    """Abbreviate the home directory in a path to `~`."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int, top: float) -> str:
    """Return a bar chart of the newest values that fit into `width` cells; `top` is a full bar."""
    shown = values[-max(0, width) :] if width > 0 else []
    return "".join(bar(value / top if top > 0 else 0) for value in shown)


def peaks(values: Sequence[float], cells: int, span: int) -> list[float]:
    """Return the highest value of each of at most `cells` equal groups of the newest `span` values, oldest first."""
    each = max(1, -(-span // max(1, cells)))
    return [max(values[max(0, end - each) : end]) for end in range(len(values), max(0, len(values) - span), -each)][
        ::-1
    ]


def bar(share: float, steps: str = BARS) -> str:
    """Return one cell of a bar chart: the lowest of `steps` for a share of 0, the highest for 1."""
    return steps[round(min(max(share, 0.0), 1.0) * (len(steps) - 1))]


def bar_rows(values: Sequence[float], rows: int, top: float) -> list[str]:
    """Return a bar chart that is `rows` lines high, the upper line first; `top` is a full bar.

    A value above 0 has at least the lowest bar.
    """
    steps = len(BARS)
    heights = [max(1, round(min(value / top, 1) * rows * steps)) if value > 0 < top else 0 for value in values]
    return [
        "".join((" " + BARS)[min(max(height - row * steps, 0), steps)] for height in heights)
        for row in reversed(range(rows))
    ]


NEARLY = 0.8
"""A limit counts as near from this share on."""


def format_bill(bill: Bill) -> str:
    """Format a cost; `+` means that some tokens have no price, a dash that none has, `~` that some are an estimate."""
    if bill.usd is None:
        return "—"
    return ("~" if bill.tokens.estimated else "") + format_money(bill.usd) + ("+" if bill.partial else "")


TOKEN_KINDS = (("input", "in"), ("output", "out"), ("cache_read", "cached"), ("cache_write", "written"))
"""The kinds of tokens with their words on the screen; the total is the sum of all kinds.

`cached` were read from the prompt cache, `written` were written to it; `in` is the rest of the prompts.
"""


def describe_tokens(tokens: Tokens) -> str:
    """Return the total of tokens and its parts: `31.1k = 1.2k in + 2.9k out + 20.0k cached + 7.0k written`."""
    parts = " + ".join(f"{format_count(getattr(tokens, kind))} {word}" for kind, word in TOKEN_KINDS)
    return f"{format_tokens(tokens)} = {parts}"


def format_tokens(tokens: Tokens) -> str:
    """Format the number of all tokens; `~` means that some are an estimate, `+` that an engine did not tell some.

    It is `not told` if no tokens are known.
    """
    if tokens.untold:
        return f"{format_count(tokens.total)}+" if tokens.total else "not told"
    return ("~" if tokens.estimated else "") + format_count(tokens.total)


def format_used(bill: Bill) -> str:
    """Format what was used, with its budget in the same unit: `31.1k of 200k tokens`, `$1.92 of $5.00`.

    Tokens without a price use nothing of a budget in money: `31.1k tokens unpriced, $0 of $5.00`.
    """
    budget = bill.budget
    in_tokens = bill.usd is None or (budget is not None and budget.tokens is not None)
    used = format_tokens(bill.tokens) if in_tokens else format_bill(bill)
    if budget is None:
        return f"{used} tokens" if in_tokens else used
    if in_tokens and budget.tokens is None:
        return f"{used} tokens unpriced, $0 of {budget}"
    return f"{used} of {budget}"


def why_no_money(view: TeamView) -> str:
    """Return a text that says why no cost is shown in dollars."""
    return (
        f"tokens only: {'the offline model is' if view.model_backend == 'offline' else 'these models are'} not priced"
    )


def format_spending(view: TeamView, rate: float | None, *, window: bool = True) -> str:
    """Format what the team has used, its budget, its cost per hour, and how long the rest then lasts.

    `window` adds over how many minutes the cost per hour was measured.
    """
    bill = bill_team(view)
    parts = [format_bill(bill) if bill.usd is not None else f"{format_tokens(bill.tokens)} tokens"]
    if bill.budget is not None:
        parts.append(f"{format_percent(bill.share)} of {bill.budget}")
    if rate is not None:
        parts.append(f"{format_money(rate)}/h{f' over {usage.WINDOW / _MINUTE:.0f} min' if window else ''}")
        if rate and bill.share is not None and bill.share < 1 and bill.budget is not None and bill.budget.usd:
            left = bill.budget.usd * (1 - bill.share)
            parts.append(f"lasts {format_long_age(left / rate * _HOUR // _MINUTE * _MINUTE)}")
    return " · ".join(parts)


def format_percent(share: float | None) -> str:
    """Format a share in at most five cells, rounded down so that 100% means all of it; a dash if it is unknown."""
    if share is None:
        return "—"
    whole = int(round(100 * share, 6))
    # Above 999% the exact share does not matter.
    return f"{whole}%" if whole < 1000 else ">999%"  # noqa: PLR2004


def limit_tone(share: float | None) -> str:
    """Return the tone for a share of a limit: `error` from 1 on, `warning` from `NEARLY` on, else none.

    An unknown share is dim.
    """
    if share is None:
        return "dim"
    return "error" if share >= 1 else "warning" if share >= NEARLY else ""


def share_span(share: float | None) -> Span:
    """Return a share of a limit in its tone; empty if it is unknown."""
    return Span("" if share is None else format_percent(share), limit_tone(share))


def filled_cells(share: float, width: int) -> int:
    """Return how many of `width` cells a share fills, rounded down so that a full bar means all of it."""
    return min(width, int(round(share * width, 6)))


def share_bar(share: float | None, width: int) -> Line:
    """Return a share as a bar after a blank; empty if unknown."""
    if share is None:
        return ()
    full = filled_cells(share, width)
    return (Span(" " + "▮" * full, limit_tone(share)), Span("▯" * (width - full), "dim"))


def context_share(context: Context) -> float | None:
    """Return the used share of the model's context window, where 1 is full; None if the window is unknown."""
    return context.used / context.limit if context.limit else None
