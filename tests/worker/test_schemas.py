"""Schemas of tools, as they are sent: no server refuses them, and they allow all that the tool takes."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator

from crewboard import edits
from crewboard.errors import BadDataError, UsageError
from crewboard.worker.tools.registry import TOOLS
from crewboard.worker.tools.schemas import simplify

REFUSED = {
    "$ref", "$defs", "definitions", "$schema", "$id", "$comment", "title", "pattern", "patternProperties", "oneOf",
    "not", "if", "discriminator",
}  # fmt: skip
"""Keywords that one server or another refuses, or that only cost tokens."""

NODE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
    "required": ["name"],
}

OF_SERVERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pydantic": (
        {
            "$defs": {"Color": {"enum": ["red", "blue"], "title": "Color", "type": "string"}},
            "properties": {
                "color": {"$ref": "#/$defs/Color", "description": "of the line", "default": "red"},
                "title": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Title"},
                "size": {"allOf": [{"type": "integer"}], "title": "Size"},
            },
            "required": ["size"], "title": "draw", "type": "object",
        },
        {
            "properties": {
                "color": {"enum": ["red", "blue"], "type": "string", "description": "of the line", "default": "red"},
                "title": {"type": "string"},
                "size": {"type": "integer"},
            },
            "required": ["size"], "type": "object",
        },
    ),
    "zod": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False,
            "properties": {
                "id": {"type": "string", "pattern": r"^\d+$", "description": "of the issue"},
                "kind": {"oneOf": [{"const": "a"}, {"type": "string", "pattern": "^b"}]},
                "closes": {"type": ["string", "null"]},
                "extra": {},
                "pattern": {"type": "string", "maxLength": 65_536, "not": {"const": ""}},
            },
        },
        {
            "type": "object", "additionalProperties": False,
            "properties": {
                "id": {"type": "string", "description": r"of the issue (pattern: ^\d+$)"},
                "kind": {"anyOf": [{"const": "a"}, {"type": "string", "description": "(pattern: ^b)"}]},
                "closes": {"type": ["string", "null"]},
                "extra": {"type": ["string", "number", "boolean", "object", "array", "null"]},
                "pattern": {"type": "string"},
            },
        },
    ),
    "a tree": (
        {"type": "object", "properties": {"root": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": NODE}},
        {
            "type": "object",
            "properties": {
                "root": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "children": {
                            "type": "array",
                            "items": {"description": "in the form of the one around it", "type": "object"},
                        },
                    },
                    "required": ["name"],
                }
            },
        },
    ),
    "names by pattern": (
        {"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False},
        {"type": "object"},
    ),
    "a reference with more beside it": (
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/N", "minimum": 2}},
         "definitions": {"N": {"type": "integer", "minimum": 1}}},
        {"type": "object", "properties": {"a": {"allOf": [{"type": "integer", "minimum": 1}, {"minimum": 2}]}}},
    ),
}  # fmt: skip


def parts(schema: object) -> Iterator[Mapping[str, Any]]:
    """Return all parts of a schema that are schemas; names of inputs and values are none."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for key in ("items", "additionalProperties"):
        yield from parts(schema.get(key))
    for key in ("allOf", "anyOf", "prefixItems"):
        for part in schema.get(key, ()):
            yield from parts(part)
    for part in schema.get("properties", {}).values():
        yield from parts(part)


def check_sent(schema: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)
    for part in parts(schema):
        assert not part.keys() & REFUSED


@pytest.mark.parametrize("name", TOOLS)
def test_no_tool_sends_what_a_server_refuses(name: str) -> None:
    schema = TOOLS[name].definition()["input_schema"]
    check_sent(schema)
    assert not [part for part in parts(schema) if "anyOf" in part or part.get("default", ...) is None]
    assert schema["properties"].keys() == TOOLS[name].input.model_fields.keys()


@pytest.mark.parametrize("of", OF_SERVERS)
def test_the_schema_of_a_server_is_sent_in_fewer_words(of: str) -> None:
    schema, sent = OF_SERVERS[of]
    assert json.dumps(simplify(schema)) == json.dumps(sent), "in the same order, too"
    check_sent(sent)


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/schema", "#/$defs/Gone", "#anchor", "#/type"])
def test_a_reference_to_elsewhere_is_refused(reference: str) -> None:
    with pytest.raises(BadDataError, match="which is not in it"):
        simplify({"type": "object", "properties": {"a": {"$ref": reference}}})


def test_a_schema_that_refers_to_itself_often_is_cut_to_fit() -> None:
    kinds = {f"K{n}": {"type": "object", "properties": {f"p{m}": {"$ref": f"#/$defs/K{m}"} for m in range(9)}}
             for n in range(9)}  # fmt: skip
    sent = simplify({"type": "object", "properties": {"a": {"$ref": "#/$defs/K0"}}, "$defs": kinds})
    check_sent(sent)
    assert sent["properties"]["a"]["properties"]["p1"]["properties"]["p2"] == {"type": "object"}
    # Nothing can be cut where it is wide already.
    with pytest.raises(BadDataError, match="16000 characters"):
        simplify(
            {"type": "object", "properties": {f"a{n}": {"$ref": "#/$defs/K0"} for n in range(200)}, "$defs": kinds}
        )


SCALARS = [None, True, 0, 3, "", "ab", "b"]
VALUES = [*SCALARS, [], ["ab"], [3, "b"], {}, {"a": 3}, {"a": "ab", "b": None}, {"b": {"a": 3}}, {"a": ["b"], "c": 0}]


def schemas() -> st.SearchStrategy[Any]:
    # Only for what is inside of a value, so that no schema refers to itself without end.
    references = st.fixed_dictionaries(
        {"$ref": st.sampled_from(["#", "#/$defs/a", "#/$defs/b"])},
        optional={"type": st.just("object"), "maxProperties": st.just(1), "minLength": st.just(2)},
    )

    def larger(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        some = st.lists(part, min_size=1, max_size=3)
        named = st.dictionaries(st.sampled_from("abc"), part | references, max_size=3)
        keywords: dict[str, st.SearchStrategy[Any]] = {
            "type": st.sampled_from(["object", "array", "string", ["integer", "null"]]),
            "properties": named, "required": st.lists(st.sampled_from("ab"), max_size=2, unique=True),
            "patternProperties": st.just({"^a": {"type": "string"}}), "items": part | references, "prefixItems": some,
            "allOf": some, "anyOf": some, "oneOf": some, "maxContains": st.just(1), "title": st.just("T"),
            "dependentSchemas": st.just({"a": {"required": ["b"]}}),
            **dict.fromkeys(("additionalProperties", "propertyNames", "contains", "not", "if", "then", "else"), part),
            **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), part),
        }  # fmt: skip
        return st.fixed_dictionaries({}, optional=keywords)

    leaves = st.sampled_from([
        {}, True, False, {"type": "string", "pattern": "^a"}, {"type": "integer", "minimum": 2}, {"enum": ["b", None]},
        {"const": 3}, {"minLength": 1, "description": "d"}, {"type": ["string", "null"]}, {"maxItems": 1},
    ])  # fmt: skip
    return st.recursive(leaves, larger, max_leaves=8)


@pytest.mark.long
@given(schemas(), schemas(), schemas())
def test_what_a_server_takes_is_never_refused(root: object, first: object, second: object) -> None:
    schema = {**(root if isinstance(root, dict) else {}), "$defs": {"a": first, "b": second}}
    Draft202012Validator.check_schema(schema)
    sent = simplify(schema)
    check_sent(sent)
    for value in VALUES:
        assert not Draft202012Validator(schema).is_valid(value) or Draft202012Validator(sent).is_valid(value), value


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("bash", {"command": " \n"}, "command: the text is blank"),
        ("todo", {"items": [{"text": ""}]}, "items.0.text: the text is blank"),
        ("skill", {"name": "../up"}, "name: no skill has such a name: give one as it is listed"),
        ("skill", {"name": "one\n"}, "name: no skill has such a name: give one as it is listed"),
        ("bash", {"command": "true", "timeout": 0}, "timeout: Input should be greater than 0"),
        ("bash", {"command": "true", "background": "yes"}, "background: it must be true or false"),
        ("bash", {"command": "true", "background": 1}, "background: it must be true or false"),
        ("read_file", {"path": "a", "offset": True}, "offset: it must be a number"),
        ("task_create", {"subject": "a", "blocked_by": [1, True]}, "blocked_by: it must be a number"),
    ],
)
def test_what_no_schema_says_is_checked_in_code(name: str, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as refused:
        TOOLS[name].parse(arguments)
    assert str(refused.value) == f"{name} was not run: {why}"


def test_numbers_and_flags_may_be_written_as_text() -> None:
    given = TOOLS["bash"].parse({"command": "true", "timeout": "5", "background": "true"})
    assert (given.timeout, given.background) == (5, True)


@pytest.mark.parametrize(
    "flag", [True, False, "true", "false", "True", "False", "TRUE", "yes", "1", 1, " true", [True]]
)
@pytest.mark.parametrize("form", ["one", "several"])
def test_a_request_reads_replace_all_as_the_tool_does(flag: object, form: str) -> None:
    """What the operator approves by a diff is made of the call as the model wrote it."""
    one = {"old_text": "x = 1", "new_text": "x = 2", "replace_all": flag}
    call = {"path": "a.py", **(one if form == "one" else {"edits": [one]})}
    try:
        given = TOOLS["edit_file"].parse(call).model_dump(exclude_unset=True)
    except UsageError:
        assert str(flag).lower() not in ("true", "false")
        return
    assert edits.replacements(call) == edits.replacements(given)
    assert edits.replacements(call)[0].everywhere is (str(flag).lower() == "true")


def test_null_for_an_input_that_may_be_missing_is_taken() -> None:
    assert TOOLS["todo"].parse({"items": None}).items is None
    assert TOOLS["task_update"].parse({"task_id": 1, "status": None}).status is None
