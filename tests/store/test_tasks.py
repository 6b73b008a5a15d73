"""The task board: ids are never reused, one task in progress per owner, and a damaged file is left alone."""

import json

import pytest

from crewboard.errors import BadDataError, TryLaterError, UsageError
from crewboard.records.base import convert
from crewboard.records.team import Task, TaskStatus
from crewboard.store import tasks
from crewboard.store.layout import TeamDirectory
from crewboard.store.tasks import TaskEdit


def claim(team: TeamDirectory, task_id: int, name: str = "a", kind: str = "code") -> Task:
    return tasks.claim(team, task_id, name, kind, 5.0)


def add(team: TeamDirectory, *subjects: str, **how: object) -> list[Task]:
    return [tasks.add(team, subject, 1.0, **how) for subject in subjects]  # type: ignore[arg-type]


def block(team: TeamDirectory, task_id: int, others: list[int]) -> Task:
    return tasks.update(team, task_id, "operator", 2.0, blocked_by=others)


# ---------------------------------------------------------------------------------------------------- ids


def test_ids_count_from_one(directory: TeamDirectory) -> None:
    assert [task.id for task in add(directory, "x", "y", "z")] == [1, 2, 3]
    assert tasks.ids(directory) == [1, 2, 3]


def test_the_id_of_a_removed_task_is_not_reused(directory: TeamDirectory) -> None:
    add(directory, "x", "y")
    directory.task(2).remove()
    assert add(directory, "z")[0].id == 3


def test_an_id_is_never_reused_even_if_the_last_id_file_is_lost(directory: TeamDirectory) -> None:
    add(directory, "x", "y")
    for damage in (b"", b"-5", b"nonsense", b"\xb2"):
        directory.last_task_id.put(damage)
        assert add(directory, "z")[0].id == max(tasks.ids(directory))
    assert sum(name.startswith(".last-id.damaged-") for name in directory.key("tasks").names()) == 3
    directory.last_task_id.remove()
    assert add(directory, "z")[0].id == 7


def test_other_files_in_the_folder_are_not_tasks(directory: TeamDirectory) -> None:
    add(directory, "x")
    for name in ("²", "01", "0", "-1", "1e3", "٣", "notes", "1.json.damaged-aa", "9" * 30):
        directory.tasks.below(f"{name}.json").put(b"{}")
    assert tasks.ids(directory) == [1]
    assert add(directory, "y")[0].id == 2


@pytest.mark.files_only("locks are files")
def test_the_locks_folder_holds_only_locks(directory: TeamDirectory) -> None:
    add(directory, "x")
    before = {path.name: path.stat().st_ino for path in directory.lock("x").on_disk.parent.iterdir()}
    add(directory, "y")
    claim(directory, 1)
    assert {path.name: path.stat().st_ino for path in directory.lock("x").on_disk.parent.iterdir()} == before


# ------------------------------------------------------------------------------------------------- adding


def test_an_added_task_is_loaded_unchanged(directory: TeamDirectory) -> None:
    add(directory, "first")
    task = tasks.add(directory, "é\n", 2.0, description="d", owner="a", blocked_by=[1], required_type="code")
    assert tasks.load(directory, 2) == task
    assert (task.status, task.owner, task.blocked_by, task.required_type) == ("pending", "a", [1], "code")


@pytest.mark.parametrize("subject", ["", "  ", "\n\t"])
def test_a_task_needs_a_subject(directory: TeamDirectory, subject: str) -> None:
    with pytest.raises(UsageError, match="needs a subject"):
        add(directory, subject)
    assert tasks.ids(directory) == []


def test_a_task_is_blocked_by_tasks_that_exist(directory: TeamDirectory) -> None:
    with pytest.raises(UsageError, match="cannot be blocked by 7: there is no task 7"):
        add(directory, "x", blocked_by=[7])
    assert add(directory, "x")[0].id == 1


def test_a_missing_task_is_one_sentence(directory: TeamDirectory) -> None:
    with pytest.raises(UsageError, match="there is no task 5"):
        tasks.load(directory, 5)
    with pytest.raises(UsageError, match="there is no task 5"):
        claim(directory, 5)


# ------------------------------------------------------------------------------------------------- claiming


def test_a_claimed_task_is_in_progress_and_owned(directory: TeamDirectory) -> None:
    add(directory, "x")
    task = claim(directory, 1)
    assert (task.status, task.owner, task.rev) == ("in_progress", "a", 1)
    assert tasks.in_progress(directory, "a") == task


def test_claiming_again_changes_nothing(directory: TeamDirectory) -> None:
    add(directory, "x")
    assert claim(directory, 1) == claim(directory, 1)


def test_refused_claims_say_why(directory: TeamDirectory) -> None:
    add(directory, "x", "y", "done")
    tasks.add(directory, "assigned", 1.0, owner="b")
    tasks.add(directory, "typed", 1.0, required_type="test")
    tasks.add(directory, "blocked", 1.0, blocked_by=[1, 3])
    tasks.update(directory, 3, "operator", 2.0, status="completed")
    claim(directory, 1, "b")
    for task_id, words in {
        1: "task 1 is in progress by b",
        3: "task 3 is completed",
        4: "task 4 is assigned to b",
        5: "task 5 is for an agent of type test; a is of type code",
        6: "task 6 is blocked by 1",
    }.items():
        with pytest.raises(UsageError, match=words):
            claim(directory, task_id)
    with pytest.raises(TryLaterError, match="b has task 1 in progress"):
        claim(directory, 2, "b")


def test_completing_a_task_unblocks_its_dependents(directory: TeamDirectory) -> None:
    add(directory, "x")
    tasks.add(directory, "y", 1.0, blocked_by=[1])
    claim(directory, 1)
    tasks.update(directory, 1, "a", 2.0, status="completed")
    assert claim(directory, 2).owner == "a"


@pytest.mark.parametrize("status", ["failed", "cancelled", "pending", "in_progress"])
def test_only_completing_unblocks(directory: TeamDirectory, status: str) -> None:
    add(directory, "x")
    tasks.add(directory, "y", 1.0, blocked_by=[1])
    tasks.update(directory, 1, "operator", 2.0, status=status, owner="b")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="blocked by 1"):
        claim(directory, 2)


def test_a_damaged_blocker_still_blocks(directory: TeamDirectory) -> None:
    add(directory, "x")
    tasks.add(directory, "y", 1.0, blocked_by=[1])
    directory.task(1).put(b"{")
    with pytest.raises(UsageError, match="blocked by 1"):
        claim(directory, 2)


# ------------------------------------------------------------------------------------------------- changing


@pytest.mark.parametrize(("by", "may"), [("operator", True), ("lead", True), ("a", True), ("b", False)])
def test_only_owner_lead_and_operator_change_a_task(directory: TeamDirectory, by: str, may: bool) -> None:
    add(directory, "x")
    claim(directory, 1)
    if may:
        assert tasks.update(directory, 1, by, 2.0, status="completed").status == "completed"
    else:
        with pytest.raises(UsageError, match="task 1 is not b's"):
            tasks.update(directory, 1, by, 2.0, status="completed")
        assert tasks.load(directory, 1).status == "in_progress"


def test_any_agent_may_claim_a_released_task(directory: TeamDirectory) -> None:
    add(directory, "x")
    claim(directory, 1)
    back = tasks.update(directory, 1, "a", 2.0, status="pending")
    assert (back.status, back.owner, back.last_owner) == ("pending", None, None)
    assert claim(directory, 1, "b").owner == "b"


@pytest.mark.parametrize("status", ["failed", "completed", "cancelled"])
def test_any_agent_may_claim_a_reopened_task(directory: TeamDirectory, status: TaskStatus) -> None:
    add(directory, "x")
    claim(directory, 1)
    tasks.update(directory, 1, "a", 2.0, status=status)
    again = tasks.update(directory, 1, "operator", 3.0, status="pending")
    assert (again.status, again.owner, again.last_owner) == ("pending", None, None)
    assert claim(directory, 1, "b").owner == "b"


def test_a_task_given_to_another_agent_is_pending_again(directory: TeamDirectory) -> None:
    add(directory, "x")
    claim(directory, 1)
    moved = tasks.update(directory, 1, "operator", 2.0, owner="b")
    assert (moved.status, moved.owner) == ("pending", "b")


def test_an_owner_has_at_most_one_task_in_progress(directory: TeamDirectory) -> None:
    add(directory, "x", "y")
    claim(directory, 1)
    with pytest.raises(TryLaterError, match="a has task 1 in progress; one at a time"):
        tasks.update(directory, 2, "operator", 2.0, status="in_progress", owner="a")
    with pytest.raises(UsageError, match="task 2 has no owner"):
        tasks.update(directory, 2, "operator", 2.0, status="in_progress")


def test_a_dead_agents_task_is_released_with_its_name(directory: TeamDirectory) -> None:
    add(directory, "x", "y")
    claim(directory, 1)
    claim(directory, 2, "b")
    (back,) = tasks.release(directory, "a", 3.0)
    assert (back.id, back.status, back.owner, back.last_owner) == (1, "pending", None, "a")
    assert tasks.release(directory, "a", 4.0) == []
    assert tasks.load(directory, 2).owner == "b"


# --------------------------------------------------------------------------------------------------- editing


def test_an_edit_changes_only_what_is_given(directory: TeamDirectory) -> None:
    tasks.add(directory, "x", 1.0, description="d", priority=3, owner="a")
    assert tasks.update(directory, 1, "a", 2.0, description="").description == ""
    assert tasks.update(directory, 1, "lead", 3.0, subject="y", priority=-1).subject == "y"
    task = tasks.load(directory, 1)
    assert (task.subject, task.description, task.priority, task.owner, task.status) == ("y", "", -1, "a", "pending")


def test_an_edit_of_a_failed_task_is_no_new_failure(directory: TeamDirectory) -> None:
    add(directory, "x")
    failed = tasks.update(directory, 1, "operator", 2.0, status="failed")
    tasks.update(directory, 1, "operator", 3.0, subject="y")
    edited = tasks.reprioritise(directory, 1, "operator", 4.0, 1)
    assert (edited.rev, edited.updated_at, edited.edited_at) == (failed.rev, 2.0, 4.0)


def test_an_edit_and_a_new_status_are_one_change(directory: TeamDirectory) -> None:
    add(directory, "x")
    claim(directory, 1)
    task = tasks.update(directory, 1, "a", 7.0, status="failed", priority=2)
    assert (task.status, task.priority, task.rev, task.updated_at, task.edited_at) == ("failed", 2, 2, 7.0, 7.0)


@pytest.mark.parametrize("edit", [{"subject": " \n"}, {"priority": 100}, {"priority": -100}])
def test_a_refused_edit_changes_nothing(directory: TeamDirectory, edit: TaskEdit) -> None:
    (before,) = add(directory, "x")
    with pytest.raises(UsageError, match=r"needs a subject|from -99 to 99"):
        tasks.update(directory, 1, "operator", 2.0, **edit)
    with pytest.raises(UsageError, match="is not b's"):
        tasks.update(directory, 1, "b", 2.0, subject="y")
    assert tasks.load(directory, 1) == before


def test_a_priority_is_raised_from_where_it_is(directory: TeamDirectory) -> None:
    tasks.add(directory, "x", 1.0, priority=98)
    assert tasks.reprioritise(directory, 1, "operator", 2.0, 1).priority == 99
    with pytest.raises(UsageError, match="from -99 to 99"):
        tasks.reprioritise(directory, 1, "operator", 3.0, 1)
    with pytest.raises(UsageError, match="from -99 to 99"):
        tasks.add(directory, "y", 1.0, priority=100)


def test_a_task_without_priority_is_normal(directory: TeamDirectory) -> None:
    (task,) = add(directory, "x")
    old = {key: value for key, value in task.as_dict().items() if key not in ("priority", "edited_at")}
    directory.task(1).put(json.dumps(old).encode())
    assert tasks.load(directory, 1) == task


def test_work_is_ordered_by_priority_then_by_age(directory: TeamDirectory) -> None:
    for priority in (0, -1, 2, 0):
        tasks.add(directory, "x", 1.0, priority=priority)
    assert [task.id for task in sorted(tasks.load_all(directory), key=tasks.order_of_work)] == [3, 1, 4, 2]


@pytest.mark.parametrize("status", ["failed", "completed", "cancelled"])
def test_reopening_keeps_all_but_status_and_owner(directory: TeamDirectory, status: TaskStatus) -> None:
    tasks.add(directory, "x", 1.0, description="d", priority=2, owner="a")
    closed = tasks.update(directory, 1, "operator", 2.0, status=status)
    before, task = tasks.reopen(directory, 1, "operator", 3.0)
    assert before == closed
    assert task == closed.replace(status="pending", owner=None, updated_at=3.0, rev=2)
    with pytest.raises(UsageError, match="task 1 is pending; only a closed task can be reopened"):
        tasks.reopen(directory, 1, "operator", 4.0)


# --------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"id": 2, "subject": "says that it is another"}'])
def test_a_damaged_task_is_left_out_and_never_overwritten(directory: TeamDirectory, damage: bytes) -> None:
    add(directory, "x", "y")
    directory.task(1).put(damage)
    assert [task.id for task in tasks.load_all(directory)] == [2]
    with pytest.raises(BadDataError, match="is damaged"):
        claim(directory, 1)
    with pytest.raises(BadDataError, match="is damaged"):
        tasks.update(directory, 1, "operator", 2.0, status="completed")
    assert directory.task(1).get() == damage
    assert claim(directory, 2).owner == "a"


def test_fields_of_a_later_version_survive(directory: TeamDirectory) -> None:
    add(directory, "x")
    directory.task(1).save(convert({"id": 1, "subject": "x", "colour": "red"}, Task))
    claim(directory, 1)
    assert b'"colour": "red"' in (directory.task(1).get() or b"")


# --------------------------------------------------------------------------------------------- let it wait


def test_a_task_can_be_blocked_and_unblocked(directory: TeamDirectory) -> None:
    add(directory, "x", "y", "z")
    assert block(directory, 3, [1, 2, 1]).blocked_by == [1, 2]
    with pytest.raises(UsageError, match="blocked by 1, 2"):
        claim(directory, 3)
    assert block(directory, 3, []).blocked_by == []
    claim(directory, 3)


def test_two_tasks_never_wait_for_each_other(directory: TeamDirectory) -> None:
    add(directory, "x", "y", "z")
    block(directory, 2, [1])
    block(directory, 3, [2])
    with pytest.raises(UsageError, match="task 3 already waits for task 1"):
        block(directory, 1, [3])
    with pytest.raises(UsageError, match="cannot wait for itself"):
        block(directory, 1, [1])
    assert tasks.load(directory, 1).blocked_by == []


def test_only_a_pending_task_can_be_blocked(directory: TeamDirectory) -> None:
    add(directory, "x", "y")
    with pytest.raises(UsageError, match="there is no task 9"):
        block(directory, 2, [9])
    claim(directory, 1)
    with pytest.raises(UsageError, match="task 1 is in progress"):
        block(directory, 1, [2])
