"""The file that holds the modules of the first picture: it changes when they load, never what they are."""

import marshal
import os
import stat
import subprocess
import sys
from pathlib import Path
from threading import Thread
from zlib import crc32

import pytest

from crewboard.commands.context import Team
from crewboard_tui import bundle
from tests.bench.terminal import terminal
from tests.cli.files import enlist
from tests.cli.shell import COMMAND, Cli, clean_environment
from tests.cli.test_startup import PICTURE, loaded
from tests.crew import eventually

START = """
import inspect, sys
sys.path.insert(0, sys.argv[2])
from crewboard_tui.bundle import Bundle, Loader
begun = Bundle(sys.argv[1])
begun.begin()
import planet, planet.moon
begun.end()
import importlib.resources, threading
[each.join() for each in threading.enumerate() if each.name == "crewboard-bundle"]
print(type(planet.__spec__.loader) is Loader, type(planet.moon.__spec__.loader) is Loader, planet.moon.NAME)
print(planet.__file__, planet.__cached__, planet.__path__, planet.__package__, planet.moon.__package__)
print(inspect.getsource(planet.moon), importlib.resources.files("planet") / "moon.py")
"""

COUNT = """
import re._parser
parse, parsed = re._parser.parse, []
re._parser.parse = lambda *given: parsed.append(given) or parse(*given)
"""

LOADERS = """
compiled = len(parsed)
begun.end()
import threading
[each.join() for each in threading.enumerate() if each.name == "crewboard-bundle"]
specs = [getattr(module, "__spec__", None) for name, module in sys.modules.items() if name not in begun._before]
found = [type(spec.loader).__name__ for spec in specs if spec is not None]
print(found.count("Loader"), found.count("SourceFileLoader"), compiled)
"""

BEGUN = """
import sys
sys.argv[1:] = ["--read-only"]
from crewboard_tui import dashboard
from crewboard_tui.bundle import Bundle
dashboard.run_in_terminal = lambda *_, **how: print(type(sys.meta_path[0]) is Bundle) or 0
from crewboard_tui.cli import main
main()
"""

PATTERNS = """
import sys
sys.path.insert(0, sys.argv[2])
from crewboard_tui.bundle import Bundle
begun = Bundle(sys.argv[1])
begun.begin()
import re._parser
parse, parsed = re._parser.parse, []
re._parser.parse = lambda pattern, flags: parsed.append(pattern) or parse(pattern, flags)
from planet import moon
moon.later()
before = parsed.copy()
begun.end()
import threading
[each.join() for each in threading.enumerate() if each.name == "crewboard-bundle"]
found = moon.NAME.match("IO and more")
print(before, found["name"], moon.NAME, moon.BYTES.findall(b"a1b2"), re._compiler.compile.__qualname__)
"""

MOON = """
import re
NAME = re.compile("(?P<name>[a-z]+)(?= and)", re.IGNORECASE)
BYTES = re.compile(b"[0-9]")
def later():
    re.compile(" ".join(["my", "secret"]))
"""


class Starts:
    """Starts of a program whose modules are a package with one module, and are found in a bundle."""

    def __init__(self, folder: Path) -> None:
        self.file, self.moon = folder / "all", folder / "planet" / "moon.py"
        self.moon.parent.mkdir()
        (folder / "planet" / "__init__.py").write_text("")
        self.moon.write_text("NAME = 'Io'\n")
        self._folder = folder

    def __call__(self, *options: str, file: Path | None = None, program: str = START) -> tuple[str, str]:
        """Return which of the two modules came from the bundle with what the program is, and how they look else."""
        command = [sys.executable, "-I", *options, "-c", program, str(file or self.file), str(self._folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment())
        assert done.stderr == ""
        first, _, rest = done.stdout.partition("\n")
        return first, rest


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    return Starts(tmp_path)


def test_a_second_start_finds_the_same_modules_in_the_bundle(starts: Starts) -> None:
    first, alone = starts()
    second, bundled = starts()
    assert (first, second) == ("False False Io", "True True Io")
    assert bundled == alone
    assert sorted(each.name for each in starts.file.parent.iterdir()) == ["all", "planet"]


@pytest.mark.long
def test_a_changed_module_is_loaded_from_its_source(starts: Starts) -> None:
    starts()
    before = starts.moon.stat()
    starts.moon.write_text("NAME = 'Eo'\n")
    # An edit within the same second, which bytecode does not tell from no edit.
    os.utime(starts.moon, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    assert starts()[0] == "True False Eo"
    assert starts()[0] == "True True Eo"


def test_a_removed_module_is_not_found(starts: Starts) -> None:
    starts()
    starts.moon.unlink()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        starts()
    assert "No module named 'planet.moon'" in failed.value.stderr


@pytest.mark.long
@pytest.mark.parametrize("harm", ["cut", "of another interpreter", "of another format", "empty"])
def test_a_bundle_that_does_not_fit_is_replaced(harm: str, starts: Starts) -> None:
    starts()
    whole = starts.file.read_bytes()
    harmed = {
        "cut": whole[: len(whole) // 2],
        "of another interpreter": whole.replace(b"3.", b"4.", 1),
        # Under a header that does not say the format, as that of an older version.
        "of another format": whole[whole.index(b"'3.") : whole.index(b"\n") + 1]
        + marshal.dumps(({"planet": None}, marshal.dumps({}), crc32(marshal.dumps({})))),
        "empty": b"",
    }
    starts.file.write_bytes(harmed[harm])
    assert starts()[0] == "False False Io"
    assert starts()[0] == "True True Io"


def test_the_patterns_of_its_modules_are_compiled_once(starts: Starts) -> None:
    starts.moon.write_text(MOON)
    (first, _), (second, _) = (starts(program=PATTERNS) for _ in range(2))
    rest = "IO re.compile('(?P<name>[a-z]+)(?= and)', re.IGNORECASE) [b'1', b'2'] compile"
    assert first == f"['(?P<name>[a-z]+)(?= and)', b'[0-9]', 'my secret'] {rest}"
    # What is compiled later may follow from what the user has, and is in no file.
    assert second == f"['my secret'] {rest}"
    assert b"my secret" not in starts.file.read_bytes()


@pytest.mark.long
def test_damaged_code_of_a_pattern_is_made_anew(starts: Starts) -> None:
    starts.moon.write_text(MOON)
    (first, _), (second, _) = (starts(program=PATTERNS) for _ in range(2))
    whole = starts.file.read_bytes()
    # Behind the code of the modules, in which they stand as text.
    begin = whole.rindex(b"(?P<name>")
    for at in range(begin, begin + 160, 8):
        starts.file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert (starts(program=PATTERNS)[0], starts(program=PATTERNS)[0]) == (first, second)
    assert starts.file.read_bytes() == whole


def test_a_pattern_that_does_not_compile_stays_out_of_it(starts: Starts) -> None:
    starts.moon.write_text(f"{MOON}\ntry:\n    re.compile('(')\nexcept re.error:\n    pass\n")
    starts(program=PATTERNS)
    assert starts(program=PATTERNS)[0].startswith("['(', 'my secret']")


def test_a_pattern_of_text_is_not_one_of_bytes(starts: Starts) -> None:
    starts.moon.write_text(f"{MOON}\nTEXT = re.compile('[0-9]')\n")
    starts("-bb", program=PATTERNS)
    assert starts("-bb", program=PATTERNS)[0].startswith("['my secret']")


def test_patterns_are_left_out_where_re_has_no_compiler(starts: Starts) -> None:
    without = "import re, sys\nsys.modules['re._compiler'] = None\n"
    assert starts(program=without + START)[0] == "False False Io"
    assert starts(program=without + START)[0] == "True True Io"


def test_a_bundle_that_cannot_be_mapped_is_read(starts: Starts) -> None:
    starts()
    # A pipe can be mapped no more than a file of some file systems.
    pipe = starts.file.with_name("pipe")
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_bytes, args=[starts.file.read_bytes()])
    writer.start()
    assert starts(file=pipe)[0] == "True True Io"
    writer.join()


def test_a_module_of_the_folder_where_the_user_is_stays_out_of_it(starts: Starts, tmp_path: Path) -> None:
    place = tmp_path / "project"
    place.mkdir()
    script = place / "start.py"
    # As with `python -m`, the first folder is where the user is, who has a module of a name that Python has too.
    script.write_text(
        "import sys\n"
        "from crewboard_tui.bundle import Bundle\n"
        f"begun = Bundle({str(starts.file)!r})\n"
        "begun.begin()\n"
        "import colorsys\n"
        "begun.end()\n"
        "print(colorsys.__file__)\n"
        "import threading\n"
        "[each.join() for each in threading.enumerate() if each.name == 'crewboard-bundle']\n"
    )
    (place / "colorsys.py").write_text("")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=clean_environment())
    assert done.stdout == f"{place / 'colorsys.py'}\n"
    assert b"colorsys" not in starts.file.read_bytes()


def test_only_the_owner_may_change_it(starts: Starts) -> None:
    before = os.umask(0)
    try:
        starts()
    finally:
        os.umask(before)
    assert stat.filemode(starts.file.stat().st_mode) == "-rw-r--r--"


def test_no_bundle_is_written_where_no_bytecode_is(starts: Starts) -> None:
    assert starts("-B")[0] == "False False Io"
    assert not starts.file.exists()
    away = starts.file.parent / "missing" / "all"
    assert starts(file=away)[0] == starts(file=away)[0] == "False False Io"


@pytest.mark.long
def test_all_modules_of_the_first_picture_are_in_one_file(shell: Cli, tmp_path: Path) -> None:
    begin = f"from crewboard_tui.bundle import Bundle\nbegun = Bundle({str(tmp_path / 'all')!r})\nbegun.begin()\n"
    counts = [loaded(COUNT + begin + PICTURE + LOADERS, set(), shell).stdout.split() for _ in range(2)]
    assert counts[0][0] == counts[1][1] == "0"
    assert counts[0][1] == counts[1][0]
    assert int(counts[1][0]) > 300
    # Nor are their regular expressions compiled again.
    assert int(counts[0][2]) > 80
    assert counts[1][2] == "0"


@pytest.mark.files_only("psycopg loads more")
def test_the_dashboard_begins_with_the_bundle(shell: Cli, team: Team) -> None:
    assert loaded(BEGUN, set(), shell).stdout == "True\n"


@pytest.mark.long
@pytest.mark.files_only("what keeps the team does not matter")
def test_a_dashboard_writes_the_bundle_behind_its_first_picture(team: Team) -> None:
    assert bundle.__spec__ is not None
    file = Path(f"{bundle.__spec__.cached}.bundle")
    enlist(team, "scout")
    file.unlink(missing_ok=True)
    with terminal([*COMMAND, "board", "--read-only"], team.directory.root, clean_environment()) as board:
        board.expect_exact("scout")
        eventually(file.exists)
