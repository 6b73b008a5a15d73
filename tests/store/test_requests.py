"""Requests: the file decides, the first valid answer wins, any other answer changes nothing and is an error."""

import os
from collections import Counter
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

from crewboard.errors import BadDataError, UsageError
from crewboard.names import OPERATOR
from crewboard.protocol import requests
from crewboard.records.agents import Terms
from crewboard.records.requests import (
    Note,
    Request,
    RequestStatus,
    RequestType,
    carry_notes,
    describe_notes,
    notes_in,
    parse_note,
    payload_sha256,
)
from crewboard.store import mailbox
from crewboard.store.layout import TeamDirectory

KINDS: tuple[RequestType, ...] = ("plan_approval", "shutdown", "permission", "question")
RIGHT: dict[RequestType, set[RequestStatus]] = {
    "plan_approval": {"approved", "rejected"},
    "shutdown": {"approved", "rejected"},
    "permission": {"approved", "rejected"},
    "question": {"answered"},
}


def ask(team: TeamDirectory, ident: str = "q1", kind: RequestType = "plan_approval", **how: Any) -> Request:
    given = {"author": "a", "to": "lead", "payload": {"plan": "do it"}, "now": 1.0, **how}
    return requests.ask(team, ident, kind, **given, by_mail=False)


def stands(team: TeamDirectory, ident: str = "q1") -> Request:
    request = requests.load(team, ident)
    assert request is not None
    return request


def refused(team: TeamDirectory, words: str, *arguments: Any, **named: Any) -> None:
    """Check that the answer is refused with this message and that no file has changed."""
    before = {name: team.requests.below(name).get() for name in team.requests.names()}
    with pytest.raises(BadDataError, match=words):
        requests.decide(team, *arguments, **named)
    assert {name: team.requests.below(name).get() for name in team.requests.names()} == before


def test_an_open_request_is_pending(directory: TeamDirectory) -> None:
    asked = ask(directory)
    assert asked == stands(directory)
    assert (asked.status, asked.from_, asked.to) == ("pending", "a", "lead")
    assert asked.sha256 == payload_sha256({"plan": "do it"})
    assert requests.pending(directory) == [asked]


def test_asking_again_with_the_same_id_changes_nothing(directory: TeamDirectory) -> None:
    first = ask(directory)
    assert ask(directory, now=9.0, payload={"plan": "other"}) == first
    requests.decide(directory, "q1", "approved", "lead", 2.0)
    assert ask(directory).status == "approved"


def test_a_request_cancelled_by_death_reopens_when_asked_again(directory: TeamDirectory) -> None:
    ask(directory)
    assert [request.id for request in requests.cancel_requests_of(directory, "a", 2.0)] == ["q1"]
    assert stands(directory).decided_by == "system"
    refused(directory, "a does not wait for it any more.*asks again once it is resumed", "q1", "approved", "lead", 3.0)
    again = ask(directory)
    assert (again.status, again.decided_at, again.decided_by) == ("pending", None, None)


def test_a_revision_cancels_the_one_before(directory: TeamDirectory) -> None:
    ask(directory)
    ask(directory, "q2", supersedes="q1", now=3.0)
    assert (stands(directory).status, stands(directory).decided_by) == ("cancelled", "a")
    assert [request.id for request in requests.pending(directory)] == ["q2"]
    refused(directory, "q1 is already cancelled by a", "q1", "approved", "lead", 4.0)


def test_a_revision_leaves_a_decision_alone(directory: TeamDirectory) -> None:
    ask(directory)
    requests.decide(directory, "q1", "rejected", "lead", 2.0, feedback="no")
    ask(directory, "q2", supersedes="q1")
    assert stands(directory).status == "rejected"


# --------------------------------------------------------------------------------------------------- deciding


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", ["approved", "rejected", "answered", "expired", "cancelled", "pending"])
def test_each_type_accepts_only_its_own_answers(
    directory: TeamDirectory, kind: RequestType, status: RequestStatus
) -> None:
    ask(directory, kind=kind)
    if status in RIGHT[kind]:
        decided = requests.decide(directory, "q1", status, "lead", 2.0, feedback="why")
        assert (decided.status, decided.decided_by, decided.decided_at, decided.feedback) == (
            status,
            "lead",
            2.0,
            "why",
        )
        assert decided == stands(directory)
    else:
        refused(directory, f"q1 is a {kind}; it cannot be {status}", "q1", status, "lead", 2.0)


@pytest.mark.parametrize("by", ["a", "b", "system"])
def test_only_the_recipient_and_the_operator_can_answer(directory: TeamDirectory, by: str) -> None:
    ask(directory)
    refused(directory, f"q1 is for lead to answer, not for {by}", "q1", "approved", by, 2.0)
    assert requests.decide(directory, "q1", "approved", "operator", 2.0).decided_by == "operator"


def test_the_user_is_named_only_if_the_operator_decided(directory: TeamDirectory) -> None:
    ask(directory)
    ask(directory, "q2")
    assert requests.decide(directory, "q1", "approved", "operator", 2.0, operator="Kim").operator == "Kim"
    # The lead's commands run in the environment of the user who started it.
    assert requests.decide(directory, "q2", "approved", "lead", 2.0, operator="Kim").operator == ""


def test_the_first_answer_wins(directory: TeamDirectory) -> None:
    ask(directory)
    requests.decide(directory, "q1", "rejected", "operator", 2.0, feedback="no")
    refused(directory, "q1 is already rejected by operator; nothing was changed", "q1", "approved", "lead", 3.0)
    assert stands(directory).feedback == "no"


def test_an_answer_to_an_unknown_request_is_refused(directory: TeamDirectory) -> None:
    refused(directory, "there is no request q9", "q9", "approved", "lead", 2.0)


def test_an_answer_to_a_changed_payload_is_refused(directory: TeamDirectory) -> None:
    asked = ask(directory)
    stale = payload_sha256({"plan": "what was seen"})
    path = directory.request("q1")
    # Forge the stored hash, as if the payload had not changed.
    path.put((path.get() or b"").replace(payload_sha256({"plan": "do it"}).encode(), stale.encode()))
    refused(directory, "q1 has another sha256", "q1", "approved", "lead", 2.0, sha256=stale)
    refused(directory, "q1 has another sha256", "q1", "approved", "lead", 2.0, sha256="")
    assert requests.decide(directory, "q1", "approved", "lead", 2.0, sha256=asked.sha256).status == "approved"


def test_only_a_plan_can_be_edited(directory: TeamDirectory) -> None:
    ask(directory)
    assert requests.decide(directory, "q1", "approved", "lead", 2.0, edited="mine").edited == "mine"
    ask(directory, "q2", "permission")
    refused(directory, "q2 is a permission; only a plan can be edited", "q2", "approved", "lead", 2.0, edited="x")


def test_only_the_operator_sets_terms_and_only_of_a_plan(directory: TeamDirectory) -> None:
    ask(directory, to="lead")
    refused(directory, "only by the operator", "q1", "approved", "lead", 2.0, terms=Terms())
    ask(directory, "q2", "permission")
    refused(directory, "only a plan is approved with terms", "q2", "approved", OPERATOR, 2.0, terms=Terms())
    assert requests.respond(directory, "q1", "approved", OPERATOR, 2.0, terms=Terms(hold=[2])).terms == Terms(hold=[2])


def test_a_step_is_released_only_from_the_terms_that_were_seen(directory: TeamDirectory) -> None:
    ask(directory)
    seen = requests.respond(directory, "q1", "approved", OPERATOR, 2.0, terms=Terms(hold=[2, 3]))
    requests.release(directory, seen, Terms(hold=[3]), [2], 3.0)
    with pytest.raises(BadDataError, match="changed meanwhile"):
        requests.release(directory, seen, Terms(hold=[2]), [3], 4.0)
    assert stands(directory).terms == Terms(hold=[3])


def test_only_a_pending_request_can_be_closed(directory: TeamDirectory) -> None:
    ask(directory)
    closed = requests.close(directory, "q1", "expired", "system", 2.0)
    assert closed is not None
    assert closed.status == "expired"
    assert requests.close(directory, "q1", "cancelled", "system", 3.0) is None
    assert requests.close(directory, "q9", "cancelled", "system", 3.0) is None
    refused(directory, "q1 is already expired", "q1", "approved", "lead", 4.0)


def test_an_end_cancels_own_requests_but_no_plan_for_review(
    directory: TeamDirectory,
) -> None:
    ask(directory, "of")
    ask(directory, "plan", author="b", to="a")
    ask(directory, "to", "shutdown", author="operator", to="a")
    ask(directory, "other", author="b")
    ask(directory, "closed")
    requests.decide(directory, "closed", "approved", "lead", 2.0)
    assert {request.id for request in requests.cancel_requests_of(directory, "a", 3.0)} == {"of", "to"}
    assert requests.cancel_requests_of(directory, "a", 4.0) == []
    assert [request.id for request in requests.pending(directory)] == ["other", "plan"]


@pytest.mark.files_only("counts calls of fsync")
def test_questions_and_answers_are_synced_to_disk(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    ask(directory)
    requests.decide(directory, "q1", "approved", "lead", 2.0)
    assert len([path for path in synced if "q1.json" in path]) == 2


# ----------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("damage", [b"", b"{", b"null"])
def test_a_damaged_request_is_left_out_and_never_overwritten(directory: TeamDirectory, damage: bytes) -> None:
    ask(directory)
    ask(directory, "q2")
    directory.request("q1").put(damage)
    assert [request.id for request in requests.load_all(directory)] == ["q2"]
    refused(directory, "is damaged", "q1", "approved", "lead", 2.0)
    with pytest.raises(BadDataError, match="is damaged"):
        requests.close(directory, "q1", "expired", "system", 2.0)
    assert directory.request("q1").get() == damage


def test_a_request_in_the_file_of_another_is_damage(directory: TeamDirectory) -> None:
    ask(directory)
    directory.request("q2").put(directory.request("q1").get() or b"")
    assert [request.id for request in requests.load_all(directory)] == ["q1"]
    refused(directory, "says that it is request q1", "q2", "approved", "lead", 2.0)


# ----------------------------------------------------------------------------------------- asking and answering


def mail(team: TeamDirectory, name: str) -> list[tuple[str, Any]]:
    return [(m.type, m.metadata.get("approve")) for m in mailbox.read(team, name).messages]


def test_recipient_and_sender_of_a_request_get_mail(directory: TeamDirectory) -> None:
    requests.ask(directory, "q1", "plan_approval", "a", "lead", {"plan": "do it"}, 1.0)
    requests.respond(directory, "q1", "rejected", "lead", 2.0, feedback="smaller")
    assert mail(directory, "lead") == [("plan_approval_request", None)]
    assert mail(directory, "a") == [("plan_approval_response", False)]
    (told,) = mailbox.read(directory, "a").messages
    assert (told.from_, told.content, told.metadata["request_id"]) == ("lead", "smaller", "q1")


def test_asking_twice_delivers_one_message(directory: TeamDirectory) -> None:
    for _ in range(2):
        requests.ask(directory, "q1", "question", "a", "operator", {"question": "why?"}, 1.0)
    assert mail(directory, "operator") == [("question_request", None)]


def test_an_answer_that_changes_nothing_sends_no_mail(directory: TeamDirectory) -> None:
    requests.ask(directory, "q1", "question", "a", "operator", {"question": "why?"}, 1.0)
    with pytest.raises(BadDataError):
        requests.respond(directory, "q1", "approved", "operator", 2.0)
    requests.respond(directory, "q1", "answered", "operator", 2.0, feedback="so")
    with pytest.raises(BadDataError):
        requests.respond(directory, "q1", "answered", "operator", 3.0, feedback="or so")
    assert [m.content for m in mailbox.read(directory, "a").messages] == ["so"]


def test_a_shutdown_request_expires(directory: TeamDirectory) -> None:
    requests.ask(directory, "s1", "shutdown", "operator", "a", {}, 1.0)
    assert requests.pending_shutdown(directory, "b", 2.0) is None
    found = requests.pending_shutdown(directory, "a", 1.0 + requests.SHUTDOWN_TIMEOUT)
    assert found is not None
    assert found.id == "s1"
    assert requests.pending_shutdown(directory, "a", 1.1 + requests.SHUTDOWN_TIMEOUT) is None
    assert stands(directory, "s1").status == "expired"


PLAN = "# Sort the notes\n\n1. Read store.py.\n2. Change the sort key to a number.\n3. Run the tests.\n"


def notes_after(before: Request, plan: str, **answers: str) -> list[tuple[str, str, str]]:
    """Return id, place and state of each note on the plan before, as they stand on its revision."""
    return [(note.id, note.place, note.state) for note in carry_notes(before, plan, answers)]


def noted(directory: TeamDirectory, *notes: str, plan: str = PLAN) -> Request:
    """Return a plan that was rejected with these notes."""
    ask(directory, payload={"plan": plan})
    return requests.decide(directory, "q1", "rejected", "lead", 2.0, notes=[*map(parse_note, notes)])


@pytest.mark.parametrize(
    ("revised", "place"),
    [
        pytest.param(PLAN, "line 4", id="unchanged"),
        pytest.param("Why: it fails.\n\n" + PLAN, "line 6", id="lines were added above"),
        pytest.param(PLAN.replace("a number", "an integer"), "line 4", id="the line was changed"),
        pytest.param(
            "2. Change the sort key to a number.\n# Sort the notes\n\n1. Read store.py.\n3. Run the tests.\n",
            "line 1",
            id="the line stands elsewhere",
        ),
        pytest.param(PLAN.replace("2. Change the sort key to a number.\n", ""), "moved", id="the line is gone"),
        pytest.param("Something else\nentirely\n", "moved", id="all is new"),
    ],
)
def test_a_note_keeps_its_place_by_what_its_line_says(directory: TeamDirectory, revised: str, place: str) -> None:
    before = noted(directory, "4: as a number of what?")
    assert before.notes[0].quoted == ["2. Change the sort key to a number."]
    assert notes_after(before, revised) == [("n1", place, "open")]


@pytest.mark.parametrize(
    ("revised", "place"),
    [
        pytest.param("Why: it fails.\n\n" + PLAN, "line 4", id="lines were added above"),
        pytest.param("Something else\n\nentirely\n", "moved", id="another blank line"),
        pytest.param(PLAN.replace("\n\n", "\n"), "moved", id="the line is gone"),
    ],
)
def test_a_note_on_a_blank_line_keeps_its_place(directory: TeamDirectory, revised: str, place: str) -> None:
    """It says what is missing there; the text around the line says which one it is."""
    assert notes_after(noted(directory, "2: why?"), revised) == [("n1", place, "open")]


def test_a_note_on_a_range_grows_with_it(directory: TeamDirectory) -> None:
    before = noted(directory, "3-5: too few steps")
    longer = PLAN.replace("3. Run", "3. Read the tests.\n4. Run")
    assert notes_after(before, longer) == [("n1", "lines 3-6", "open")]


@pytest.mark.parametrize("kept", [1, 0], ids=["one line in two was kept", "all is new"])
def test_the_notes_on_a_long_plan_are_placed_in_bounded_work(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """The agent waits for it: the lines are matched once, and only some of the changed ones letter by letter."""
    done = Counter[str]()
    real = {name: getattr(SequenceMatcher, name) for name in ("get_opcodes", "quick_ratio", "ratio")}

    def counted(name: str) -> Callable[[Any], Any]:
        def count(matcher: Any) -> Any:  # noqa: ANN401
            done[name] += 1
            return real[name](matcher)

        return count

    for name in real:
        monkeypatch.setattr(SequenceMatcher, name, counted(name))
    old = [f"{at}. step {at * 7919 % 2000} of the plan" for at in range(2000)]
    new = [line if at % 2 < kept else f"{line[::-1]} {at}" for at, line in enumerate(old)]
    notes = [Note(id=f"n{at + 1}", line=at * 90 + 1, end=at * 90 + 60, text="why?") for at in range(20)]
    before = ask_of(old).replace(notes=notes)
    placed = [note.line for note in carry_notes(before, "\n".join(new), {})]
    if kept:
        assert placed == [note.line for note in notes]
    assert done["get_opcodes"] == 1
    assert done["ratio"] <= done["quick_ratio"] <= 2000


def ask_of(lines: list[str]) -> Request:
    """Return a plan with these lines."""
    return Request(id="q1", type="plan_approval", from_="a", to="lead", payload={"plan": "\n".join(lines)})


def test_lines_that_a_long_plan_repeats_are_no_anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matching each blank line with each other one would take minutes."""
    looked = Counter[str]()
    find = SequenceMatcher.find_longest_match

    def count(matcher: Any, *bounds: int) -> Any:  # noqa: ANN401
        looked["pairs"] += sum(len(matcher.b2j.get(line, ())) for line in matcher.a[bounds[0] : bounds[1]])
        return find(matcher, *bounds)

    monkeypatch.setattr(SequenceMatcher, "find_longest_match", count)
    old = [line for at in range(1000) for line in (f"step {at}", "")]
    new = [line for at in range(1000) for line in (f"step {at}" if at % 3 else f"new {at}", "")]
    before = ask_of(old).replace(notes=[Note(id="n1", line=1003, end=1003, text="why?")])
    assert [note.line for note in carry_notes(before, "\n".join(new), {})] == [1003]
    assert looked["pairs"] < 1_000_000


def test_a_note_is_answered_by_its_id_and_then_settled(directory: TeamDirectory) -> None:
    noted(directory, "5: which?", "4: why?")
    answers = {"n1": "because text sorts 9 behind 12"}
    second = requests.ask(
        directory, "q2", "plan_approval", "a", "lead", {"plan": PLAN}, 3.0, supersedes="q1", answers=answers
    )
    assert [(note.id, note.line, note.text, note.state) for note in notes_in(second.payload)] == [
        ("n1", 4, "why?", "answered"), ("n2", 5, "which?", "open"),
    ]  # fmt: skip
    assert second.sha256 != payload_sha256({"plan": PLAN}), "a yes is bound to the answers, too"
    assert notes_after(second, PLAN) == [("n1", "line 4", "answered"), ("n2", "line 5", "open")], "not read yet"
    third = requests.decide(directory, "q2", "rejected", "lead", 4.0, notes=[parse_note("1:shorter")])
    assert notes_after(third, PLAN, n2="all") == [
        ("n1", "line 4", "settled"), ("n2", "line 5", "answered"), ("n3", "line 1", "open"),
    ]  # fmt: skip
    assert notes_after(third, PLAN, n1="I was wrong")[0] == ("n1", "line 4", "answered")


def test_an_answer_to_no_note_is_refused(directory: TeamDirectory) -> None:
    noted(directory, "4:why?")
    with pytest.raises(UsageError, match="there is no note n2; notes: n1"):
        requests.ask(directory, "q2", "plan_approval", "a", "lead", {}, 3.0, supersedes="q1", answers={"n2": "x"})
    assert requests.load(directory, "q2") is None


@pytest.mark.parametrize("note", ["6:beyond", "0:before", "5-6:partly"])
def test_a_note_on_lines_that_a_plan_lacks_answers_nothing(directory: TeamDirectory, note: str) -> None:
    with pytest.raises(UsageError, match="the lines of the plan are 1 to 5"):
        noted(directory, "1:fine", note)
    assert stands(directory).status == "pending"


def test_only_a_plan_has_lines_for_notes(directory: TeamDirectory) -> None:
    ask(directory, kind="permission")
    with pytest.raises(UsageError, match="only a plan"):
        requests.decide(directory, "q1", "approved", "lead", 2.0, notes=[parse_note("1:x")])
    assert stands(directory).status == "pending"


@pytest.mark.parametrize("given", ["", "12", "12:", "12:  ", "a:b", "1-:b", "-1:b"])
def test_a_note_without_line_or_text_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="is no note"):
        parse_note(given)


def test_the_first_line_of_a_note_does_not_come_after_the_last() -> None:
    with pytest.raises(UsageError, match="the first line, 5, comes after the last, 3"):
        parse_note("5-3:x")


def test_no_answer_looks_like_another_note() -> None:
    forged = "done\n\nn2, line 5, settled:\nfine\N{LINE SEPARATOR}n3, moved:"
    text = describe_notes([Note(id="n1", line=1, end=1, quoted=["# Do"], text=forged, answer=forged)])
    assert [line for line in text.splitlines() if not line.startswith("  ")] == [
        "n1, line 1, answered:", "answer to n1:",
    ]  # fmt: skip


def test_a_record_that_is_no_note_is_left_out() -> None:
    assert notes_in({"notes": [{"id": "n1", "text": "x"}, {"id": "no"}, 7]})[0].text == "x"
    assert notes_in({"notes": "n1"}) == []
