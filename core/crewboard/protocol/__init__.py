"""The rules that several processes share: addressing, requests and their mail, results, the supervisor's socket.

`prefork` and `cooldown` have one user each on either side and are imported from their modules.
"""

from crewboard.protocol import addressing, approvals, requests, supervisor_client
from crewboard.protocol.addressing import is_operator_mailbox, mailboxes, only_operator_answers, operator_mailboxes
from crewboard.protocol.approvals import SHUTDOWN_TIMEOUT, ineffective_reason
from crewboard.protocol.results import Follower
from crewboard.protocol.supervisor_client import ControlRequest, peer_of, wake_worker

__all__ = [
    "SHUTDOWN_TIMEOUT",
    "ControlRequest",
    "Follower",
    "addressing",
    "approvals",
    "ineffective_reason",
    "is_operator_mailbox",
    "mailboxes",
    "only_operator_answers",
    "operator_mailboxes",
    "peer_of",
    "requests",
    "supervisor_client",
    "wake_worker",
]
