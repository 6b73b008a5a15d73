"""The hosts of a team on the screen: their page, the column of the Board, and what is said where one was lost."""

from collections.abc import Sequence
from typing import Any

import pytest

from crewboard.commands import hire, hosts
from crewboard.errors import StorageError
from crewboard.readmodel.reader import TeamReader
from crewboard.records.agents import Engine, Spec
from crewboard.records.processes import Exit, Usage
from crewboard.records.team import OperatorState
from crewboard.store import agents
from crewboard.store.file_store import FileStore
from crewboard_tui import views
from crewboard_tui.render import table
from crewboard_tui.render.table import Column
from crewboard_tui.views.hosts import HostRow
from crewboard_tui.views.roster import lay_out
from tests.frozen import NOW, Frozen
from tests.placed import add_host, place, want
from tests.tui.stage import Stage, opened

LOST = Exit(run=1, reason="lost", at=NOW - 20, buried=True, evidence="no sign of life of build2 for 15 s")


@pytest.fixture
def spread(frozen: Frozen) -> Frozen:
    """Return a team with two hosts: build1 runs four agents, build2 was lost with two."""
    usage = {"api": Usage(cpu=140, memory=1 << 30, children=3), "perf": Usage(cpu=3, memory=64 << 20)}
    add_host(frozen.directory, "build1", labels=["gpu"], machine="rack-7", version="0.2.0", usage=usage)
    add_host(frozen.directory, "build2", slots=4, at=NOW - 40)
    frozen.probe.hosts_up = frozenset({"build1"})
    for name in ("api", "perf", "migrate", "docs"):
        place(frozen, name, "build1")
    for name in ("ui", "release"):
        place(frozen, name, "build2")
        del frozen.probe.held[name]
        agents.write_exit(frozen.directory.agent(name), LOST)
    return frozen


def bind(team: Frozen, name: str, **flags: Any) -> None:
    """Let an agent have been hired with these options."""

    def edit(old: Spec | None) -> Spec:
        assert old is not None
        return old.replace(flags=old.flags.replace(**flags))

    agents.change_spec(team.directory.agent(name), edit)


def with_codex(spec: Spec | None) -> Spec:
    assert spec is not None
    return spec.replace(engine=Engine(name="codex", command=["codex"]))


_NAME_ENDS = 20
"""Cells from the left within which a row names what it is about."""


def _row(stage: Stage, name: str) -> list[str]:
    """Return the words of the row about a host or an agent, from its name on."""
    # Further right, the detail of another row may name it.
    line = next(line for line in stage.text if 0 <= line.find(f" {name} ") < _NAME_ENDS)
    return line[line.index(f" {name} ") :].split()


async def test_h_shows_the_hosts_and_what_they_run(spread: Frozen) -> None:
    async with opened(spread, 80, 24) as stage:
        await stage.press("H")
        await stage.sees("Hosts · 2", "1 of 2 hosts up, 4/8 slots", "2 lost · ui, release")
        assert _row(stage, "build1")[:6] == ["build1", "up", "4/8", "0.5", "1.1G/8.0G", "1s"]
        # What needs the user is above what works.
        assert stage.all.index(" build2 ") < stage.all.index(" build1 ")
        await stage.sees("lost, last seen at 15:03:42, 40s ago", "r resumes ui, release where a host has room")
        await stage.can("r", "resume")
        await stage.press("j")
        await stage.sees("rack-7, 4 cores, 8.0G, crewboard 0.2.0", "140%", "3%")
        add_host(spread.directory, "build1", load=12.0, clock_offset=-7.0)
        await stage.sees(" 3.0 ", "clock 7 s behind")
        await stage.press("enter")
        await stage.sees("filter h:build1", "Team 4 of 11")


async def test_the_first_picture_of_the_hosts_has_its_width(spread: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    fit = table.fit

    def note(columns: Sequence[Column[HostRow]], width: int) -> list[Column[HostRow]]:
        widths.extend([width] if columns is views.hosts.COLUMNS else [])
        return fit(columns, width)

    monkeypatch.setattr(table, "fit", note)
    async with opened(spread, 120, 40) as stage:
        await stage.press("H")
        await stage.sees("Hosts · 2", "labels")
        assert min(widths) > 60


@pytest.mark.long
async def test_n_on_the_hosts_page_hires_onto_the_selected_host(spread: Frozen) -> None:
    async with opened(spread, 80, 24) as stage:
        await stage.press("H", "j")
        await stage.sees("rack-7")
        await stage.press("n")
        await stage.sees("Hire an agent", "--host build1")
        await stage.press("escape", "k")
        await stage.sees("lost, last seen")
        await stage.press("n")
        await stage.sees("Hire an agent")
        assert "--host build2" not in stage.all


@pytest.mark.long
async def test_a_team_without_hosts_says_how_to_start_one(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.sees("━ Team")
        assert " host " not in stage.all
        await stage.press("H")
        await stage.sees("━━ Hosts ━━", "no hosts: this team is in files", "team create NAME --store URL")


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), pytest.param((120, 40), marks=pytest.mark.long)])
async def test_from_two_hosts_on_the_board_names_them(spread: Frozen, size: tuple[int, int]) -> None:
    async with opened(spread, *size) as stage:
        await stage.sees(" host ")
        assert "build1" in _row(stage, "api")[2:4]
        assert "build2" in _row(stage, "ui")[2:4]
        assert max(map(len, stage.text)) <= size[0]
        spread.probe.hosts_up = frozenset()
        state = OperatorState(acknowledged={"ui": 1, "release": 1, "parser": 1})
        spread.directory.operator.save(state)
        # Nothing needs the user any more, and the hosts still tell where each agent ran.
        await stage.press("4")
        await stage.sees("Needs you · 4")
        # A small list keeps its cursor on the death, which may be far from the end.
        await stage.press("1", "G")
        await stage.sees(" host ", " ui ")
        assert "build2" in _row(stage, "ui")[2:4]


def test_what_an_agent_does_keeps_its_room_beside_its_host(spread: Frozen) -> None:
    view = TeamReader(spread.directory, clock=lambda: NOW, probe=spread.probe).read()
    for terminal in range(60, 200, 5):
        for wide in (False, True):
            columns = lay_out(list(view.agents), terminal, terminal - 4, wide=wide, hosts=["build-machine-7", "b"])
            assert next(column.width for column in columns if column.title == "DOING") >= 16


@pytest.mark.long
async def test_a_lost_host_is_one_need_for_all_its_agents(spread: Frozen) -> None:
    bind(spread, "ui", host="build2")
    bind(spread, "release", needs=["tpu"])
    async with opened(spread, 120, 40) as stage:
        await stage.press("4", "j")
        await stage.sees("lost on host build2, with 1 other: no sign of life of build2 for 15 s")
        await stage.sees("agents     ui, release", "what helps resume: it continues on a host with room")
        await stage.sees(
            "would wait ui: waits for the host build2, which is lost", "release: waits for a host with tpu"
        )
        await stage.press("D")
        await stage.sees("Needs you · 5")
        state = spread.directory.operator.load()
        assert state is not None
        assert state.acknowledged == {"ui": 1, "release": 1}


@pytest.mark.long
async def test_work_that_an_ending_host_cut_off_is_resumed_or_acknowledged(
    spread: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[str] = []

    def resume(_team: object, name: str, **_: object) -> int:
        resumed.append(name)
        return 2

    monkeypatch.setattr(hire, "resume", resume)
    cut_off = LOST.replace(reason="host_ended", evidence="", unfinished=True)
    for name in ("ui", "release"):
        spread.directory.agent(name).exit.save(cut_off)
    add_host(spread.directory, "build2", slots=4, at=NOW - 40, draining=True)
    async with opened(spread, 120, 40) as stage:
        await stage.press("4", "j")
        await stage.sees("host build2 ended while 2 agents were at work", "agents     ui, release")
        await stage.press("r")
        await stage.sees("2 are up again")
        assert sorted(resumed) == ["release", "ui"]
        await stage.press("D")
        await stage.sees("Needs you · 5")


@pytest.mark.long
async def test_hosts_were_up_while_the_database_is_away(spread: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("the store postgresql://crew@db failed: connection refused", away=True)

    async with opened(spread, 120, 40) as stage:
        await stage.press("H", "j")
        await stage.sees("1 of 2 hosts up, 4/8 slots", "up since", "4 of 8 slots in use")
        monkeypatch.setattr(FileStore, "glance", refuse)
        stage.app.context.reading.poke()
        await stage.sees("database away", "1 of 2 hosts was up ", "s ago, 4 of 8 slots in use")
        await stage.press("5")
        await stage.sees("1 of 2 hosts was up ")
        await stage.sees_not("1 of 2 hosts up")


@pytest.mark.long
async def test_a_need_for_a_host_names_labels_and_remedies(spread: Frozen) -> None:
    want(spread.directory, "trainer", 40, prompt="Train the model.", needs=["gpu", "tpu"])
    want(spread.directory, "waiter", 50, host="build2", needs=["gpu"])
    async with opened(spread, 120, 40) as stage:
        await stage.press("4", *["j"] * 6)
        await stage.sees("waits for the host build2 with gpu, which is lost", "labels     gpu: build1")
        await stage.sees("what helps start that host: crewboard --offline host --name build2 --label gpu")
        await stage.sees("move it: crewboard --offline resume waiter --host build1")
        await stage.press("j")
        await stage.sees("waits for a host with gpu and tpu", "labels     gpu: build1; tpu: no host")
        await stage.sees("what helps start a host: crewboard --offline host --label gpu --label tpu")
        await stage.sees_not("move it")
        await stage.press("enter")
        await stage.turns_to("Now")
        await stage.sees("queued     waits for a host with gpu and tpu", "since      15:03:42, 40s ago")
        await stage.sees("needs      gpu, tpu", "labels     gpu: build1; tpu: no host")
        await stage.sees("what helps start a host: crewboard --offline host --label gpu --label tpu")
        await stage.sees("prompt     Train the model.")


@pytest.mark.long
async def test_a_need_for_an_engine_says_where_to_start_a_host(spread: Frozen) -> None:
    want(spread.directory, "coder", 40)
    agents.change_spec(spread.directory.agent("coder"), with_codex)
    async with opened(spread, 120, 40) as stage:
        await stage.press("4", *["j"] * 6)
        await stage.sees("waits for a host with engine:codex", "labels     engine:codex: no host")
        await stage.sees("start a host on a machine with codex on its PATH: crewboard --offline host")


@pytest.mark.long
async def test_the_page_of_a_lost_agent_says_what_helps(spread: Frozen) -> None:
    async with opened(spread, 80, 24) as stage:
        await stage.press("4", "j", "enter")
        await stage.sees("was on build2", "no sign of life of build2 for 15 s", "what helps resume")


@pytest.mark.long
async def test_resumed_agents_that_wait_are_not_said_to_be_up(spread: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hire, "resume", lambda *_: 2)
    waits = {"release": "queued: waits for a host with tpu"}
    monkeypatch.setattr(hosts, "queued", lambda _, name, __: waits.get(name, ""))
    async with opened(spread, 120, 40) as stage:
        await stage.press("H", "r")
        await stage.sees("1 of 2 are up again; release is queued: waits for a host with tpu")


@pytest.mark.long
async def test_what_streams_on_another_machine_is_said_to_be_there(spread: Frozen) -> None:
    async with opened(spread, 120, 40) as stage:
        stage.app.open_agent("api", "Transcript")
        await stage.sees("says   on build1; shown here once the reply is complete")
        assert not any("▌" in line[1:] for line in stage.text)
        spread.began("api", 3, "bash", {"command": "make"})
        await stage.sees("out    on build1; shown here once the call has ended")
        stage.app.open_agent("api", "Now")
        await stage.sees("out    on build1; shown here once the call has ended")


@pytest.mark.long
async def test_processes_of_another_machine_are_not_listed(spread: Frozen) -> None:
    spread.probe.families = {4395: ()}
    async with opened(spread, 80, 24) as stage:
        await stage.press("5")
        await stage.sees(" host ")
        assert _row(stage, "api")[1:7] == ["build1", "4395", "1", "140%", "█", "1.0G"]
        await stage.press("j", "j", "j", "j", "j")
        await stage.sees("build1, which measures CPU and memory there")
        assert "COMMAND" not in stage.all
