"""The rules that several processes share: addressing, requests and their mail, results, the supervisor's socket.

`prefork` and `cooldown` have one user each on either side and are imported from their modules.
"""

from typing import TYPE_CHECKING

from crewboard.lazy import lazy

if TYPE_CHECKING:
    from crewboard.protocol import addressing, approvals, collisions, requests, reviews, supervisor_client
    from crewboard.protocol.addressing import is_operator_mailbox, mailboxes, only_operator_answers, operator_mailboxes
    from crewboard.protocol.approvals import SHUTDOWN_TIMEOUT, ineffective_reason
    from crewboard.protocol.results import Follower
    from crewboard.protocol.supervisor_client import ControlRequest, peer_of, wake_worker
else:
    __getattr__ = lazy(
        __name__,
        {
            "addressing": "is_operator_mailbox mailboxes only_operator_answers operator_mailboxes",
            "approvals": "SHUTDOWN_TIMEOUT ineffective_reason",
            "results": "Follower",
            "supervisor_client": "ControlRequest peer_of wake_worker",
        },
        modules="addressing approvals collisions requests reviews supervisor_client",
    )

__all__ = [
    "SHUTDOWN_TIMEOUT",
    "ControlRequest",
    "Follower",
    "addressing",
    "approvals",
    "collisions",
    "ineffective_reason",
    "is_operator_mailbox",
    "mailboxes",
    "only_operator_answers",
    "operator_mailboxes",
    "peer_of",
    "requests",
    "reviews",
    "supervisor_client",
    "wake_worker",
]
