"""The team's settings: who reviews plans, the team budget, and standing permissions."""

from crewboard.commands import answers
from crewboard.commands.context import Team
from crewboard.errors import UsageError
from crewboard.pricing import parse_budget
from crewboard.protocol import requests
from crewboard.records import Config, Request, Rule
from crewboard.store import mailbox, roster


def set_approver(team: Team, who: str) -> None:
    """Set who reviews plans from now on: `operator` or `lead`.

    Raises:
        UsageError: `who` is neither.
    """
    if who not in ("operator", "lead"):
        raise UsageError(f"{who!r} cannot review plans: choose operator or lead")

    def edit(config: Config) -> None:
        config.plan_approver = "lead" if who == "lead" else "operator"

    roster.change(team.directory, edit)


def set_budget(team: Team, amount: str | None) -> None:
    """Set the budget of the whole team, in a form that `parse_budget` reads; None removes it.

    Raises:
        UsageError: The amount has another form.
    """
    if amount is not None:
        parse_budget(amount)

    def edit(config: Config) -> None:
        config.budget = amount

    roster.change(team.directory, edit)


def scope_of(request: Request) -> str | None:
    """Return the scope of a rule for this request; None if no rule is offered."""
    scope = request.payload.get("scope")
    return scope if request.type == "permission" and isinstance(scope, str) else None


def covers(request: Request, scope: str) -> str:
    """Describe which further calls a rule of this scope allows."""
    who, tool = request.from_, str(request.payload.get("tool", ""))
    if tool == "bash":
        return f"any single command of {who} that starts {scope}"
    folder = "the top folder" if scope in (".", "") else f"{scope}/"
    return f"every {tool} of {who} directly in {folder}"


def approve_with_rule(team: Team, request_id: str, *, sha256: str | None = None) -> tuple[Request, Rule]:
    """Approve a permission request, and add the rule that it proposes.

    Raises:
        BadDataError: The answer changed nothing.
        UsageError: The request proposes no rule.
    """
    request_id = answers.find(team, request_id)
    request = requests.load(team.directory, request_id)
    if request is not None and scope_of(request) is None:
        raise UsageError(f"request {request_id} proposes no rule; approve it without --rule")
    decided = answers.approve(team, request_id, sha256=sha256)
    rule = Rule(
        id=f"rule-{mailbox.new_id()[:8]}",
        agent=decided.from_,
        tool=str(decided.payload.get("tool")),
        scope=str(decided.payload.get("scope")),
        at=team.now(),
    )
    roster.change(team.directory, lambda config: config.rules.append(rule))
    return decided, rule


def revoke(team: Team, rule_id: str) -> None:
    """Remove a rule.

    Raises:
        UsageError: There is no such rule.
    """

    def edit(config: Config) -> None:
        left = [rule for rule in config.rules if rule.id != rule_id]
        if len(left) == len(config.rules):
            known = ", ".join(rule.id for rule in config.rules) or "none"
            raise UsageError(f"there is no rule {rule_id!r}; rules: {known}")
        config.rules = left

    roster.change(team.directory, edit)
