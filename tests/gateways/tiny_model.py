"""A model file for llama.cpp, of two megabytes: it follows scripts, and says nonsense where none is named.

Its weights let each token of a script be followed by the next one, and a byte by any. Which token begins a reply is
decided by the chat template: it ends the prompt with a token for the script whose phrase stands in the conversation's
first message, and for how many results of tools came since.
"""

import itertools
import json
import random
import string
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Step = Sequence[tuple[str, dict[str, Any]]]
"""The calls that the model makes at once."""

_STRING, _ARRAY, _UINT32, _INT32, _FLOAT32, _BOOL = 8, 9, 4, 5, 6, 7
"""Types of values in the file's head."""
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
"""Types of tokens."""

_BYTES = 256
_WIDTH = 32
"""Dimensions of the layer's parts: what they hold does not count."""
_PAIRS = tuple(map("".join, itertools.product(string.ascii_lowercase + " ", repeat=2)))
"""Tokens that make a prompt half as long."""
_SHORTEST_PIECE = 9
_SURE, _CHANCE = 40.0, 0.2
"""The weight of what must follow, and the largest of what may."""
_SPACE = "\u2581"
"""The spelling of a space by the tokenizer."""
_END, _NOISE, _DONE = "<|im_end|>", "<|noise|>", "<|done|>"

_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nCall one so:\\n" }}
    {{- "<tool_call>\\n{\\"name\\": NAME, \\"arguments\\": OBJECT}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set found = namespace(first='', results=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if not found.first %}{%- set found.first = message.content %}{%- endif %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- set found.results = found.results + 1 %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- set steps = STEPS %}
    {%- set begin = namespace(token='<|noise|>') %}
    {%- for phrase, tokens in steps.items() %}
        {%- if phrase in found.first %}
            {%- set begin.token = tokens[found.results] if found.results < tokens | length else '<|done|>' %}
        {%- endif %}
    {%- endfor %}
    {%- if SUMMARY in messages[-1].content or SUMMARISED in found.first %}
        {%- set begin.token = '<|done|>' %}
    {%- endif %}
    {{- begin.token }}
{%- endif %}
"""


def write(
    folder: Path, scripts: Mapping[str, Sequence[Step]], context: int, done: str = "the end"
) -> tuple[Path, Path]:
    """Write the model and its chat template into `folder`; return both paths.

    `scripts` are by a phrase of the first message. A step with several calls is followed by the next one after all
    their results. After its last step, to a request for a summary and after one, a script says `done`.
    """
    kinds: dict[str, int] = {"<unk>": _UNKNOWN}
    kinds |= {f"<0x{byte:02X}>": _BYTE for byte in range(_BYTES)}
    kinds |= dict.fromkeys((pair.replace(" ", _SPACE) for pair in _PAIRS), _NORMAL)
    kinds |= dict.fromkeys(("<|im_start|>", _END, _NOISE, _DONE), _CONTROL)
    follows: dict[str, str] = {}
    begins: dict[str, list[str]] = {}

    said: dict[str, str] = {}

    def add(begin: str, text: str) -> None:
        kinds[begin] = _CONTROL
        if text not in said:
            pieces = _pieces(text, kinds)
            said[text] = pieces[0]
            kinds.update(dict.fromkeys(pieces, _USER_DEFINED))
            follows.update(itertools.pairwise([*pieces, _END]))
        follows[begin] = said[text]

    add(_DONE, done)
    for number, (phrase, steps) in enumerate(scripts.items()):
        begins[phrase] = []
        for place, step in enumerate(steps):
            add(begin := f"<|{number} {place}|>", _written(step))
            begins[phrase] += [begin] * len(step)
    model, template = folder / "tiny.gguf", folder / "tiny.jinja"
    model.write_bytes(_gguf(kinds, follows, context))
    values = {"STEPS": begins, "SUMMARISED": "word for word", "SUMMARY": "Summarise the work"}
    text = _TEMPLATE
    for name, value in values.items():
        text = text.replace(name, json.dumps(value))
    template.write_text(text)
    return model, template


def _written(step: Step) -> str:
    made = [json.dumps({"name": name, "arguments": given}) for name, given in step]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in made)


def _pieces(text: str, known: Mapping[str, int]) -> list[str]:
    """Return a text in pieces of which each is a new token, because one token is followed by one other."""
    pieces: list[str] = []
    # The server looks for these words by their bytes, unless they are tokens.
    taken = {*known, "<tool_call>", "<tool_call>\n", "</tool_call>", "\n</tool_call>"}
    while text:
        size = _SHORTEST_PIECE
        while text[:size] in taken and size < len(text):
            size += 1
        pieces.append(text[:size])
        text = text[size:]
        while pieces[-1] in taken and len(pieces) > 1:
            pieces[-2:] = ["".join(pieces[-2:])]
        taken.add(pieces[-1])
    return pieces


def _gguf(kinds: Mapping[str, int], follows: Mapping[str, str], context: int) -> bytes:
    """Return the file: one layer whose attention and feed-forward part are zero, so that only the newest token counts.

    Each token of a script has a dimension of its own. All others share the last one.
    """
    tokens = [*kinds]
    places = {token: place for place, token in enumerate(tokens)}
    dimensions = {token: place for place, token in enumerate(follows)}
    size = -(-(len(dimensions) + 1) // 32) * 32
    rng = random.Random(7)
    rows = [[0.0] * size for _ in tokens]
    for token in (_END, *(f"<0x{byte:02X}>" for byte in range(_BYTES))):
        rows[places[token]][-1] = rng.uniform(-_CHANCE, _CHANCE)
    for before, after in follows.items():
        rows[places[after]][dimensions[before]] = _SURE
    embeddings = [[0.0] * size for _ in tokens]
    for place, token in enumerate(tokens):
        embeddings[place][dimensions.get(token, -1)] = 1.0
    ones, zeros, narrow = [1.0] * size, [0.0] * size, [0.0] * _WIDTH
    tensors: dict[str, list[list[float]]] = {
        "token_embd.weight": embeddings,
        "output_norm.weight": [ones],
        "output.weight": rows,
        "blk.0.attn_norm.weight": [ones],
        "blk.0.attn_q.weight": [zeros] * _WIDTH,
        "blk.0.attn_k.weight": [zeros] * _WIDTH,
        "blk.0.attn_v.weight": [zeros] * _WIDTH,
        "blk.0.attn_output.weight": [narrow] * size,
        "blk.0.ffn_norm.weight": [ones],
        "blk.0.ffn_gate.weight": [zeros] * _WIDTH,
        "blk.0.ffn_up.weight": [zeros] * _WIDTH,
        "blk.0.ffn_down.weight": [narrow] * size,
    }
    head = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": context,
        "llama.embedding_length": size,
        "llama.block_count": 1,
        "llama.feed_forward_length": _WIDTH,
        "llama.attention.head_count": 1,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.attention.key_length": _WIDTH,
        "llama.attention.value_length": _WIDTH,
        "llama.rope.dimension_count": _WIDTH,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [*kinds.values()],
        "tokenizer.ggml.eos_token_id": places[_END],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }
    out = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(head)))
    for name, value in head.items():
        out += _string(name) + _value(value)
    data = bytearray()
    for name, matrix in tensors.items():
        shape = (len(matrix[0]),) if len(matrix) == 1 else (len(matrix[0]), len(matrix))
        out += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        for row in matrix:
            data += struct.pack(f"<{len(row)}f", *row)
        data += bytes(-len(data) % 32)
    return bytes(out + bytes(-len(out) % 32) + data)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: object) -> bytes:
    match value:
        case bool():
            kind, data = _BOOL, struct.pack("<?", value)
        case int():
            kind, data = _UINT32, struct.pack("<I", value)
        case float():
            kind, data = _FLOAT32, struct.pack("<f", value)
        case str():
            kind, data = _STRING, _string(value)
        case [str(), *_]:
            kind, data = (
                _ARRAY,
                struct.pack("<IQ", _STRING, len(value)) + b"".join(_string(str(each)) for each in value),
            )
        case [float(), *_]:
            kind, data = _ARRAY, struct.pack(f"<IQ{len(value)}f", _FLOAT32, len(value), *value)
        case [int(), *_]:
            kind, data = _ARRAY, struct.pack(f"<IQ{len(value)}i", _INT32, len(value), *value)
        case _:
            raise TypeError(value)
    return struct.pack("<I", kind) + data
