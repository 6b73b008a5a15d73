"""The base of all records, types of fields that several records use, and small helpers."""

import copy
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from crewboard.names import NAME_PATTERN, NAME_RULE

MAX_DEPTH = 32
"""Most levels to which metadata and payloads may be nested. Deeper values could exhaust the stack of a reader."""

if TYPE_CHECKING:
    JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | str | int | float | bool | None
else:
    JsonValue = Any

LATEST = 253_402_300_799
"""The last second of the year 9999 in epoch seconds, the last time that calendar functions can show."""

Time = Annotated[float, msgspec.Meta(ge=0, le=LATEST)]
"""A time in epoch seconds."""

Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
"""The name of an agent or a team."""

_UNKNOWN = "_unknown"


class Record(msgspec.Struct, dict=True, forbid_unknown_fields=True):
    """Base of all records that are stored in a team directory, or by the user.

    Constructing a record or assigning to a field checks nothing; reading and writing it does (`store.codec`).
    """

    @property
    def unknown(self) -> dict[str, Any]:
        """Return the fields in the record's file that this version does not know."""
        found: dict[str, Any] = self.__dict__.get(_UNKNOWN, {})
        return found

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields. `__post_init__` is not run: derived fields stay as they are.

        Raises:
            TypeError: The record has no such field.
        """
        # Not `msgspec.structs.replace`, which drops unknown fields and runs `__post_init__`.
        made = copy.copy(self)
        made.__dict__.update(self.__dict__)
        for field, value in changes.items():
            if field not in self.__struct_fields__:
                raise TypeError(f"a {type(self).__name__} has no field {field!r}")
            setattr(made, field, value)
        return made

    def as_dict(self) -> dict[str, Any]:
        """Return the record as in its file: dictionaries, lists and plain values. Unknown fields come last."""
        config = self.__struct_config__
        found = {config.tag_field: config.tag} if config.tag_field else {}
        nested = _nested(type(self))
        for key, field in _fields(type(self)).items():
            value = getattr(self, field)
            if value is not msgspec.UNSET:
                found[key] = _plain(value) if field in nested else value
        return {**found, **self.unknown}

    @classmethod
    def prepare(cls) -> None:
        """Build the tables of this type's fields now, not at the first use of the type."""
        _fields(cls)
        _nested(cls)

    def has_unknown(self) -> bool:
        """Return True if this record or one inside it has unknown fields."""
        return bool(self.__dict__) or any(
            record.has_unknown() for field in _nested(type(self)) for record in _records_in(getattr(self, field))
        )


R = TypeVar("R")

_BUILDING = RLock()
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def decoder(model: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401  a type or a union
    """Return the JSON decoder of a type. It is made once, and by one thread at a time.

    msgspec 0.22 stores what it knows of a class before that is complete. A second thread that finds it then reads
    through a null pointer, and the process crashes.
    """
    found = _DECODERS.get(model)
    if found is None:
        with _BUILDING:
            found = _DECODERS[model] = msgspec.json.Decoder(model)
    return found


def convert(value: Any, model: type[R]) -> R:  # noqa: ANN401  any JSON value
    """Return a JSON value as a record of the type `model`. Numbers may be texts, and unknown fields are kept.

    Raises:
        msgspec.ValidationError: The value does not fit the model.
    """
    unknown: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hint: Any = model
    known = _split(value, hint, (), unknown)
    # msgspec examines a union anew at each call, a class once.
    exact: Any = _shape(hint).choose(value) or hint
    decoder(exact)
    made: R = msgspec.convert(known, exact, strict=False)
    for path, fields in unknown:
        record: Any = made
        for step in path:
            record = getattr(record, step) if isinstance(record, Record) else record[step]
        record.__dict__[_UNKNOWN] = fields
    return made


def _split(value: Any, hint: Any, path: tuple[Any, ...], unknown: list[Any]) -> Any:  # noqa: ANN401  any JSON value
    """Return `value`, which should be of the type `hint`, without unknown fields; add these to `unknown`, by path."""
    shape = _shape(hint)
    if isinstance(value, dict):
        model = shape.choose(value)
        if model is None and shape.values is not None:
            return {key: _split(each, shape.values, (*path, key), unknown) for key, each in value.items()}
        if model is None:
            return value
        fields, nested, tag_field = _fields(model), _nested(model), model.__struct_config__.tag_field
        known, others = {}, {}
        for key, each in value.items():
            field = fields.get(key)
            if field is None and key != tag_field:
                others[key] = each
            else:
                known[key] = _split(each, nested[field], (*path, field), unknown) if field in nested else each
        if others:
            unknown.append((path, others))
        return known
    if isinstance(value, list) and shape.items is not None:
        return [_split(each, shape.items, (*path, place), unknown) for place, each in enumerate(value)]
    return value


class _Shape(msgspec.Struct, frozen=True):
    """Where a type contains records: it is one of `models`, by tag, or its `values` or `items` contain them."""

    models: dict[Any, type[Record]] = {}
    tag_field: str | None = None
    values: Any = None
    items: Any = None

    def choose(self, value: Any) -> type[Record] | None:  # noqa: ANN401  any JSON value
        """Return the one of `models` that `value` should be, by its tag; None if there is none."""
        tag = value.get(self.tag_field) if isinstance(value, dict) else None
        return self.models.get(tag) if isinstance(tag, str) or self.tag_field is None else None


@cache
def _shape(hint: Any) -> _Shape:  # noqa: ANN401  any type
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _shape(arguments[0])
    if origin in (Union, types.UnionType):
        shapes = [_shape(each) for each in arguments if _mentions_record(each)]
        models = {tag: model for shape in shapes for tag, model in shape.models.items()}
        return msgspec.structs.replace(shapes[0], models=models) if shapes else _Shape()
    if _is_record(hint):
        config = hint.__struct_config__
        return _Shape({config.tag: hint}, config.tag_field)
    if origin is dict:
        return _Shape(values=arguments[1])
    return _Shape(items=arguments[0]) if origin is list else _Shape()


def _is_record(hint: Any) -> bool:  # noqa: ANN401  any type
    return isinstance(hint, type) and get_origin(hint) is None and issubclass(hint, Record)


def _mentions_record(hint: Any) -> bool:  # noqa: ANN401  any type
    return _is_record(hint) or any(_mentions_record(each) for each in get_args(hint))


@cache
def _fields(model: type[Record]) -> dict[str, str]:
    """Return the names of a model's fields by their names in JSON."""
    return dict(zip(model.__struct_encode_fields__, model.__struct_fields__, strict=True))


@cache
def _nested(model: type[Record]) -> dict[str, Any]:
    """Return the fields of a model that hold records, with their types."""
    hints = get_type_hints(model, include_extras=True)
    return {field: hints[field] for field in model.__struct_fields__ if _mentions_record(hints[field])}


def _records_in(value: object) -> Iterator[Record]:
    """Yield the records that a field holds."""
    if isinstance(value, Record):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _records_in(each)


def pick(names: Sequence[str], *sources: object, **made: object) -> dict[str, Any]:
    """Return a dictionary with these names as keys, in this order, and plain JSON values.

    The value of a name is the one in `made`, else the attribute of the first source that has it.

    Raises:
        AttributeError: A name is neither in `made` nor an attribute of a source.
    """
    found = {name: next((each for each in sources[:-1] if hasattr(each, name)), sources[-1]) for name in names}
    return {name: _plain(made[name] if name in made else getattr(found[name], name)) for name in names}


def _plain(value: Any) -> Any:  # noqa: ANN401  any field's value
    if isinstance(value, Record):
        return value.as_dict()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


_PLACE = r" - at (?:`key` in )?`\$\.?([^`]*)`$"
_WORDINGS: tuple[tuple[str, str], ...] = (
    (r"Object missing required field `(.+)`", r".\1: Field required"),
    (r"Object contains unknown field `(.+)`", r".\1: Extra inputs are not permitted"),
    (r"Expected `\w+` >= (-?\d+)(?:\.0)?", r": Input should be greater than or equal to \1"),
    (r"Expected `\w+` <= (-?\d+)(?:\.0)?", r": Input should be less than or equal to \1"),
    (r"Expected `\w+` > (-?\d+)(?:\.0)?", r": Input should be greater than \1"),
    (rf"Expected `str` matching regex {re.escape(repr(NAME_PATTERN))}", f": Value error, {NAME_RULE}"),
    (r"Expected `str` matching regex (.+)", r": String should match pattern \1"),
    (r"Expected `(\w+)` of length (.+)", r": Input should have a length \2"),
    (r"Expected `int`, got `(.+)`", r": Input should be a valid integer, not \1"),
    (r"Expected `(.+)`, got `(.+)`", r": Input should be \1, not \2"),
    (r"Invalid (?:enum )?value (.+)", r": \1 is not one of its values"),
    # The words of a `__post_init__`.
    (r"([\w.]+): (.+)", r".\1: \2"),
)
"""Patterns of msgspec's error texts, and the texts used in their place, which stand behind the path of the field. They
are compiled only when there is an error.
"""


def describe_invalid(
    error: msgspec.ValidationError, whole: str, choices: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Return what is wrong and where, such as `members.0.name: Field required`; `whole` names the outermost value.

    `choices` has the allowed values of fields, which are listed if a value is none of them.
    """
    what, place = str(error), ""
    if found := re.search(_PLACE, what):
        what = what[: found.start()]
        place = found[1].replace("[...]", ".*").replace("[", ".").replace("]", "")
    for pattern, wording in _WORDINGS:
        if found := re.fullmatch(pattern, what):
            what = found.expand(wording)
            break
    else:
        what = f": {what}"
    text = f"{place}{what}".lstrip(".")
    if choices and (listed := choices.get(place.lstrip("."))):
        text = text.replace("one of its values", f"one of {', '.join(listed)}")
    return f"{whole}{text}" if text.startswith(":") else text


def counted(number: int, word: str) -> str:
    """Return a number and a word, with an s at the end of the word unless the number is 1: `2 files`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def first_line(text: str, most: int = 200) -> str:
    """Return the first line of a text that is not blank, cut to `most` characters, and how much more there is."""
    lines = [line.strip() for line in text.split("\n") if line.strip()] or [""]
    first, rest = lines[0], lines[0][most:]
    more = [f"+{counted(len(rest), 'character')}"] if rest else []
    more += [f"+{counted(len(lines) - 1, 'line')}"] if lines[1:] else []
    return f"{first[:most]} … ({', '.join(more)})" if more else first


def check_depth(value: JsonValue, where: str = "", limit: int = MAX_DEPTH) -> int:
    """Return the number of levels to which `value` is nested, at least 1.

    Raises:
        ValueError: It is nested deeper than `limit`; the message begins with `where`.
    """
    if limit < 0:
        raise ValueError(f"{where}nested deeper than {MAX_DEPTH}")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max((check_depth(child, where, limit - 1) for child in children), default=0)
