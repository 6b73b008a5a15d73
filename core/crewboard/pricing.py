"""The cost of model calls, from a price table that the user can change, and budgets in money or tokens."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct, convert

from crewboard import env
from crewboard.errors import BadDataError, UsageError
from crewboard.records.agents import Tokens

_SHIPPED = Path(__file__).with_name("prices.toml")
_THOUSAND = 1_000
_MILLION = 1_000_000
_DATED = r"-\d{8}$"
_IN_US = 1.1
"""Factor on the price of a request that the API must answer in the US: page `manage-claude/data-residency` of the API's
documents, November 2026.
"""


class Band(Struct, forbid_unknown_fields=True):
    """Prices in dollars per million tokens, for requests of up to `up_to` prompt tokens; None is no limit.

    `cache_write_1h` is the price of a token that the cache keeps for an hour; None is twice `input`, as for all models
    of the API.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float
    up_to: int | None = None
    cache_write_1h: float | None = None

    def cost(self, used: Tokens) -> float:
        """Return the cost of one request in dollars."""
        an_hour = 2 * self.input if self.cache_write_1h is None else self.cache_write_1h
        return (
            used.input * self.input
            + used.output * self.output
            + used.cache_read * self.cache_read
            + (used.cache_write - used.cache_write_1h) * self.cache_write
            + used.cache_write_1h * an_hour
        ) / _MILLION


class Prices(Struct, frozen=True):
    """A price table: price bands by model, dollars for a thousand searches of the web, and the date of the prices.

    The bands of a model are in ascending order of `up_to`.
    """

    bands: dict[str, list[Band]]
    as_of: str
    per_1000_web_searches: float | None = None

    def cost(self, model: str, used: Tokens, *, in_us: bool = False) -> float | None:
        """Return the cost of one request of `model` in dollars; None if a price for it is unknown.

        `in_us` says that the API had to answer the request in the US.
        """
        # Imported here: it knows the words of many servers, and the first picture needs none of them.
        from crewboard import models

        bands = self.bands.get(model) or self.bands.get(re.sub(_DATED, "", models.plain(model))) or []
        band = next((band for band in bands if band.up_to is None or used.prompt <= band.up_to), None)
        if band is None or (used.web_searches and self.per_1000_web_searches is None):
            return None
        return (
            band.cost(used) * (_IN_US if in_us else 1)
            + used.web_searches * (self.per_1000_web_searches or 0) / _THOUSAND
        )


@cache
def load_shipped() -> Prices:
    """Return the price table that comes with crewboard."""
    return _read(_SHIPPED)


def project_file(root: Path) -> Path:
    """Return the path of the project's own price table."""
    return root / ".crewboard" / "prices.toml"


def load(root: Path) -> Prices:
    """Return the shipped price table, overridden by the project's `.crewboard/models.toml` and then `prices.toml`.

    Raises:
        BadDataError: One of the project's files is damaged, or a symbolic link.
    """
    from crewboard import models

    shipped, described = load_shipped(), dict[str, list[Band]]()
    for name, each in models.of_project(root).items():
        if (price := each.price) is not None:
            usual = price.get("input")
            try:
                described[name] = [convert({"cache_read": usual, "cache_write": usual, **price}, Band)]
            except ValueError as error:
                raise BadDataError(f"{models.project_file(root)} cannot be used: {name}: its price: {error}") from error
    shipped = Prices({**shipped.bands, **described}, shipped.as_of, shipped.per_1000_web_searches)
    own = project_file(root)
    if not own.exists():
        return shipped
    if own.is_symlink():
        raise BadDataError(f"the price table {own} is a symbolic link, and crewboard follows none in a team directory")
    mine = _read(own)
    searches = shipped.per_1000_web_searches if mine.per_1000_web_searches is None else mine.per_1000_web_searches
    return Prices({**shipped.bands, **mine.bands}, mine.as_of or shipped.as_of, searches)


def require_readable(root: Path, environment: Mapping[str, str]) -> None:
    """Check the project's files that a worker reads before its first call; the offline model reads no `prices.toml`.

    Raises:
        BadDataError: `models.toml` or `prices.toml` is damaged; the message says what to do.
    """
    from crewboard import models

    try:
        if env.is_offline(environment):
            models.of_project(root)
        else:
            load(root)
    except BadDataError as error:
        raise BadDataError(f"{error}; correct or remove the file") from error


def _read(path: Path) -> Prices:
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        as_of = str(table.pop("as_of", ""))
        searches = convert(table.pop("per_1000_web_searches", None), float | None)
        return Prices(convert(table, dict[str, list[Band]]), as_of, searches)
    # Invalid UTF-8, invalid TOML and invalid prices are all ValueErrors.
    except (OSError, ValueError, RecursionError) as error:
        raise BadDataError(f"the price table {path} cannot be used: {str(error).splitlines()[0]}") from error


_CENT = 0.01


class Budget(Struct, frozen=True):
    """A limit: either tokens of all kinds, or dollars."""

    tokens: int | None = None
    usd: float | None = None

    def share(self, used: Tokens, cost: float | None) -> float:
        """Return which part of the budget is used, by tokens or by the `cost` in dollars; 1 is all of it.

        A cost of None counts as 0.
        """
        if self.tokens is not None:
            return used.total / self.tokens
        return (cost or 0.0) / self.usd if self.usd else 0.0

    def __str__(self) -> str:
        if self.tokens is not None:
            # A limit is shown exactly.
            for sign, unit in (("M", _MILLION), ("k", 1_000)):
                if self.tokens >= unit and self.tokens % (unit // 10) == 0:
                    whole, tenths = divmod(self.tokens // (unit // 10), 10)
                    return f"{whole}{f'.{tenths}' if tenths else ''}{sign} tokens"
            return f"{self.tokens} tokens"
        return f"${self.usd:.2f}" if (self.usd or 0) >= _CENT else f"${self.usd:g}"


_MONEY = r"(?i)\$\s*(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\s*(?:usd|\$)"
_TOKENS = r"(?i)(\d{1,300}(?:\.\d+)?)\s*(k|m)?(?:\s*tokens)?"


def parse_budget(text: str) -> Budget:
    """Parse a budget such as `$5`, `5usd`, `200000`, `200k` or `1.5m tokens`.

    Raises:
        UsageError: The text has another form, or the amount is zero.
    """
    money, tokens = re.fullmatch(_MONEY, text.strip()), re.fullmatch(_TOKENS, text.strip())
    if money and (usd := float(money[1] or money[2])) > 0:
        return Budget(usd=usd)
    # As an exponent, because 4.1 * 1_000_000 is less than 4100000.
    if tokens and (count := int(float(tokens[1] + {"k": "e3", "m": "e6"}.get((tokens[2] or "").lower(), "")))) > 0:
        return Budget(tokens=count)
    raise UsageError(f"{text!r} is not a budget: give money as $5 or tokens as 200k")


_SMALLEST = 1_000
"""Fewest tokens of a budget; the first call uses up fewer."""


def doubt(text: str | None) -> str | None:
    """Return a note about a budget that the first call uses up; None if it is larger, or not a budget.

    In an unquoted `$25` a shell replaces `$2`, so that `5` is left, which means tokens.
    """
    budget = budget_or_none(text)
    if budget is None or budget.tokens is None or budget.tokens >= _SMALLEST:
        return None
    return f"a budget of {budget} is used up by the first call; quote money for the shell: '$25'"


def budget_or_none(text: str | None) -> Budget | None:
    """Return the budget that a file states; None if it states none or an invalid one."""
    try:
        return parse_budget(text) if text is not None else None
    except UsageError:
        return None
