"""Projections of a team's files for people and scripts. They write nothing."""

from typing import TYPE_CHECKING

from crewboard.lazy import lazy

if TYPE_CHECKING:
    from crewboard.readmodel import as_json, watcher
    from crewboard.readmodel.activity import Activity, ActivityReader, describe, why_failed
    from crewboard.readmodel.changes import Absence, Change, ChangeReader, Happening, HappeningKind, read_absence
    from crewboard.readmodel.crash_report import CrashReport, examine, host_of_log, log_end
    from crewboard.readmodel.file_activity import (
        FileAccess,
        FileAccessReader,
        FileActivity,
        makes_repository,
        runs_on_your_machine,
    )
    from crewboard.readmodel.hosts import no_hosts
    from crewboard.readmodel.mail import (
        MailboxTail,
        MailReader,
        MessageView,
        describe_message,
        display_name,
        headline,
        is_notice,
        question_in,
    )
    from crewboard.readmodel.needs import (
        NEED_OF_REQUEST,
        Waiting,
        format_minute,
        outage_end,
        response_times_today,
        summarise,
        tasks_blocked_by,
        to_acknowledge,
        waiting_behind,
        ways_to_begin,
    )
    from crewboard.readmodel.processes import KernelProbe, NoUsageProbe, Probe, ProcessNode, Usage
    from crewboard.readmodel.reader import TeamReader, blocked, read_team
    from crewboard.readmodel.states import URGENCY, Shown, why_no_host
    from crewboard.readmodel.team import (
        AgentView,
        HostView,
        Limit,
        Need,
        NeedKind,
        SupervisorView,
        TeamView,
        describe_hosts,
        describe_runner,
        describe_storage,
    )
    from crewboard.readmodel.usage import Bill, Call, CallReader, bill_agent, bill_team, hit_rate
else:
    __getattr__ = lazy(
        __name__,
        {
            "activity": "Activity ActivityReader describe why_failed",
            "changes": "Absence Change ChangeReader Happening HappeningKind read_absence",
            "crash_report": "CrashReport examine host_of_log log_end",
            "file_activity": "FileAccess FileAccessReader FileActivity makes_repository runs_on_your_machine",
            "hosts": "no_hosts",
            "mail": "MailReader MailboxTail MessageView describe_message display_name headline is_notice question_in",
            "needs": "NEED_OF_REQUEST Waiting format_minute outage_end response_times_today summarise tasks_blocked_by "
            "to_acknowledge waiting_behind ways_to_begin",
            "processes": "KernelProbe NoUsageProbe Probe ProcessNode Usage",
            "reader": "TeamReader blocked read_team",
            "states": "Shown URGENCY why_no_host",
            "team": "AgentView HostView Limit Need NeedKind SupervisorView TeamView describe_hosts describe_runner "
            "describe_storage",
            "usage": "Bill Call CallReader bill_agent bill_team hit_rate",
        },
        modules="as_json watcher",
    )

__all__ = [
    "NEED_OF_REQUEST",
    "URGENCY",
    "Absence",
    "Activity",
    "ActivityReader",
    "AgentView",
    "Bill",
    "Call",
    "CallReader",
    "Change",
    "ChangeReader",
    "CrashReport",
    "FileAccess",
    "FileAccessReader",
    "FileActivity",
    "Happening",
    "HappeningKind",
    "HostView",
    "KernelProbe",
    "Limit",
    "MailReader",
    "MailboxTail",
    "MessageView",
    "Need",
    "NeedKind",
    "NoUsageProbe",
    "Probe",
    "ProcessNode",
    "Shown",
    "SupervisorView",
    "TeamReader",
    "TeamView",
    "Usage",
    "Waiting",
    "as_json",
    "bill_agent",
    "bill_team",
    "blocked",
    "describe",
    "describe_hosts",
    "describe_message",
    "describe_runner",
    "describe_storage",
    "display_name",
    "examine",
    "format_minute",
    "headline",
    "hit_rate",
    "host_of_log",
    "is_notice",
    "log_end",
    "makes_repository",
    "no_hosts",
    "outage_end",
    "question_in",
    "read_absence",
    "read_team",
    "response_times_today",
    "runs_on_your_machine",
    "summarise",
    "tasks_blocked_by",
    "to_acknowledge",
    "waiting_behind",
    "watcher",
    "ways_to_begin",
    "why_failed",
    "why_no_host",
]
