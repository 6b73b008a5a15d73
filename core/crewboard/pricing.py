"""What a reply costs: from an editable table; a model that is not in it has no price, and none is guessed."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from crewboard.errors import BadDataError, UsageError
from crewboard.records import Tokens

_SHIPPED = Path(__file__).with_name("prices.toml")
_MILLION = 1_000_000
_DATED = re.compile(r"-\d{8}$")


class Band(BaseModel):
    """Dollars per million tokens, for requests of up to `up_to` prompt tokens."""

    model_config = ConfigDict(extra="forbid")

    input: float
    output: float
    cache_read: float
    cache_write: float
    up_to: int | None = None

    def cost(self, used: Tokens) -> float:
        """Dollars for one request."""
        return (
            used.input * self.input
            + used.output * self.output
            + used.cache_read * self.cache_read
            + used.cache_write * self.cache_write
        ) / _MILLION


_BANDS = TypeAdapter(dict[str, list[Band]])


@dataclass(frozen=True)
class Prices:
    """A price table: bands by model, and the day it was read off."""

    bands: dict[str, list[Band]]
    as_of: str

    def cost(self, model: str, used: Tokens) -> float | None:
        """Dollars for one request of `model`; None where its price is not known."""
        bands = self.bands.get(model) or self.bands.get(_DATED.sub("", model)) or []
        prompt = used.input + used.cache_read + used.cache_write
        band = next((band for band in bands if band.up_to is None or prompt <= band.up_to), None)
        return None if band is None else band.cost(used)


def load(root: Path) -> Prices:
    """The shipped table, with what the project's own `.crewboard/prices.toml` says in front.

    Raises:
        BadDataError: The project's table is damaged.
    """
    shipped = _read(_SHIPPED)
    own = root / ".crewboard" / "prices.toml"
    if not own.exists():
        return shipped
    if own.is_symlink():
        raise BadDataError(f"the price table {own} is a symbolic link, and crewboard follows none in a team directory")
    mine = _read(own)
    return Prices({**shipped.bands, **mine.bands}, mine.as_of or shipped.as_of)


def _read(path: Path) -> Prices:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        as_of = str(table.pop("as_of", ""))
        return Prices(_BANDS.validate_python(table), as_of)
    except (OSError, ValueError, RecursionError) as error:  # bad text, bad TOML and bad prices are ValueErrors
        raise BadDataError(f"the price table {path} cannot be used: {str(error).splitlines()[0]}") from error


_CENT = 0.01


@dataclass(frozen=True)
class Budget:
    """A limit, in tokens of any kind or in dollars."""

    tokens: int | None = None
    usd: float | None = None

    def share(self, used: Tokens, cost: float | None) -> float:
        """How much of it is used up; 1 is all."""
        if self.tokens is not None:
            return (used.input + used.output + used.cache_read + used.cache_write) / self.tokens
        return (cost or 0.0) / self.usd if self.usd else 0.0

    def __str__(self) -> str:
        if self.tokens is not None:
            return f"{self.tokens} tokens"
        return f"${self.usd:.2f}" if (self.usd or 0) >= _CENT else f"${self.usd:g}"


_MONEY = re.compile(r"\$\s*(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\s*(?:usd|\$)", re.IGNORECASE)
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)\s*(k|m)?(?:\s*tokens)?", re.IGNORECASE)


def parse_budget(text: str) -> Budget:
    """Read `$5`, `5usd`, `200000`, `200k` or `1.5m tokens`.

    Raises:
        UsageError: It is none of these, or nothing.
    """
    money, tokens = _MONEY.fullmatch(text.strip()), _TOKENS.fullmatch(text.strip())
    if money and (usd := float(money[1] or money[2])) > 0:
        return Budget(usd=usd)
    if tokens and (count := int(float(tokens[1]) * {"k": 1_000, "m": _MILLION}.get((tokens[2] or "").lower(), 1))) > 0:
        return Budget(tokens=count)
    raise UsageError(f"{text!r} is no budget: give money as $5 or tokens as 200k")


def budget_or_none(text: str | None) -> Budget | None:
    """The limit that a file states; None where it states none that can be read."""
    try:
        return parse_budget(text) if text is not None else None
    except UsageError:
        return None
