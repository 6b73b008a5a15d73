"""A storm: all that stands before conversations changes at random, and the API refuses none of a thousand requests.

`.ci/run` leaves the thousand to `make test-long`: a storm of 300 also goes on until all that may happen did, and finds
a worker without any of the rules below: they took 8 to 189 requests.
"""

from pathlib import Path

import pytest

from tests.preloaded import TAKEN_FOR_THE_API, patched
from tests.worker.storm import storm_in

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the server that a storm accepts out of the state of the user."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.mark.parametrize("least", [300, 1000])
def test_a_storm_has_no_request_refused_and_loses_no_mail(tmp_path: Path, least: int) -> None:
    with storm_in(tmp_path, seed=1) as storm:
        storm.rage(least, 600)
        storm.settle()
        storm.check()
        assert len(storm.model.requests) >= least


@pytest.mark.parametrize("least", [300, 1000])
def test_a_storm_with_tools_on_demand_has_no_request_refused(tmp_path: Path, least: int) -> None:
    others = [f"other{number}" for number in range(40)]
    with patched(TAKEN_FOR_THE_API), storm_in(tmp_path, seed=3, others=others) as storm:
        storm.rage(least, 600)
        storm.settle()
        storm.check()


_PATCH = """
from crewboard.records.events import Cleared, Intake, Opening, RunStarted
from crewboard.worker import loop
from crewboard.worker.conversation import _APPLY

begin, clear, opens, take_in = (_APPLY[kind] for kind in (RunStarted, Cleared, Opening, Intake))


def without_stale(apply):
    def applied(self, event):
        stale = self.stale
        apply(self, event)
        self.stale = stale

    return applied

"""

MUTANTS = {
    "a resume begins anew": """
def begin_anew(self, event):
    begin(self, event)
    self.opening, self.is_resumed = None, True


def open_at_resume(self, event):
    (without_stale(opens) if self.__dict__.pop("is_resumed", False) else opens)(self, event)


_APPLY.update({RunStarted: begin_anew, Opening: open_at_resume})
""",
    "thinking stays behind a new beginning": """
_APPLY.update({Opening: without_stale(opens)})
""",
    "thinking stays behind removed results": """
_APPLY.update({Cleared: without_stale(clear)})
""",
    "a changed text replaces that of the beginning": """
def take_in_first(self, event):
    take_in(self, event)
    if event.updates and self.opening is not None:
        self.opening = self.opening.replace(preface={name: text for name, text in self.preface.items() if text})


_APPLY.update({Intake: take_in_first})
""",
    "the tools are those of the moment": """
bring = loop.Loop._bring_up_to_date


async def with_tools_of_the_moment(self):
    return (await bring(self)).replace(tools=self._registry.definitions())


loop.Loop._bring_up_to_date = with_tools_of_the_moment
""",
}
"""The changes of a worker so that it keeps one rule less."""


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_storm_finds_a_worker_without_a_rule(tmp_path: Path, rule: str) -> None:
    with patched(_PATCH + MUTANTS[rule]), storm_in(tmp_path, seed=2) as storm:
        # Until it is found.
        storm.rage(100_000, 600)
        with pytest.raises(AssertionError, match="stale thinking at"):
            storm.check()
        print(f"found after {len(storm.model.requests)} requests")
