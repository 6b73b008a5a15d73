"""Names of agents and teams, in each command that takes one."""

from tests.bad_input.bench import SPAWN, Entry, refused


def named(given: str, name: str, words: str = "cannot name an agent") -> Entry:
    return Entry("names", given, "refuses it (2), says the rule", refused(2, words, "spawn", name, *SPAWN))


NAMES = (
    named("an agent called Scout", "Scout"),
    named("an agent without a name", ""),
    named("an agent called 7up", "7up"),
    named("a name of 33 characters", "a" * 33),
    named("a name that is a path", "../scout"),
    named("a name with a slash", "a/b"),
    named("a name with a space", "two words"),
    named("a name that ends in a newline", "scout\n"),
    named("a name with a NUL", "sco\0ut"),
    named("a name with a letter that only looks like one", "\u0455cout"),
    named("a name that is an escape sequence", "\x1b[2Jx"),
    named("an agent called operator", "operator", "'operator' is reserved"),
    named("an agent called all", "all", "'all' is reserved"),
    named("a lead that is no lead", "lead", "'lead' is reserved"),
    Entry(
        "names",
        "a name that is taken by another type",
        "refuses it (2), says which",
        refused(2, "scout is of type code", "spawn", "scout", *SPAWN),
    ),
    Entry(
        "names",
        "mail to an unknown name",
        "refuses it (2), lists who is",
        refused(
            2,
            "no agent of this team is called 'scuot'; mail can go to operator, lead, scout, fixer",
            "send",
            "scuot",
            "x",
        ),
    ),
    Entry("names", "a team called agents", "refuses it (2)", refused(2, "reserved", "team", "create", "agents")),
    Entry("names", "a team called ..", "refuses it (2)", refused(2, "cannot name a team", "team", "create", "..")),
    Entry(
        "names",
        "a team that is not there",
        "refuses it (2), says how to make it",
        refused(2, "`crewboard team create ghosts`", "--team", "ghosts", "status"),
    ),
)
