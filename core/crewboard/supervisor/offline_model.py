"""The process that serves the offline model: started for the first worker that needs it, ended with the supervisor."""

import logging
import os
import signal
import time
from collections.abc import Mapping

from crewboard import env
from crewboard.linux import process
from crewboard.records.processes import ModelServerInfo
from crewboard.store import files, leases
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor.launcher import PopenLauncher

START_TIMEOUT = 15.0
"""Seconds that the server may take to start."""

_UNREACHABLE = "http://127.0.0.1:9"
"""Given to a worker if the server did not start: its calls fail, and the worker reports that."""

log = logging.getLogger(__name__)


class OfflineModel:
    """The offline model's server of one team."""

    def __init__(self, team: TeamDirectory, launcher: PopenLauncher) -> None:
        self._team = team
        self._launcher = launcher
        self._started_at: float | None = None

    def worker_environment(self, environment: Mapping[str, str]) -> dict[str, str] | None:
        """Return the environment of a worker. It names the offline model's server if the worker uses that.

        Start the server if it is not there. Return None while it starts; ask again after a moment.
        """
        if not env.is_offline(environment):
            return dict(environment)
        url = self._url(environment)
        if url is None:
            return None
        return {**env.without_api(environment), "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "offline"}

    def _url(self, environment: Mapping[str, str]) -> str | None:
        holder = leases.holder(self._team.model_lock, ModelServerInfo)
        if holder is not None and holder.url:
            self._started_at = None
            return holder.url
        if self._started_at is None:
            self._started_at = time.monotonic()
            if not leases.is_held(self._team.model_lock):
                self._start(environment)
        if time.monotonic() - self._started_at < START_TIMEOUT:
            return None
        self._started_at = None
        log.error("the offline model did not start; see %s", self._team.model_log)
        return _UNREACHABLE

    def _start(self, environment: Mapping[str, str]) -> None:
        with open(self._team.model_log, "ab", opener=files.open_private) as output:
            settings = {**os.environ, **env.offline_settings(environment)}
            self._launcher.start(["crewboard.offline", str(self._team.path)], settings, output.fileno())

    def end(self) -> None:
        """End the team's server if there is one."""
        holder = leases.holder(self._team.model_lock, ModelServerInfo)
        if holder is not None:
            process.send_signal(holder.pid, signal.SIGTERM)
