"""Snapshots of an agent's worktree, which a team with hosts also keeps in its store.

On such a team, a snapshot of what a tool may have written is in the store first, and only then the tool's result in the
journal. So a run on another host starts with the files that its conversation knows of.
"""

import asyncio
import sys
from typing import TYPE_CHECKING, Literal

from crewboard.agent_types import is_gated
from crewboard.errors import CrewboardError, LostLeaseError, StorageError
from crewboard.records.events import SnapshotTaken
from crewboard.worker.run_state import RunState

if TYPE_CHECKING:
    from crewboard.worktrees.workspaces import Carrier

_WRITE_TOO = frozenset({"bash_output", "bash_kill", "task_update"})
"""Tools that are not gated, but after which a command may have written: in the background, or as a task's check."""


class Snapshots:
    """The snapshots of one agent. One that fails does not end the agent's work, and the log says why.

    Only a failed write to the store of a team with hosts is an error.
    """

    def __init__(self, run_state: RunState) -> None:
        self._run_state = run_state
        self._of = ""
        """The id of the assignment at whose begin a snapshot was taken, until that at its end; else empty."""
        worktree = run_state.spec.worktree
        self._is_carried = worktree is not None and worktree.carried
        """True on a team with hosts, where snapshots are put into the team's store."""
        self._carrier: Carrier | None = None
        self._problem = ""

    async def take_at(self, at: Literal["begin", "end"]) -> None:
        """Take and journal a snapshot at the begin or end of an assignment, once each.

        Do nothing if the agent has no worktree. If no snapshot can be taken, the log says why.

        Raises:
            StorageError: The snapshot could not be put into the store of a team with hosts.
            LostLeaseError: On a team with hosts, this run has lost its lease.
        """
        run_state, assignment = self._run_state, self._run_state.conversation.assignment
        ident = assignment.id if assignment is not None else self._of
        if run_state.spec.worktree is None or not ident or (at, ident) == ("begin", self._of):
            return
        self._of = ident if at == "begin" else ""
        if (commit := await self._take()) is None:
            return
        run_state.append(SnapshotTaken(ts=run_state.now(), assignment=ident, commit=commit, at=at))
        if at == "end" and not self._is_carried:
            # Imported here because few agents have a worktree.
            from crewboard.worktrees import collisions

            try:
                await asyncio.to_thread(collisions.update, run_state.team, run_state.now())
            except (CrewboardError, OSError) as error:
                sys.stderr.write(f"{run_state.name}: not compared with other agents: {error}\n")

    async def take_after(self, tool: str) -> str | None:
        """On a team with hosts, put what this tool may have written into the store; return the snapshot's commit.

        Return None on other teams, if the tool writes nothing, or if no snapshot could be taken.

        Raises:
            StorageError: The snapshot could not be put into the store.
            LostLeaseError: This run has lost its lease.
        """
        return await self._take() if self._is_carried and (is_gated(tool) or tool in _WRITE_TOO) else None

    async def start_again(self) -> str:
        """On a team with hosts, bring the checkout up to date before a new assignment.

        Fetch what the user pushed last, and the newest state of the agent that this one starts from. Return a notice
        for the agent; an empty text if there is nothing to tell.
        """
        run_state, assignment = self._run_state, self._run_state.conversation.assignment
        # A run that continues an assignment continues with its files.
        is_new = assignment is not None and not assignment.calls and assignment.id != self._of
        if not (self._is_carried and is_new):
            return ""
        from crewboard.worktrees import workspaces

        def bring() -> str:
            workspaces.bring_newest_base(run_state.team)
            return workspaces.start_again(run_state.team, run_state.name, run_state.spec)

        try:
            return await asyncio.to_thread(bring)
        except (CrewboardError, OSError) as error:
            sys.stderr.write(f"{run_state.name}: {error}\n")
            return f"Your checkout may lack the newest state of others: {error}"

    async def _take(self) -> str | None:
        run_state = self._run_state
        team, name, spec = run_state.team, run_state.name, run_state.spec

        def take() -> str:
            # Imported here because few agents have a worktree.
            from crewboard.worktrees import snapshot, workspaces

            taken = snapshot.take(team, name, spec)
            if spec.worktree is not None and spec.worktree.carried:
                self._carrier = self._carrier or workspaces.Carrier(team, name, spec.worktree)
                self._carrier.carry(taken, spec.run, run_state.now())
            return taken.commit

        try:
            commit = await asyncio.to_thread(take)
        except (CrewboardError, OSError) as error:
            if self._is_carried and isinstance(error, StorageError | LostLeaseError):
                raise
            sys.stderr.write(f"{run_state.name}: no snapshot of its worktree: {error}\n")
            self._show(f"its files are on this host alone: {error}")
            return None
        self._show("")
        return commit

    def _show(self, problem: str) -> None:
        """On a team with hosts, show in the status that the newest files are on this host alone; empty: no longer."""
        if self._is_carried and problem != self._problem:
            self._problem = problem
            self._run_state.show_setup_error(problem or None)
