"""Paths, and names that are paths."""

from tests.bad_input.bench import Bench, Entry, after, refused


def _loop_of_links(bench: Bench) -> None:
    (bench.root / "a").symlink_to(bench.root / "b")
    (bench.root / "b").symlink_to(bench.root / "a")


def _file_in_the_way(bench: Bench) -> None:
    (bench.root / "other").mkdir()
    (bench.root / "other" / ".crewboard").write_text("a file")


def _mailbox_is_a_folder(bench: Bench) -> None:
    bench.team.inbox("scout").on_disk.mkdir()


def _lock_is_a_folder(bench: Bench) -> None:
    bench.team.lock("inbox-scout").on_disk.mkdir()


def _odd_root(bench: Bench) -> None:
    root = bench.root / "a root\nwith 'quotes', 🦊 and \x1b[31m"
    root.mkdir()
    ran = bench.cli("--root", str(root), "task", "add", "x")
    assert ran.code == 0, ran.err
    assert bench.cli("--root", str(root), "status", "--json").json["root"] == str(root)
    assert "\x1b" not in bench.cli("--root", str(root), "status").out


def _stray_folder(bench: Bench) -> None:
    for name in ("Not An Agent", "..hidden", "ghost"):
        (bench.team.agents / name).mkdir()
    assert [agent.name for agent in bench.view().agents] == ["scout", "fixer"]
    assert bench.cli("team", "delete", "default").code == 0


def _stray_files(bench: Bench) -> None:
    for path in (
        bench.team.task(1).on_disk.with_name("².json"),
        bench.team.request("x").on_disk.with_name("not an id.json"),
    ):
        path.write_bytes(b"{}")
    assert bench.cli("task", "add", "second", "--json").json["id"] == 2
    assert [task["id"] for task in bench.cli("tasks", "--json").json] == [1, 2]
    assert bench.cli("requests", "--json").json == []


PATHS = (
    Entry(
        "paths",
        "a root that is not there",
        "refuses it (2)",
        refused(2, "is not a directory", "--root", "/no/where", "status"),
    ),
    Entry(
        "paths",
        "a root that is a file",
        "refuses it (2)",
        refused(2, "is not a directory", "--root", "/etc/hosts", "status"),
    ),
    Entry(
        "paths",
        "a root that is a loop of links",
        "refuses it (2)",
        after(_loop_of_links, refused(2, "cannot be a root", "--root", "a", "status")),
    ),
    Entry("paths", "a root with a NUL", "refuses it (2)", refused(2, "cannot be a root", "--root", "a\0b", "status")),
    Entry(
        "paths",
        "a root longer than any path",
        "refuses it (2)",
        refused(2, "cannot be a root", "--root", "x" * 5000, "status"),
    ),
    Entry(
        "paths",
        "the home of a user who does not exist",
        "refuses it (2)",
        refused(2, "cannot be a root", "--root", "~no-such-user-here/x", "status"),
    ),
    Entry(
        "paths",
        "a root with a newline, quotes, a fox and an escape sequence",
        "works there, and shows it harmless",
        _odd_root,
    ),
    Entry(
        "paths",
        "a file where the teams should be",
        "says so (74)",
        after(_file_in_the_way, refused(74, "Not a directory", "--root", "other", "task", "add", "x")),
    ),
    Entry(
        "paths",
        "a root that nothing can be written to",
        "says so (74)",
        refused(74, "cannot create the team directory", "--root", "/proc", "task", "add", "x"),
    ),
    Entry(
        "paths",
        "a folder where a mailbox should be",
        "says so (74), sends nothing",
        after(_mailbox_is_a_folder, refused(74, "cannot write", "send", "scout", "x")),
    ),
    Entry(
        "paths",
        "a folder where a lock should be",
        "says so (74), sends nothing",
        after(_lock_is_a_folder, refused(74, "cannot lock", "send", "scout", "x")),
    ),
    Entry(
        "paths",
        "a mailbox named by a path",
        "refuses it (2)",
        refused(2, "no agent of this team", "inbox", "../../../etc/passwd"),
    ),
    Entry(
        "paths",
        "a request named by a path",
        "knows none (65)",
        refused(65, "there is no request", "approve", "../config"),
    ),
    Entry(
        "paths",
        "a request with a name of 300 characters",
        "knows none (65)",
        refused(65, "there is no request", "approve", "x" * 300),
    ),
    Entry(
        "paths",
        "a task named by a path",
        "refuses it (2)",
        refused(2, "not a task id", "task", "update", "../1", "--status", "failed"),
    ),
    Entry(
        "paths",
        "a prompt that is a folder",
        "refuses it (2)",
        refused(2, "is a directory", "spawn", "new", "--type", "explore", "--prompt-file", "."),
    ),
    Entry(
        "paths",
        "a prompt that is not there",
        "refuses it (2)",
        refused(2, "there is no file", "spawn", "new", "--type", "explore", "--prompt-file", "gone.md"),
    ),
    Entry(
        "paths",
        "a prompt that is not text",
        "refuses it (65)",
        after(
            lambda bench: (bench.root / "p").write_bytes(b"\xff\xfe"),
            refused(65, "not UTF-8 text", "spawn", "new", "--type", "explore", "--prompt-file", "p"),
        ),
    ),
    Entry("paths", "folders of agents that break the name rule", "passes over them", _stray_folder),
    Entry("paths", "files among tasks and requests that are none", "passes over them", _stray_files),
)
