"""Outages of the API: agents wait for the end of one by themselves, and come back one after the other."""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from crewboard import operations
from crewboard.commands import control, messages, settings, stop
from crewboard.errors import ExitCode
from crewboard.offline.reply import Speed, events, message
from crewboard.offline.service import Fault
from crewboard.protocol import cooldown
from crewboard.readmodel.team import AgentView, Need
from crewboard.records.events import Reply, Retry
from crewboard.records.team import Member
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory
from crewboard.worker.interrupts import Interrupts
from tests.crash.scenarios import hire, worker
from tests.crew import Crew, eventually
from tests.model import says

if TYPE_CHECKING:
    import anthropic
    import httpx2

pytestmark = pytest.mark.xdist_group("sdk")

Make = Callable[..., Crew]
T = TypeVar("T")

SERVER = "api.anthropic.com:443"

START = 1_800_000_000.0
"""The time at which a simulation begins, in epoch seconds."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time: the clock jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                loop.now += max(0.0, timeout or 0)
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return self.now


class Waits:
    """The interrupts of a worker that nothing interrupts."""

    paused = False

    async def wait(self, seconds: float = 1.5) -> None:
        await asyncio.sleep(seconds)

    async def run_interruptibly(self, work: Coroutine[Any, Any, T], **_: object) -> T:
        return await work


class Simulation:
    """A team of agents in one process, with an API that answers as `api` says, in virtual time."""

    def __init__(
        self, team: TeamDirectory, monkeypatch: pytest.MonkeyPatch, api: "Callable[[float], httpx2.Response]"
    ) -> None:
        # Loading the SDK takes more than a second, so test runners that do not need it do without.
        import anthropic
        import httpx2

        from crewboard.worker.llm import model, outages, refusals

        self.team = team
        self.model = model
        self.refusals = refusals
        self.loop = VirtualLoop()
        self.requests: list[float] = []
        clock = SimpleNamespace(monotonic=self.loop.time, time=lambda: START + self.loop.now)

        def answer(_: "httpx2.Request") -> "httpx2.Response":
            self.requests.append(self.loop.now)
            return api(self.loop.now)

        def client() -> "anthropic.AsyncAnthropic":
            http = anthropic.DefaultAsyncHttpxClient(transport=httpx2.MockTransport(answer))
            sdk = anthropic.AsyncAnthropic(api_key="none", max_retries=0, http_client=http)
            # The SDK asks for it in a thread, and virtual time would not wait for that.
            sdk._platform = "Linux"
            return sdk

        monkeypatch.setattr(model, "make_client", client)
        monkeypatch.setattr(outages, "SWEEP_INTERVAL", 60.0)
        for module in (model, outages, refusals, cooldown):
            monkeypatch.setattr(module, "time", clock)
        self.clock = clock.time

    def call_all(self, names: list[str]) -> list[Reply | BaseException]:
        """Let each agent call the model once, all at the same time."""
        callers = []
        for name in names:
            hire(self.team, name)
            roster.put(self.team, Member(name=name, type="explore"))
            run_state = worker(self.team, name)
            run_state.now = self.clock
            callers.append(self.model.Model(run_state, cast("Interrupts", Waits())))

        async def call() -> list[Reply | BaseException]:
            asked = [{"role": "user", "content": [{"type": "text", "text": "go"}]}]
            return await asyncio.gather(*(each.reply("", [], asked, 1000) for each in callers), return_exceptions=True)

        try:
            return self.loop.run_until_complete(call())
        finally:
            self.loop.close()


def overloaded(**headers: str) -> "httpx2.Response":
    import httpx2

    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    return httpx2.Response(529, json=body, headers=headers)


_USED = {
    "input_tokens": 1, "ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0, "cache_read_input_tokens": 0,
}  # fmt: skip


def answering() -> "httpx2.Response":
    import httpx2

    whole = message(says("done"), "claude-haiku-5-5", b"", _USED, 1000)
    body = b"".join(event.encode() for event in events(whole, Speed()))
    return httpx2.Response(200, content=body, headers={"content-type": "text/event-stream"})


EIGHT = [f"agent{number}" for number in range(8)]


@pytest.mark.long
def test_ten_minutes_of_529_end_without_a_person(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    minutes = 10
    end = minutes * 60
    sim = Simulation(directory, monkeypatch, lambda now: overloaded() if now < end else answering())
    replies = sim.call_all(EIGHT)
    assert [type(reply) for reply in replies] == [Reply] * 8
    refused = [at for at in sim.requests if at < end]
    assert len(refused) <= 1.2 * 8 * minutes
    good = sorted(at for at in sim.requests if at >= end)
    assert len(good) == 8
    assert good[0] < end + cooldown.MAX_OUTAGE_PAUSE
    gaps = [after - before for before, after in pairwise(good)]
    assert min(gaps) > 0.9 * cooldown.WAKE_STEP, "one agent after the other"


def test_agents_wait_until_the_time_that_the_api_names(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = {False: lambda: overloaded(**{"retry-after": "4000"}), True: answering}
    sim = Simulation(directory, monkeypatch, lambda now: api[now >= 4000]())
    assert [type(reply) for reply in sim.call_all(EIGHT[:3])] == [Reply] * 3
    assert len([at for at in sim.requests if at < 4000]) <= 3
    assert min(at for at in sim.requests if at > 100) < 4010


def test_the_first_call_of_a_run_tries_once_in_an_outage(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = Simulation(directory, monkeypatch, lambda _: answering())
    cooldown.extend_outage(directory.agent("agent0"), SERVER, 3000.0, "529", time.time())
    assert [type(reply) for reply in sim.call_all(["agent0"])] == [Reply]
    assert sim.requests == [0.0]
    pause = cooldown.current(directory.agent("agent0"), SERVER)
    assert pause is not None
    assert not pause.since, "the API is available again for the others, too"
    assert cooldown.left(pause, time.time()) <= 0


@pytest.mark.both_stores("agents tell each other through the store")
def test_agents_go_on_when_another_finds_the_api_available(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = Simulation(
        directory, monkeypatch, lambda now: overloaded(**{"retry-after": "4000"}) if now < 1 else answering()
    )
    sim.loop.call_later(600, cooldown.end_outage, directory.agent("other"), SERVER)
    assert [type(reply) for reply in sim.call_all(EIGHT[:3])] == [Reply] * 3
    good = sorted(at for at in sim.requests if at >= 1)
    assert 600 <= good[0] < 700
    assert min(after - before for before, after in pairwise(good)) > 0.9 * cooldown.WAKE_STEP


def test_an_outage_that_lasts_too_long_fails_the_work(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    roster.change(directory, lambda config: setattr(config, "outage_hours", 2.0))
    sim = Simulation(directory, monkeypatch, lambda _: overloaded())
    (error,) = sim.call_all(["agent0"])
    assert isinstance(error, sim.refusals.ModelError)
    assert error.code == ExitCode.API_UNAVAILABLE
    assert str(error).startswith("the API stayed unavailable for 2 h: 529")
    assert 7200 <= sim.loop.now < 7200 + sim.model.RETRY_BUDGET + 60


def test_a_team_that_does_not_wait_fails_after_the_retry_budget(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    roster.change(directory, lambda config: setattr(config, "on_outage", "fail"))
    sim = Simulation(directory, monkeypatch, lambda _: overloaded())
    (error,) = sim.call_all(["agent0"])
    assert isinstance(error, sim.refusals.ModelError)
    assert sim.loop.now <= sim.model.RETRY_BUDGET
    assert str(error).startswith("the API stayed unavailable: 529")


def test_a_failure_of_one_call_alone_holds_up_no_other_agent(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx2

    sim = Simulation(directory, monkeypatch, lambda now: httpx2.Response(500, json={}) if now < 300 else answering())
    assert [type(reply) for reply in sim.call_all(["agent0"])] == [Reply]
    assert cooldown.current(directory.agent("agent0"), SERVER) is None


RESETS = {
    "retry-after": ({"retry-after": "90"}, 90),
    "a date": ({"retry-after": "Wed, 21 Oct 2026 07:30:00 GMT"}, 120),
    "the latest limit that is used up": (
        {
            "anthropic-ratelimit-requests-reset": "2026-10-21T07:28:30Z",
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-tokens-reset": "2026-10-21T07:29:00Z",
            "anthropic-ratelimit-tokens-remaining": "0",
            "anthropic-ratelimit-input-tokens-reset": "2026-10-21T07:59:00Z",
            "anthropic-ratelimit-input-tokens-remaining": "17",
        },
        60,
    ),
    "seconds": (
        {"anthropic-ratelimit-unified-reset": str(int(datetime(2026, 10, 21, 8, 28, tzinfo=UTC).timestamp()))},
        3600,
    ),
    "nonsense": ({"retry-after": "soon", "anthropic-ratelimit-unified-reset": "nan"}, 0),
    "the past": ({"retry-after": "-5"}, 0),
    "nothing": ({}, 0),
}


@pytest.mark.parametrize("name", RESETS)
def test_the_reset_time_comes_from_the_headers_of_the_api(name: str) -> None:
    import anthropic
    import httpx2

    from crewboard.worker.llm import refusals

    headers, expected = RESETS[name]
    request = httpx2.Request("POST", "http://api/v1/messages")
    given = {"date": "Wed, 21 Oct 2026 07:28:00 GMT", **headers}
    response = httpx2.Response(429, headers=given, request=request)
    assert refusals._retry_after(anthropic.RateLimitError("busy", response=response, body=None)) == expected


def test_a_pause_of_an_old_outage_is_no_outage_any_more(directory: TeamDirectory) -> None:
    agent = directory.agent("late")
    cooldown.extend_outage(agent, SERVER, 0.0, "529", time.time() - 9000)
    pause = cooldown.current(agent, SERVER)
    assert pause is not None
    assert cooldown.is_outage(pause, time.time())
    old = {"until": time.time() - 9000, "until_monotonic": time.monotonic() - 9000}
    directory.cooldown.save(pause.replace(**old))
    assert cooldown.extend_outage(agent, SERVER, 0.0, "529", time.time()) <= cooldown.FIRST_OUTAGE_PAUSE


# ------------------------------------------------------------------------------------------- with real processes


def outage_of(crew: Crew) -> Need | None:
    return next((need for need in crew.view().needs if need.kind == "outage"), None)


@pytest.mark.long
def test_an_outage_is_seen_and_ends_by_itself(crew_on: Make) -> None:
    # Long enough to be looked at on any machine.
    faults = [Fault(kind="status", status=529, retry_after=10)]
    crew = crew_on([says("here it is")] * 2, faults, CREWBOARD_RETRY_BUDGET="0.1")
    # The second is hired when all was seen that the outage shows: that may take longer than the outage.
    hired = [crew.hire("one", "explore", "go")]

    def seen_in_one_look() -> tuple[Need, AgentView] | None:
        view = crew.view()
        need = next((need for need in view.needs if need.kind == "outage"), None)
        waiting = next((each for each in view.agents if each.waits_for_api), None)
        return (need, waiting) if need is not None and waiting is not None else None

    need, waiting = eventually(seen_in_one_look, "the need, and the agent that waits")
    assert "the API is unavailable: 529" in need.summary
    assert waiting.status.retry_at is not None
    hired.append(crew.hire("two", "explore", "go"))
    assert [crew.answer(each).text for each in hired] == ["here it is"] * 2
    eventually(lambda: outage_of(crew) is None, "the end of the need")
    assert "failed" not in {need.kind for need in crew.view().needs}
    assert len(crew.model.requests) == 3


def test_pause_interrupt_and_stop_work_in_an_outage(crew_on: Make) -> None:
    crew = crew_on(
        [says("yes")], [Fault(kind="status", status=529, retry_after=3000)] * 9, CREWBOARD_RETRY_BUDGET="0.1"
    )
    crew.hire("held", "explore", "go")
    eventually(lambda: crew.see("held").waits_for_api, "the outage")
    operations.pause(crew.team, "held")
    paused_at = crew.wait_for("held", "paused").since
    operations.unpause(crew.team, "held")
    eventually(lambda: crew.see("held").waits_for_api, "the outage")
    # No pause is in the journal.
    status = crew.see("held").status
    assert status.paused_at == paused_at < status.unpaused_at
    sent = control.interrupt(crew.team, "held", "where are you?")
    eventually(lambda: crew.see("held").unread == 0 and crew.see("held").waits_for_api, "the mail")
    assert len(crew.model.requests) == 1, "no call before the time that the API named"
    assert sent.id
    stop.stop(crew.team, "held")
    assert not crew.see("held").alive


@pytest.mark.long
def test_agents_stop_waiting_when_the_team_no_longer_waits(crew_on: Make) -> None:
    crew = crew_on(
        [says("yes")], [Fault(kind="status", status=529, retry_after=3000)] * 9, CREWBOARD_RETRY_BUDGET="0.1"
    )
    hired = crew.hire("tired", "explore", "go")
    eventually(lambda: crew.see("tired").waits_for_api, "the outage")
    need = outage_of(crew)
    assert need is not None
    messages.acknowledge_marks(crew.team, dict(need.marks))
    assert outage_of(crew) is None
    settings.change_setting(crew.team, "on_outage", "fail")
    assert crew.answer(hired).code == ExitCode.API_UNAVAILABLE
    assert [event.attempt for event in crew.events("tired") if isinstance(event, Retry)] == [1]


LOW = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to purchase credits."
SPENT = "You have reached your specified API usage limits. You will regain access on 2027-01-17 at 00:00 UTC."


def unpaid(text: str, kind: str = "invalid_request_error", status: int = 400) -> "httpx2.Response":
    import httpx2

    return httpx2.Response(status, json={"type": "error", "error": {"type": kind, "message": text}})


@pytest.mark.parametrize(("text", "kind", "status"), [(LOW, "invalid_request_error", 400), ("x", "billing_error", 402)])
def test_an_account_without_credit_is_one_outage_of_the_team(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, text: str, kind: str, status: int
) -> None:
    sim = Simulation(directory, monkeypatch, lambda now: unpaid(text, kind, status) if now < 3000 else answering())
    assert [type(reply) for reply in sim.call_all(EIGHT[:3])] == [Reply] * 3
    refused = [at for at in sim.requests if at < 3000]
    assert len([at for at in refused if at < 20]) <= 3, "nothing is retried as if it had been chance"
    assert len(refused) < 30


def test_a_limit_of_spending_is_waited_for_until_it_is_reset(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset = datetime(2027, 1, 17, tzinfo=UTC).timestamp() - START
    assert reset > 12 * 3600, "longer than an outage may last"
    sim = Simulation(directory, monkeypatch, lambda now: unpaid(SPENT) if now < reset else answering())
    assert [type(reply) for reply in sim.call_all(EIGHT[:2])] == [Reply] * 2
    assert len([at for at in sim.requests if at < reset]) <= 3
    assert min(at for at in sim.requests if at > 100) < reset + 60
