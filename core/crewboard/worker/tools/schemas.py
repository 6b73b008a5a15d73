"""The schemas of tools in the form that is sent: in the few keywords that every server of the Messages API takes.

The API takes any JSON schema of draft 2020-12. Servers that make a grammar of it (llama.cpp, LM Studio) refuse a whole
request because of one `pattern`, reference or long repetition. So some keywords are left out, and the schema that is
sent may allow more than the tool's own one, by which each input is checked.

A *part* below is a schema or a schema nested in it.
"""

import json
import urllib.parse
from collections.abc import Mapping
from typing import Any

from crewboard.errors import BadDataError

MAX_SCHEMA = 16_000
"""The most characters of a schema, which the model reads with each call."""

_AS_THEY_ARE = frozenset({
    "type", "description", "enum", "const", "default", "examples", "format", "required", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems",
    "uniqueItems",
})  # fmt: skip
_PARTS = frozenset({"items", "additionalProperties"})
_LISTS = {"prefixItems": "prefixItems", "allOf": "allOf", "anyOf": "anyOf", "oneOf": "anyOf"}
"""Keywords with a list of parts, each with the keyword that is sent. `oneOf` becomes `anyOf`, because simplified parts
may allow more, so that an input may fit two of them."""

_NOTES = frozenset({"description", "default", "examples"})
"""Keywords that describe a part and restrict nothing."""

_ANYTHING = ["string", "number", "boolean", "object", "array", "null"]
"""All types, for a part without any restriction: older grammar builders refuse one that has only notes."""

_LENGTHS = frozenset({"minLength", "maxLength", "minItems", "maxItems"})
_LONGEST = 1_000
"""The highest bound of a length that is sent. llama.cpp makes as many repetitions of a rule, and refuses 2,000."""

_LEVELS = (8, 3, 2, 1)
"""Levels of nested references that are followed. They are tried in this order, until the schema fits the limits."""

_MOST_PARTS = 2_000
"""The most parts of a schema whose references are replaced: even a short schema can lead to very many."""


class _TooManyPartsError(Exception): ...


def simplify(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without references, patterns and titles that allows each input that `schema` allows.

    There is one exception: `null` is not allowed where it is the default of an input that may be left out.

    Raises:
        BadDataError: A reference leads to nothing in the schema, or the schema is too large without references.
    """
    for levels in _LEVELS:
        try:
            whole = _Simplifier(schema, levels).part(schema, ("#",))
        except _TooManyPartsError:
            continue
        if len(json.dumps(whole)) <= MAX_SCHEMA:
            return whole
    raise BadDataError(f"its schema has more than {MAX_SCHEMA} characters without references")


class _Simplifier:
    """The simplification of one schema, `root`, in which `levels` of nested references are followed.

    In its methods, `within` are the references that lead to a part, from the outside in.
    """

    def __init__(self, root: Mapping[str, Any], levels: int) -> None:
        self._root = root
        self._levels = levels
        self._left = _MOST_PARTS

    def part(self, given: Any, within: tuple[str, ...]) -> dict[str, Any]:  # noqa: ANN401  of a server
        self._left -= 1
        if self._left < 0:
            raise _TooManyPartsError
        if not isinstance(given, Mapping):
            # `true` allows everything; `false`, which is rare, is left to the check of the input.
            given = {}
        found = self._keywords(given, within)
        if "pattern" in given:
            found["description"] = f"{found.get('description', '')} (pattern: {given['pattern']})".lstrip()
        if "patternProperties" in given:
            # It would refuse the properties that the patterns allow.
            found.pop("additionalProperties", None)
        if len(found.get("allOf", ())) == 1:
            found = _both(found.pop("allOf")[0], found)
        if "$ref" in given:
            found = _both(self._referred(given["$ref"], within), found)
        return found if found.keys() - _NOTES else {"type": _ANYTHING, **found}

    def _keywords(self, given: Mapping[str, Any], within: tuple[str, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in given.items():
            # A default that goes without saying, and a bound that is too high to be sent.
            if key == "default" and (value is None or value is False or value in ("", [], {})):
                continue
            if key in _LENGTHS and value > _LONGEST:
                continue
            if key in _AS_THEY_ARE:
                found[key] = value
            elif key == "properties":
                parts = {name: self.part(each, within) for name, each in value.items()}
                for name, each in value.items():
                    is_optional = name not in given.get("required", ()) and isinstance(each, Mapping)
                    if is_optional and each.get("default", ...) is None:
                        parts[name] = _without_null(parts[name])
                found[key] = parts
            elif key in _PARTS:
                found[key] = value if isinstance(value, bool) else self.part(value, within)
            elif key in _LISTS and _LISTS[key] not in found:
                found[_LISTS[key]] = [self.part(each, within) for each in value]
        return found

    def _referred(self, reference: str, within: tuple[str, ...]) -> dict[str, Any]:
        """Return the part that a reference leads to, simplified; only type and description if it is nested too deeply.

        Raises:
            BadDataError: The reference leads to nothing in the schema.
        """
        target: Any = self._root
        first, *steps = urllib.parse.unquote(reference).split("/")
        try:
            for step in steps:
                name = step.replace("~1", "/").replace("~0", "~")
                target = target[int(name) if isinstance(target, list) else name]
        except (LookupError, TypeError, ValueError):
            target = None
        if first != "#" or not isinstance(target, Mapping | bool):
            raise BadDataError(f"its schema refers to {reference[:100]!r}, which is not in it")
        if reference not in within and len(within) <= self._levels:
            return self.part(target, (*within, reference))
        if not isinstance(target, Mapping):
            return {}
        known = {key: target[key] for key in ("type", "description") if key in target}
        return {"description": "in the form of the one around it", **known} if reference in within else known


def _both(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return a part that allows only what both parts allow; its notes are those of the second one."""
    shared = (first.keys() & second.keys()) - _NOTES
    if all(first[key] == second[key] for key in shared):
        return {**first, **second}
    notes = {key: value for key, value in second.items() if key in _NOTES}
    return {"allOf": [first, {key: value for key, value in second.items() if key not in _NOTES}], **notes}


def _without_null(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part that does not allow `null`, unless no other type or alternative is left."""
    kinds, options = part.get("type"), part.get("anyOf", [])
    if isinstance(kinds, list) and (others := [kind for kind in kinds if kind != "null"]):
        part = {**part, "type": others[0] if len(others) == 1 else others}
        if "enum" in part:
            part["enum"] = [value for value in part["enum"] if value is not None]
    if left := [option for option in options if option != {"type": "null"}]:
        rest = {key: value for key, value in part.items() if key != "anyOf"}
        part = _both(left[0], rest) if len(left) == 1 else {**rest, "anyOf": left}
    return part


def without_nulls(sent: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that `simplify` made, without `null` for values that can be left out in place of it.

    These are values that may be missing, and at the top also those that are required and may be `null`: they are no
    longer required, and the caller must fill in `null`. Some servers refuse a choice between null and other types.
    """
    found: dict[str, Any] = _without_nulls(sent)
    properties = found.get("properties", {})
    nullable = {
        name
        for name in found.get("required", ())
        if name in properties and properties[name].get("type") != _ANYTHING
        if _without_null(properties[name]) != properties[name]
    }
    if not nullable:
        return found
    found["properties"] = {name: _without_null(part) if name in nullable else part for name, part in properties.items()}
    found["required"] = [name for name in found["required"] if name not in nullable]
    return found


def _without_nulls(part: Any) -> Any:  # noqa: ANN401  a part, or no schema
    """Return a part without `null` for values that may be missing, in it and in its parts; other values as they are."""
    if not isinstance(part, dict):
        return part
    found = {key: _without_nulls(value) if key in _PARTS else value for key, value in part.items()}
    found |= {key: [_without_nulls(each) for each in part[key]] for key in _LISTS if key in part}
    if "properties" in part:
        required = part.get("required", ())
        inner = {name: _without_nulls(each) for name, each in part["properties"].items()}
        found["properties"] = {
            name: each if name in required or each.get("type") == _ANYTHING else _without_null(each)
            for name, each in inner.items()
        }
    return found
