"""The embedded model's server, started for the first worker that needs it and ended with the supervisor."""

import logging
import os
import signal
import time
from collections.abc import Mapping

from crewboard import env
from crewboard.linux import process
from crewboard.records import ModelServerInfo
from crewboard.store import files, leases
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor.launcher import Launcher

UP_WITHIN = 15.0
_POLL = 0.01

log = logging.getLogger(__name__)


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether a worker with this environment works on the embedded model."""
    return env.is_offline(environment)


def environment_for(team: TeamDirectory, launcher: Launcher, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker, pointed at the embedded model if it is to use that; starts the server."""
    if not is_wanted(environment):
        return dict(environment)
    return {
        **env.without_api(environment),
        "ANTHROPIC_BASE_URL": _address(team, launcher, environment),
        "ANTHROPIC_API_KEY": "offline",
    }


def _address(team: TeamDirectory, launcher: Launcher, environment: Mapping[str, str]) -> str:
    deadline = time.monotonic() + UP_WITHIN
    started = False
    while time.monotonic() < deadline:
        holder = leases.holder(team.model_lock, ModelServerInfo)
        if holder is not None and holder.url:
            return holder.url
        if not started and not leases.is_held(team.model_lock):
            started = True
            with open(team.model_log, "ab", opener=files.open_private) as output:
                launcher.start(
                    ["crewboard.offline", str(team.path)],
                    {**os.environ, **env.offline_settings(environment)},
                    output.fileno(),
                )
        time.sleep(_POLL)
    log.error("the embedded model did not come up; see %s", team.model_log)
    return "http://127.0.0.1:9"


def end(team: TeamDirectory) -> None:
    """End the team's server, if it has one."""
    holder = leases.holder(team.model_lock, ModelServerInfo)
    if holder is not None:
        process.send_signal(holder.pid, signal.SIGTERM)
