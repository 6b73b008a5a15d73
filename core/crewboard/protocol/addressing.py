"""Addressing: which mailboxes the operator reads, and which requests only the operator can answer.

`agents` are always the names on the roster. While no agent is called `lead`, the mailbox of that name is the
operator's; mail to the lead goes there only while no agent with another name is the lead.
"""

from collections.abc import Callable, Collection

from crewboard.errors import UsageError
from crewboard.names import LEAD, OPERATOR
from crewboard.records.team import Config
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory


def mailboxes(agents: Collection[str]) -> list[str]:
    """Return every name that mail can be sent to: the operator, the lead, and the agents."""
    return [OPERATOR, LEAD, *(name for name in agents if name != LEAD)]


def operator_mailboxes(agents: Collection[str]) -> frozenset[str]:
    """Return the mailboxes that the operator reads."""
    return frozenset({OPERATOR} if LEAD in agents else {OPERATOR, LEAD})


def is_operator_mailbox(name: str, agents: Collection[str]) -> bool:
    """Return True if the operator reads the mailbox `name`."""
    return name in operator_mailboxes(agents)


def require_recipient(name: str, agents: Collection[str]) -> str:
    """Return `name` if mail can be sent to it.

    Raises:
        UsageError: No agent is called that; the message lists the names.
    """
    known = mailboxes(agents)
    if name not in known:
        raise UsageError(f"no agent of this team is called {name!r}; mail can go to {', '.join(known)}")
    return name


def recipient(name: str, config: Config) -> str:
    """Return the mailbox for mail to `name`; mail to `lead` goes to the agent that is the lead, whatever its name.

    Raises:
        UsageError: No agent is called that; the message lists the names.
    """
    return config.lead if name == LEAD else require_recipient(name, config.names)


def only_operator_answers(config: Config, team: TeamDirectory, lead_is_alive: Callable[[], bool]) -> frozenset[str]:
    """Return the recipients whose requests only the operator can answer.

    The lead's are among them while it does not review plans, or is not running.
    """
    own = operator_mailboxes(config.names)
    return own if lead_is_alive() and roster.lead_reviews(config, team) else own | {config.lead}
