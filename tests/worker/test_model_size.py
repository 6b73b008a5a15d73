"""The size of a model: as the user, the project or the server says, else assumed; learned where it was wrong."""

import asyncio
import json
import re
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from crewboard import endpoint, models
from crewboard.commands import control, messages
from crewboard.commands import hire as hiring
from crewboard.errors import BadDataError, UsageError
from crewboard.models import parse_tokens
from crewboard.pricing import load
from crewboard.records.agents import HireOptions, Tokens
from crewboard.records.events import Intake, Retry, Summary
from crewboard.store import agents
from crewboard.store.layout import TeamDirectory
from crewboard.worker.interrupts import Interrupts
from tests.crash.scenarios import hire, worker
from tests.crew import Crew
from tests.matrix import default
from tests.raw import Raw, RawServer, as_json, sse
from tests.worker.test_odd_replies import DONE, STOP, begin, call, end, listing, piece, start, text
from tests.worker.test_outage import Waits

pytestmark = pytest.mark.xdist_group("sdk")

of_answers = pytest.mark.files_only("what is asked of a model, and what its answer means, no store knows")

Make = Callable[..., Crew]

ONCE_MORE, SHORTER = "tries once more as it is", "tries with a summary of the conversation"

MODEL = "org/qwen:7b"
PAGE = "/v1/models/org%2Fqwen%3A7b"


def listed(*entries: dict[str, Any]) -> Raw:
    return as_json({"object": "list", "data": [*entries]})


OWN = {"id": MODEL, "max_model_len": 16_384}
LOADED = as_json({"models": [{"name": "other"}, {"name": MODEL, "context_length": 8192}]})
TOML = '["org/qwen:7b"]\nwindow = "64k"\nreply = 8000\n'

ONE = listed({"id": "a.gguf", "meta": {"n_ctx_train": 9, "n_ctx": 4096}})
ROUTER = listed({"id": "x"}, {"id": MODEL, "context_length": 40_000, "top_provider": {"max_completion_tokens": 5000}})
NONSENSE = {
    PAGE: as_json([1]),
    "/v1/models": as_json({"data": [{"id": MODEL, "max_model_len": "x"}, 3]}),
    "/api/ps": Raw(b"<", kind="text/html"),
}
SAID = {"window": 16_000, "max_reply": 2000}


def page(**said: object) -> dict[str, Raw]:
    return {PAGE: as_json({"id": MODEL, **said})}


LOADED_PART = listed({"id": MODEL, "max_context_length": 131_072, "loaded_context_length": 8192})

# What the hire, the project and the server's pages say: the window, the longest reply, and whether it is assumed.
SIZES: dict[str, tuple[dict[str, int], str, dict[str, Raw], tuple[int, int, bool]]] = {
    "hire": (SAID, TOML, page(max_input_tokens=9000), (16_000, 2000, False)),
    "hire and project": ({"window": 16_000}, TOML, {}, (16_000, 8000, False)),
    "project": ({}, TOML, {"/v1/models": listed(OWN)}, (64_000, 8000, False)),
    "model": ({}, "", page(max_input_tokens=50_000, max_tokens=9000), (50_000, 9000, False)),
    "model of LiteLLM": ({}, "", page(max_input_tokens=50_000, max_output_tokens=99_000), (50_000, 32_000, False)),
    "list of vLLM": ({}, "", {"/v1/models": listed({"id": "x"}, OWN)}, (16_384, 16_000, False)),
    "list of llama.cpp": ({}, "", {"/v1/models": ONE}, (4096, 16_000, False)),
    "list of OpenRouter": ({}, "", {"/v1/models": ROUTER}, (40_000, 5000, False)),
    "list of LM Studio": ({}, "", {"/v1/models": LOADED_PART}, (8192, 16_000, False)),
    "list of Groq": ({}, "", {"/v1/models": listed({"id": MODEL, "context_window": 8192})}, (8192, 16_000, False)),
    "numbers as texts": ({}, "", page(max_input_tokens="50000", max_tokens="9000"), (50_000, 9000, False)),
    "numbers with a point": ({}, "", page(max_input_tokens=50_000.0, max_tokens=9e3), (50_000, 9000, False)),
    "Ollama": ({}, "", {"/v1/models": listed({"id": MODEL}), "/api/ps": LOADED}, (8192, 16_000, False)),
    "nothing": ({}, "", {}, (32_000, 4000, True)),
    "nonsense": ({}, "", NONSENSE, (32_000, 4000, True)),
}


def caller(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, url: str, **flags: int) -> Any:  # noqa: ANN401  its class is loaded late
    """Return the model of a worker in this process."""
    # Loading the SDK takes more than a second.
    from crewboard.worker.llm import model

    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    spec = hire(directory, "sized").replace(model=MODEL, flags=HireOptions(**cast("Any", flags)))
    agents.change_spec(directory.agent("sized"), lambda _: spec)
    return model.Model(worker(directory, "sized"), cast("Interrupts", Waits()))


@pytest.mark.files_only
def test_a_server_that_hangs_is_asked_once_about_its_models(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from crewboard.worker.llm import model

    monkeypatch.setattr(model, "_ASK_TIMEOUT", 0.2)
    held = threading.Event()
    with RawServer(
        DONE, pages=dict.fromkeys((PAGE, "/v1/models", "/api/ps"), Raw(b"", missing=9, held=held))
    ) as server:
        asking = caller(directory, monkeypatch, server.url)
        asyncio.run(asking.learn_size())
        held.set()
    assert server.asked in ([PAGE], [])
    assert "within 0.2 s, so it is not asked about its models" in capfd.readouterr().err


@pytest.mark.files_only
@pytest.mark.parametrize(
    "endless", [Raw(b"", missing=10**6, drips=True), Raw(b"", head_drips=True)], ids=["body", "headers"]
)
def test_an_answer_about_models_that_never_ends_is_not_awaited(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, endless: Raw
) -> None:
    from crewboard.worker.llm import model

    monkeypatch.setattr(model, "_ASK_TIMEOUT", 0.2)
    with RawServer(DONE, pages=dict.fromkeys((PAGE, "/v1/models"), endless)) as server:
        asking = caller(directory, monkeypatch, server.url)
        asyncio.run(asyncio.wait_for(asking.learn_size(), 60))
        assert not asyncio.run(asyncio.wait_for(asking._is_up(), 60))
        with pytest.raises(TimeoutError):
            endpoint.get({"ANTHROPIC_BASE_URL": server.url}, "/v1/models", 0.2)


@pytest.mark.files_only
@pytest.mark.parametrize("name", SIZES)
def test_the_first_that_says_it_gives_the_size(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    flags, toml, pages, expected = SIZES[name]
    (directory.root / ".crewboard" / "models.toml").write_text(toml)
    with RawServer(DONE, pages=pages) as server:
        found = caller(directory, monkeypatch, server.url, **flags)
        asyncio.run(found.learn_size())
    state = found._run_state
    assert (state.window, found.longest_reply, state.window_is_assumed) == expected
    assert ("tokens are assumed" in capfd.readouterr().err) == expected[2]


@pytest.mark.files_only
@pytest.mark.parametrize(("is_api", "longest"), [(True, 1000), (False, 2000)])
def test_only_the_api_is_believed_that_a_reply_cannot_be_longer(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, is_api: bool, longest: int
) -> None:
    with RawServer(DONE, pages=page(max_input_tokens=9000, max_tokens=1000)) as server:
        found = caller(directory, monkeypatch, server.url, **SAID)
        found.is_api = is_api
        asyncio.run(found.learn_size())
    assert found.longest_reply == longest


@pytest.mark.files_only("asks one model in this process")
def test_the_documents_speak_while_the_api_does_not(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    api, other = "https://api.anthropic.com", "http://127.0.0.1:9"
    for url, model, thinks in ((api, "claude-opus-5-5", True), (api, MODEL, False), (other, "claude-opus-5-5", False)):
        found = caller(directory, monkeypatch, url)
        found._run_state.spec = found._run_state.spec.replace(model=model)
        assert (found.settings().get("thinking", {}).get("type") == "adaptive") == thinks
        assert ("output_config" in found.settings()) == thinks


def refused(message: str, status: int = 400, **more: object) -> Raw:
    return as_json({"error": {"message": message, **more}}, status)


ROOM = "request (3052 tokens) exceeds the available context size (2048 tokens), try increasing it"
REPLY = "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"
LITELLM = "litellm.ContextWindowExceededError: this model's maximum context length is 4,097 tokens"
VLLM = as_json({"message": "This model's maximum context length is 16384 tokens. You requested 20000 tokens"}, 400)
STREAMED = b'event: error\ndata: {"code": 400, "message": "context window of 2048 exceeded"}\n\n'

OVERFLOWS: dict[str, tuple[Raw, int | None]] = {
    "vLLM": (VLLM, 16_384),
    "OpenAI": (refused("too much", code="context_length_exceeded"), None),
    "llama.cpp": (refused(ROOM), 2048),
    "llama.cpp with its figure": (
        refused("the limit", 500, code=500, type="exceed_context_size_error", n_ctx=256),
        256,
    ),
    "LiteLLM": (refused(LITELLM), 4097),
    "LM Studio": (as_json({"error": "loaded with context length of only 4096 tokens"}, 400), 4096),
    "a gateway's 500": (refused("Too many tokens", 500), None),
    "the API": (refused("prompt is too long: 210000 tokens > 200000 maximum"), 200_000),
    "the API with the reply": (refused(REPLY), 200_000),
    "in the stream": (Raw(STREAMED), 2048),
    "a limit of a deployment": (refused("Request exceeds the 9000 token limit of this deployment"), 9000),
    "a length": (refused("Input length 10930 exceeds the maximum 9000"), 9000),
    "Hugging Face": (
        refused("Token indices sequence length is longer than the specified maximum sequence length (10930 > 9000)"),
        9000,
    ),
    "plain words": (refused("The conversation no longer fits: at most 9000 tokens are remembered"), 9000),
}


@pytest.mark.files_only
@pytest.mark.parametrize("name", OVERFLOWS)
def test_a_refusal_of_a_long_request_is_known_in_all_words(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from crewboard.worker.llm.refusals import TooLongError

    answer, window = OVERFLOWS[name]
    with RawServer(answer) as server:
        found = caller(directory, monkeypatch, server.url)
        with pytest.raises(TooLongError) as error:
            asyncio.run(found.reply("", [], [{"role": "user", "content": [{"type": "text", "text": "go"}]}], 99))
    assert error.value.window == window
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "words", ["max_tokens: 64000 exceeds the maximum 32000", "tool names have at most 64 characters"]
)
def test_another_limit_is_no_long_request(words: str) -> None:
    assert not models.is_too_long(words)


def limit(words: str) -> Raw:
    text = f"Request too large for model `m-70b` on tokens per minute (TPM): {words}, please reduce your message size"
    return as_json({"error": {"message": text, "type": "tokens", "code": "rate_limit_exceeded"}}, 429)


@pytest.mark.files_only
@pytest.mark.parametrize("words", ["Limit 12000, Requested 21077", "Limit: 12,000, Requested: 21,077"])
def test_a_request_that_exceeds_a_rate_limit_alone_is_too_long(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    from crewboard.worker.llm.refusals import TooLongError

    with RawServer(limit(words), DONE) as server:
        found = caller(directory, monkeypatch, server.url)
        with pytest.raises(TooLongError) as error:
            asyncio.run(found.reply("", [], [{"role": "user", "content": [{"type": "text", "text": "go"}]}], 99))
    assert (error.value.window, len(server.requests)) == (12_000, 1)


@pytest.mark.parametrize("words", ["Too many tokens, please wait", "on tokens: Limit 12000, Requested 3000"])
@of_answers
def test_a_rate_limit_is_no_long_request(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    from crewboard.worker.llm import model

    monkeypatch.setattr(model, "FIRST_DELAY", 0.001)
    limited = as_json({"error": {"message": words}}, 429)
    with RawServer(limited, DONE) as server:
        found = caller(directory, monkeypatch, server.url)
        asyncio.run(found.reply("", [], [{"role": "user", "content": [{"type": "text", "text": "go"}]}], 99))
    assert len(server.requests) == 2


@pytest.mark.long
def test_an_overflow_teaches_the_window_and_the_work_goes_on(shared_crew_on: Make) -> None:
    with RawServer(listing(), VLLM, DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("learner", "explore", "go").text == "the end"
    assert [body["max_tokens"] for body in server.requests] == [4000, 4000, 16_384 // 4]
    assert (crew.see("learner").status.context.limit, crew.see("learner").status.context.assumed) == (16_384, False)


MOST = 54_000
"""Characters of a request that the servers below take: a window of about 15,000 tokens, which it does not say."""
LONG = "Read all of them" + " and think" * 3000

CHINESE = "输入过长"
ERROR_EVENT = f'event: error\ndata: {{"type": "error", "error": {{"type": "api_error", "message": "{CHINESE}"}}}}\n\n'
UNKNOWN_WORDS: dict[str, tuple[int, str, int]] = {
    "Chinese, with its tokens": (400, "请求共有 {:,} 个标记, 最多 14000 个", 1),
    "French": (400, "La conversation est devenue trop longue", 2),
    "no room": (507, "KV store exhausted", 2),
    "German": (500, "Das Gespräch ist zu lang", 3),
    "no words": (500, "Internal Server Error", 3),
    "an event": (200, ERROR_EVENT, 3),
    "JSON with 200": (200, f'{{"code": 1261, "msg": "{CHINESE}", "success": false}}', 3),
    "an empty stream": (200, "", 3),
}
"""The status and words of a refusal, and how often the same request comes."""


SSE = "text/event-stream"


class Narrow:
    """A server whose model reads files, one after the other, and refuses what is too long for it."""

    def __init__(self, status: int, words: str, most: int = MOST) -> None:
        self.refused: list[int] = []
        """The lengths of the requests that were too long."""
        self.reads = 0
        self._status, self._words, self._most = status, words, most

    def __call__(self, body: dict[str, Any]) -> Raw:
        length = len(json.dumps(body))
        if length > self._most:
            self.refused.append(length)
            words = self._words.replace("{:,}", f"{length // 4:,}")
            kind = "application/json" if words.startswith("{") else "text/plain" if self._status >= 400 else SSE
            return Raw(words.encode(), self._status, kind)
        if "tools" not in body:
            return sse(start(), *text("I read some of them"), end(), STOP)
        self.reads += 1
        reads = call(json.dumps({"path": f"long{self.reads}.txt"}), name="read_file", ident=f"c{self.reads}")
        return DONE if self.reads > 12 else sse(start(usage=None), *reads, end("tool_use", usage=None), STOP)


@pytest.mark.long
@pytest.mark.parametrize("name", default(UNKNOWN_WORDS, "Chinese, with its tokens", "French", "an event"))
@of_answers
def test_an_overflow_in_unknown_words_is_tried_with_a_summary(shared_crew_on: Make, name: str) -> None:
    status, words, count = UNKNOWN_WORDS[name]
    narrow, who = Narrow(status, words), f"narrow{[*UNKNOWN_WORDS].index(name)}"
    with RawServer(narrow) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url, CREWBOARD_RETRY_BUDGET="3")
        for number in range(1, 13):
            (crew.root / f"long{number}.txt").write_text(f"{number} herons wade\n" * 200)
        assert crew.run(who, "explore", LONG).text == "the end"
    events = crew.events(who)
    assert any(isinstance(event, Summary) for event in events)
    assert narrow.refused.count(narrow.refused[0]) == count
    assert len(narrow.refused) == count, "the window is known then"
    tried = [event.error for event in events if isinstance(event, Retry) and "; tries " in event.error]
    assert [each.rpartition("; ")[2] for each in tried] == [ONCE_MORE, SHORTER][2 - min(len(tried), 2) :]
    assert (words[:5] if status >= 400 else CHINESE if CHINESE in words else "no reply") in tried[-1]
    assert crew.see(who).status.context.limit < 24_000


NO, FORM = "Je ne veux pas", "This model only supports single tool-calls at once!"
FIELD = "messages.2.content.0.tool_result.tool_use_id: Extra inputs are not permitted"
AS_IT_WAS, WITH_TOOLS_AND_WITHOUT = [True, True], [True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("words", "window", "asked"),
    [
        (NO, 32_000, AS_IT_WAS),
        # As it was, and three requests for a summary of less and less.
        (NO, 8000, WITH_TOOLS_AND_WITHOUT),
        (FORM, 8000, AS_IT_WAS),
        (FIELD, 8000, AS_IT_WAS),
    ],
)
@of_answers
def test_a_refusal_that_is_none_of_length_keeps_its_words(
    shared_crew_on: Make, words: str, window: int, asked: list[bool]
) -> None:
    no, who = as_json({"error": {"message": words}}, 400), f"unwanted{len(words)}-{window}"
    with RawServer(listing(), no) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run(who, "explore", "go", window=window, max_reply=1000)
        assert answer.error == f"the API refused the request (400 error): {words}"
    assert ["tools" in body for body in server.requests] == asked
    assert crew.see(who).status.context.limit == window
    assert not any(isinstance(event, Summary) for event in crew.events(who))


@pytest.mark.long
def test_only_a_large_request_or_a_number_narrows_the_window(shared_crew_on: Make) -> None:
    narrow = Narrow(400, "La conversation est devenue trop longue", 30_000)
    with RawServer(narrow) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        for number in range(1, 13):
            (crew.root / f"long{number}.txt").write_text(f"{number} herons wade\n" * 200)
        assert crew.run("wide", "explore", "Read all of them").text == "the end"
    assert any(isinstance(event, Summary) for event in crew.events("wide"))
    assert crew.see("wide").status.context.limit == 32_000


@pytest.mark.long
def test_a_window_that_was_said_holds_from_hire_and_resume_on(shared_crew_on: Make) -> None:
    with RawServer(DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        crew.run("told", "explore", "go", window=20_000, max_reply=1500)
        assert crew.see("told").status.context.limit == 20_000
        crew.kill("told")
        crew.wait_for("told", "crashed")
        control.change_limits(crew.team, "told", window=12_000, max_reply=700)
        hiring.resume(crew.team, "told")
        sent = messages.send(crew.team, "told", "again")
        crew.answer_to("told", sent.id)
    assert [body["max_tokens"] for body in server.requests] == [1500, 700]
    assert crew.see("told").status.context.limit == 12_000


def cut(*events: dict[str, Any]) -> Raw:
    return sse(start(), *events, end("max_tokens"), STOP)


THOUGHT = [begin({"type": "thinking", "thinking": ""}), piece({"type": "thinking_delta", "thinking": "hm"})]


def notices(crew: Crew, name: str) -> list[str]:
    return [notice for event in crew.events(name) if isinstance(event, Intake) for notice in event.notices]


@pytest.mark.parametrize(
    ("name", "events", "says"),
    [("muser", THOUGHT, "before it had a text"), ("writer", call('{"path', name="list_dir"), "within a tool call")],
)
@of_answers
def test_three_cut_offs_without_progress_fail(
    shared_crew_on: Make, name: str, events: list[dict[str, Any]], says: str
) -> None:
    with RawServer(cut(*events)) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run(name, "explore", "go")
    assert answer.code == 1
    assert re.match("3 replies in a row were cut off .* a reply may have 4000 tokens", str(answer.error))
    assert len(server.requests) == 3
    assert len(told := notices(crew, name)) == 2
    assert says in told[0]


@of_answers
def test_a_long_text_may_be_cut_off_often(shared_crew_on: Make) -> None:
    with RawServer(*[cut(*text("so "))] * 5, DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("narrator", "explore", "go").text == "so " * 5 + "the end"


LARGE = "max_tokens is too large: {0}. This model supports at most 2048 completion tokens, whereas you provided {0}."


@pytest.mark.parametrize("reason", ["max_tokens", "pause_turn"])
@of_answers
def test_a_text_that_never_ends_fails(shared_crew_on: Make, reason: str) -> None:
    with RawServer(sse(start(), *text("so "), end(reason), STOP)) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run(f"endless-{reason[:3]}", "explore", "go")
    assert answer.code == 1
    assert re.match("10 replies in a row were parts of one text", str(answer.error))
    assert len(server.requests) == 10


@of_answers
def test_the_longest_reply_that_a_server_names_is_asked_for(shared_crew_on: Make) -> None:
    def answer(body: dict[str, Any]) -> Raw:
        most = body["max_tokens"]
        return DONE if most <= 2048 else refused(LARGE.format(most))

    with RawServer(answer) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("brief", "explore", "go").text == "the end"
        sent = messages.send(crew.team, "brief", "again")
        assert crew.answer_to("brief", sent.id).text == "the end"
    assert [body["max_tokens"] for body in server.requests] == [4000, 2048, 2048]


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (LARGE.format(4000), 2048),
        ("`max_tokens` must be less than or equal to `1024`, the maximum for model m-70", 1024),
        ("max_tokens: 4000 > 3,500, which is the maximum allowed number of output tokens for gpt-300", 3500),
        ("Range of max_tokens should be [1, 2048]", 2048),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 2048]", 2048),
        ("max_tokens: too high; this deployment answers with 2048 tokens or fewer", 2048),
        ("max_tokens 参数非法, 必须小于等于 2048", 2048),
        ("max_tokens must be greater than thinking.budget_tokens 1024", None),
        ("tool names have at most 1024 characters", None),
        (REPLY, None),
    ],
)
def test_a_refusal_may_name_the_longest_reply(words: str, most: int | None) -> None:
    assert models.reply_in_text(words, 4000) == most


@of_answers
def test_an_effort_for_long_thought_gets_long_replies(shared_crew: Crew) -> None:
    for effort, longest in (("medium", 32_000), ("xhigh", 50_000)):
        crew_name = f"thinker-{effort}"
        hired = hiring.spawn(
            shared_crew.team,
            hiring.Hire(crew_name, "explore", "go", model="opus", flags=HireOptions(effort=cast("Any", effort))),
        )
        shared_crew.answer(hired)
        # A quarter of the window, for the second.
        assert shared_crew.model.asked_by(crew_name)[0]["max_tokens"] == longest


@pytest.mark.files_only
def test_the_projects_file_gives_prices_too(directory: TeamDirectory) -> None:
    file = directory.root / ".crewboard" / "models.toml"
    file.write_text("[local]\nprice = {input = 2.0, output = 4.0}\n")
    assert load(directory.root).cost("local", Tokens(input=500_000, output=250_000)) == 2.0
    for wrong in ("[local]\nwindow = 'big'\n", "[local]\nsize = 3\n", "x", "[local]\nprice = {input = 'a'}\n"):
        file.write_text(wrong)
        with pytest.raises(BadDataError, match=r"models\.toml"):
            load(directory.root)


def test_numbers_of_tokens_are_read_as_people_write_them() -> None:
    counts = {"16384": 16_384, "16k": 16_000, "1.5M": 1_500_000, " 200 K": 200_000, "128.2k": 128_200}
    assert {given: parse_tokens(given) for given in counts} == counts
    for wrong in ("", "0", "-3", "big", "16kb", "9" * 400):
        with pytest.raises(UsageError):
            parse_tokens(wrong)


@pytest.mark.files_only("prices are a file of the project")
def test_what_the_cache_keeps_for_an_hour_costs_twice_the_input(directory: TeamDirectory) -> None:
    used = Tokens(cache_write=1_000_000, cache_write_1h=400_000)
    assert load(directory.root).cost("claude-opus-5-5", used) == pytest.approx(0.6 * 5 + 0.4 * 8)
    (directory.root / ".crewboard/prices.toml").write_text(
        "[[own]]\ninput = 3\noutput = 9\ncache_read = 1\ncache_write = 4\ncache_write_1h = 5\n"
    )
    assert load(directory.root).cost("own", used) == pytest.approx(0.6 * 4 + 0.4 * 5)


TOO_SMALL = "the conversation does not fit into {} and takes one of "


@pytest.mark.long
@pytest.mark.parametrize(
    ("said", "refusal", "where"),
    [
        (2048, "", "the window of 2048 tokens"),
        (None, "This model's maximum context length is 2048 tokens, and you sent 3500", "the window of 2048 tokens"),
        (None, "prompt is too long", "the window of the server, which it does not name,"),
        (64_000, "prompt is too long", "the window of the server, which it does not name,"),
    ],
    ids=["said", "refused", "unknown", "said and refused"],
)
@of_answers
def test_a_window_in_which_nothing_fits_says_which_would_do(
    shared_crew_on: Make, said: int | None, refusal: str, where: str
) -> None:
    refused = as_json({"error": {"type": "invalid_request_error", "message": refusal}}, 400)
    pages = {"/v1/models": listed({"id": "a", "max_model_len": said})} if said else {}
    name = f"small{len(where)}{said}{bool(refusal)}".lower()
    with RawServer(refused if refusal else DONE, pages=pages) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run(name, "explore", "Look")
        crew.wait_for(name, "idle")
        (need,) = [each for each in crew.view().needs if each.agent == name]
    for error in (str(answer.error), need.summary):
        assert TOO_SMALL.format(where) in error
        assert error.count("`OLLAMA_CONTEXT_LENGTH` or `num_ctx`, llama-server `-c`, vLLM `--max-model-len`") == 1
        assert "resume the agent, with `--window`" in error
    assert len(server.requests) < 20
    least = int(re.findall(r"takes one of (\d+) tokens", str(answer.error))[0])
    works = listing()
    with RawServer(works, works, DONE, pages={"/v1/models": listed({"id": "a", "max_model_len": least})}) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run(f"{name}-least", "explore", "Look").text == "the end"
    assert len(server.requests) == 3, "nothing had to be summarised"
