"""Images and documents: read by a tool or attached to a message, kept once, and sent as the API takes them."""

import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crewboard import media, models
from crewboard.commands import answers, hire, messages
from crewboard.errors import UsageError
from crewboard.offline.reply import Reply
from crewboard.records.events import Summary, ToolResult
from crewboard.records.messages import Message
from crewboard.store import agents
from tests.crew import Crew
from tests.model import calls, looks, says
from tests.pictures import PDF, gif, jpeg, png, webp
from tests.raw import Raw, RawServer, as_json
from tests.worker.test_odd_replies import DONE, call, called

of_answers = pytest.mark.files_only("what is asked of a model, and what its answer means, no store knows")

Make = Callable[..., Crew]


PNG = png()
SAMPLES = {
    "dot.png": ("image/png", PNG),
    "photo.jpg": ("image/jpeg", jpeg()),
    "moving.gif": ("image/gif", gif()),
    "small.webp": ("image/webp", webp()),
    "paper.pdf": ("application/pdf", PDF),
}


def sources(body: dict[str, Any]) -> list[tuple[str, str, bytes]]:
    """Return type of block, media type and content of all images and documents in a request."""
    found = []
    for message in body["messages"]:
        for block in message["content"]:
            inner = block.get("content")
            for each in (block, *(inner if isinstance(inner, list) else ())):
                if "source" in each:
                    source = each["source"]
                    found.append((each["type"], source["media_type"], b64decode(source["data"])))
    return found


def test_read_file_hands_over_images_and_documents(shared_crew: Crew) -> None:
    for name, (_, data) in SAMPLES.items():
        (shared_crew.root / name).write_bytes(data)
    reads = Reply([block for name in SAMPLES for block in calls("read_file", path=name).content])
    shared_crew.model.give("viewer", reads, says("seen"))
    assert shared_crew.run("viewer", "explore", "Look").text == "seen"
    expected = [("document" if kind == media.PDF else "image", kind, data) for kind, data in SAMPLES.values()]
    assert sources(shared_crew.model.asked_by("viewer")[1]) == expected
    results = [event for event in shared_crew.events("viewer") if isinstance(event, ToolResult)]
    assert [each.media[0].type for each in results] == [kind for kind, _ in SAMPLES.values()]
    assert "photo.jpg, image/jpeg, 1 kB" in results[1].content
    assert results[4].media[0].tokens == 2 * media.PAGE_TOKENS
    assert not any(b"base64" in (line or b"") for line, _ in shared_crew.agent("viewer").journal.read())


@pytest.mark.long
def test_an_image_is_sent_after_a_crash_while_it_is_kept(shared_crew: Crew) -> None:
    (shared_crew.root / "kept.png").write_bytes(PNG + b"kept")
    asks = calls("ask_operator", question="And?")
    shared_crew.model.give("keeper", calls("read_file", path="kept.png"), asks, says("the end"), says("more"))
    hired = shared_crew.hire("keeper", "explore", "Look")
    shared_crew.pending("question", "keeper")
    shared_crew.kill("keeper")
    shared_crew.wait_for("keeper", "crashed")
    hire.resume(shared_crew.team, "keeper")

    answers.answer(shared_crew.team, shared_crew.pending("question", "keeper").id, "go on")
    assert shared_crew.answer(hired).text == "the end"
    assert sources(shared_crew.model.asked_by("keeper")[-1]) == [("image", "image/png", PNG + b"kept")]
    (result, *_) = [event for event in shared_crew.events("keeper") if isinstance(event, ToolResult)]
    (shared_crew.agent("keeper").kept / result.media[0].sha256).unlink()
    shared_crew.agent("keeper").media.below(result.media[0].sha256).remove()
    sent = messages.send(shared_crew.team, "keeper", "and now?")
    assert shared_crew.answer_to("keeper", sent.id).text == "more"
    assert "kept.png: its content is no longer kept" in json.dumps(shared_crew.model.asked_by("keeper")[-1])


def test_what_is_too_large_is_refused_with_a_way_out(shared_crew: Crew) -> None:
    (shared_crew.root / "huge.png").write_bytes(PNG + bytes(media.MAX_IMAGE))
    (shared_crew.root / "long.pdf").write_bytes(b"%PDF-1.7 " + b"/Type /Page " * (media.MAX_PAGES + 1))
    reads = [*calls("read_file", path="huge.png").content, *calls("read_file", path="long.pdf").content]
    shared_crew.model.give("greedy", Reply(reads), says("done"))
    shared_crew.run("greedy", "explore", "Look")
    results = [event for event in shared_crew.events("greedy") if isinstance(event, ToolResult)]
    assert all(each.is_error and not each.media for each in results)
    assert "make it smaller" in results[0].content
    assert "101 pages" in results[1].content


@of_answers
def test_a_model_that_takes_no_images_gets_a_sentence(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    description = models.offline("claude-haiku-5-5")
    description["capabilities"]["image_input"] = {"supported": False}
    monkeypatch.setattr(models, "offline", lambda _model: description)
    (shared_crew.root / "unseen.png").write_bytes(PNG)
    shared_crew.model.give("blind", calls("read_file", path="unseen.png"), says("done"), says("sorry"))
    shared_crew.run("blind", "explore", "Look")
    (result,) = [event for event in shared_crew.events("blind") if isinstance(event, ToolResult)]
    assert "takes no image/png" in result.content
    sent = messages.send(shared_crew.team, "blind", "see", [shared_crew.root / "unseen.png"])
    assert shared_crew.answer_to("blind", sent.id).text == "sorry"
    assert sources(shared_crew.model.asked_by("blind")[-1]) == []


def test_a_message_brings_its_attachments_into_the_conversation(shared_crew: Crew, tmp_path: Path) -> None:
    (tmp_path / "a shot.png").write_bytes(PNG)
    (tmp_path / "paper.pdf").write_bytes(SAMPLES["paper.pdf"][1])
    shared_crew.model.give("reader", says("ready"), says("seen"))
    shared_crew.run("reader", "explore", "Wait")
    sent = messages.send(shared_crew.team, "reader", "the button", [tmp_path / "a shot.png", tmp_path / "paper.pdf"])
    assert "[attached: a shot.png, image/png, 1 kB]" in sent.content
    assert shared_crew.answer_to("reader", sent.id).text == "seen"
    found = sources(shared_crew.model.asked_by("reader")[-1])
    assert [(kind, data) for _, kind, data in found] == [("image/png", PNG), SAMPLES["paper.pdf"]]


def test_an_attachment_that_is_refused_sends_nothing(shared_crew: Crew, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    shared_crew.model.give("choosy", says("ready"))
    shared_crew.run("choosy", "explore", "Wait")
    for path, why in (
        (tmp_path / "notes.txt", "no PNG"),
        (tmp_path / "none.png", "No such file"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(UsageError, match=why):
            messages.send(shared_crew.team, "choosy", "see", [path])
    (tmp_path / "dot.png").write_bytes(PNG)
    with pytest.raises(UsageError, match="only agents"):
        messages.send(shared_crew.team, "operator", "see", [tmp_path / "dot.png"])


def test_attachments_of_other_programs_are_checked() -> None:
    good: dict[str, Any] = {"name": "a.png", "type": "image/png", "sha256": "0" * 64, "bytes": 3}
    bad: list[Any] = [
        {**good, "sha256": "../../etc/passwd"}, {**good, "type": "text/html"}, {**good, "bytes": "x"}, "a", None, {},
    ]  # fmt: skip
    message = Message(id="1", ts=1, from_="operator", to="x", type="message", content="", metadata={})
    assert message.attachments == []
    message.metadata = {"attachments": [*bad, {**good}]}
    assert [each.name for each in message.attachments] == ["a.png"]
    message.metadata = {"attachments": 3}
    assert message.attachments == []


@pytest.mark.long
def test_an_image_that_was_not_answered_yet_outlives_a_summary(shared_crew_on: Make, tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(PNG)
    turns = [Reply([{"type": "text", "text": "word " * 900}, *look.content]) for look in looks(9)]
    crew = shared_crew_on(script={"summer": [*turns, says("first"), says("second")]}, window=30_000)
    crew.run("summer", "explore", "Look")
    sent = [messages.send(crew.team, "summer", "see", [tmp_path / "dot.png"]) for _ in range(3)]
    assert crew.answer_to("summer", sent[-1].id).error is None
    assert any(isinstance(event, Summary) for event in crew.events("summer"))
    assert any(sources(body) for body in crew.model.requests)


@pytest.mark.long
def test_keeping_the_same_image_twice_takes_room_once(shared_crew: Crew) -> None:
    agent = shared_crew.agent("saver")
    agent.team.make_folder(agent.folder.name)
    first, again = (agents.keep_media(agent, "a.png", "image/png", PNG) for _ in range(2))
    assert first == again
    assert len(list(agent.kept.iterdir())) == 1


def test_the_size_of_an_image_is_read_from_its_header() -> None:
    size = (300, 7001)
    images = [("image/png", png(*size)), ("image/jpeg", jpeg(*size)), ("image/gif", gif(*size))]
    images += [("image/webp", webp(*size, kind)) for kind in (b"VP8 ", b"VP8L", b"VP8X")]
    for kind, data in images:
        assert media.type_of(data) == kind
        assert media.pixels(kind, data) == size
        assert media.refusal(kind, data) is None
        broken = data[:9]
        assert "broken" in str(media.refusal(kind, broken)), kind


REFUSED = {
    "wide.png": (png(8001, 1), "8001 × 1 pixels"),
    "empty.gif": (gif(0, 0), "broken"),
    "half.png": (png()[:-12], "broken"),
    "wrong.png": (png().replace(b"\x08", b"\x09", 1), "broken"),
    "locked.pdf": (PDF + b"trailer << /Encrypt 5 0 R >>", "without a password"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_api_would_refuse_is_not_sent(name: str) -> None:
    data, why = REFUSED[name]
    assert why in str(media.refusal(media.type_of(data) or "", data))


def test_of_many_images_the_large_ones_are_left_out() -> None:
    contents = {str(number): png(2400 if number < 2 else 20, 9) for number in range(21)}
    for count, left_out in ((20, []), (21, ["0", "1"])):
        blocks = [media.block("a.png", "image/png", sha256, 1) for sha256 in list(contents)[:count]]
        _, lost = media.with_bytes([{"role": "user", "content": blocks}], contents.get)
        assert sorted(lost) == left_out
        assert all("2000 pixels" in why for why in lost.values())


def test_a_place_within_a_result_counts_its_texts() -> None:
    a, b = (media.block(f"{name}.png", "image/png", name, 1) for name in "ab")
    result = {"type": "tool_result", "content": [{"type": "text", "text": "two"}, a, b]}
    messages = [{"role": "user", "content": [result]}]
    for place, named in (("tool_result.content.1", a), ("content.2", b), ("tool_result.content.0", a)):
        assert media.refused_by(f"messages.0.content.0.{place}.image: too large", messages, ()) == [named]


def test_all_places_that_an_error_names_are_refused() -> None:
    a, b, c = (media.block(f"{name}.png", "image/png", name, 1) for name in "abc")
    messages = [{"role": "user", "content": [a, b, c]}]
    assert media.refused_by("too large (messages.0.content.0, messages.0.content.2)", messages, ()) == [a, c]
    assert media.refused_by("messages.0.content.0: too large (messages.0.content.0)", messages, ()) == [a]


def read(*names: str) -> Raw:
    return called(*[each for name in names for each in call(whole={"path": name}, name="read_file", ident=name)])


def refusing(text: str, status: int = 400) -> Raw:
    return as_json({"type": "error", "error": {"type": "invalid_request_error", "message": text}}, status)


def count_sent(server: RawServer) -> list[int]:
    return [len(sources(body)) for body in server.requests]


@pytest.mark.long
@of_answers
def test_an_image_that_the_api_refuses_is_left_out(shared_crew_on: Make) -> None:
    unfit = refusing("messages.2.content.0.tool_result.content.0.image.source.base64: Could not process image")
    with RawServer(read("a.png", "b.png"), unfit, refusing("Could not process image"), DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        for name in ("a.png", "b.png"):
            (crew.root / name).write_bytes(png() + name.encode())
        assert crew.run("painter", "explore", "Look").text == "the end"
        last = json.dumps(server.requests[-1])
        assert "the server did not process it: the API refused the request" in last
        sent = messages.send(crew.team, "painter", "and now?")
        assert crew.answer_to("painter", sent.id).text == "the end"
    assert count_sent(server) == [0, 2, 1, 0, 0]


_FIRST, _SECOND = "messages.2.content.0.content.0", "messages.2.content.1.content.0"


@pytest.mark.long
@pytest.mark.parametrize(
    ("said", "paths", "kept"),
    [("An image is too large.", [_FIRST], [b"b.png"]), (f"{_FIRST}.image: too large", [_FIRST, _SECOND], [])],
    ids=["only", "also"],
)
@of_answers
def test_images_are_left_out_that_the_details_name(
    shared_crew_on: Make, said: str, paths: list[str], kept: list[bytes]
) -> None:
    error = {"type": "invalid_request_error", "message": said}
    details = {"error_code": "image_dimensions_too_large", "paths": paths}
    unfit = as_json({"type": "error", "error": {**error, "details": details}}, 400)
    with RawServer(read("a.png", "b.png"), unfit, DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        for name in ("a.png", "b.png"):
            (crew.root / name).write_bytes(png() + name.encode())
        assert crew.run(f"detailed{len(paths)}", "explore", "Look").text == "the end"
    assert [data[-5:] for _, _, data in sources(server.requests[-1])] == kept
    assert count_sent(server) == [0, 2, len(kept)]


WORDS = {
    "llama.cpp": refusing("image input is not supported - hint: you may need to provide the mmproj", 500),
    "vLLM": refusing("At most 0 image(s) may be provided in one prompt."),
    "OpenRouter": refusing("No endpoints found that support image input", 404),
    "DeepSeek": refusing("unknown variant `image_url`, expected `text`", 422),
}


@pytest.mark.long
@pytest.mark.parametrize("name", WORDS)
@of_answers
def test_a_server_without_images_is_remembered_for_the_run(shared_crew_on: Make, name: str) -> None:
    agent = f"blind-{name.lower().replace('.', '-')}"
    with RawServer(read("c.png", "d.png"), WORDS[name], read("c.png"), DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        for file in ("c.png", "d.png"):
            (crew.root / file).write_bytes(png() + file.encode())
        assert crew.run(agent, "explore", "Look").text == "the end"
    assert count_sent(server) == [0, 2, 0, 0]
    *_, result = [event for event in crew.events(agent) if isinstance(event, ToolResult)]
    assert "takes no image/png" in result.content


@pytest.mark.long
@of_answers
def test_an_image_that_is_refused_in_words_of_its_own_is_tried_without(shared_crew_on: Make) -> None:
    blind = as_json({"err": "this checkpoint is blind, send words only"}, 415)
    with RawServer(read("a.png", "b.png"), blind, blind, DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        for name in ("a.png", "b.png"):
            (crew.root / name).write_bytes(png() + name.encode())
        assert crew.run("wordless", "explore", "Look").text == "the end"
    assert count_sent(server) == [0, 2, 1, 0]


@of_answers
def test_an_image_at_which_a_server_fails_again_and_again_is_tried_without(shared_crew_on: Make) -> None:
    broken = as_json({"error": {"message": "'NoneType' object has no attribute 'pixel_values'"}}, 500)
    with RawServer(read("a.png"), broken, broken, broken, DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        (crew.root / "a.png").write_bytes(png() + b"a.png")
        assert crew.run("crasher", "explore", "Look").text == "the end"
    assert count_sent(server) == [0, 1, 1, 1, 0]
    assert not any(isinstance(event, Summary) for event in crew.events("crasher"))


@pytest.mark.long
@of_answers
def test_a_request_of_too_many_bytes_sheds_its_oldest_image(shared_crew_on: Make) -> None:
    with RawServer(read("e.png", "f.png"), refusing("too large", 413), DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        for file in ("e.png", "f.png"):
            (crew.root / file).write_bytes(png() + file.encode())
        assert crew.run("heavy", "explore", "Look").text == "the end"
    assert [data[-5:] for _, _, data in sources(server.requests[-1])] == [b"f.png"]


@pytest.mark.long
@of_answers
def test_a_request_of_too_many_bytes_is_never_sent_unchanged(shared_crew_on: Make) -> None:
    listing = called(*call(whole={}, name="list_dir"))
    with RawServer(*[listing] * 4, refusing("too large", 413)) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run("bulky", "explore", "Look")
    assert answer.code == 1
    assert "too large" in str(answer.error)
    bodies = [json.dumps({**body, "max_tokens": 0}) for body in server.requests]
    assert len(set(bodies)) == len(bodies)
