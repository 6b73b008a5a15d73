"""Load the modules of the first picture from one file, the bundle, which is stored beside their bytecode.

Python looks up, opens and reads the bytecode of each of these 400 modules, and makes all constants of each anew. One
file of all code objects, in which each constant is stored once, takes a third of that time. It is as trustworthy as the
bytecode beside it: the same users may write both. Like bytecode, it stores the time and the size of each source: a
module that has changed is loaded from its own file, and the bundle is then written again. Modules of the folder that
`python -m` puts first are never in it: that is the folder in which the user is.

The bundle also holds the regular expressions that these modules compile, which takes a twelfth of a start: each with
the code that `re` made of it. `re` has no public way to store that code, and its engine trusts the code, hence the
checksum. Expressions that are compiled later may hold a secret, and are not stored.
"""

import marshal
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

try:
    import re._compiler as compiler  # type: ignore[import-not-found]
except ImportError:
    # It is private: another Python may have it elsewhere.
    compiler = None

Entry = tuple[str, str, tuple[int, int] | None, bool, CodeType]
"""Of a module: source, bytecode, time and size of the source, True if it is a package, and code."""

Place = tuple[str, str, str, bool]
"""The name, the source and the bytecode of a module, and True if it is a package."""

Pattern = tuple[bool, str | bytes, int]
"""True for text (`python -bb` refuses to compare it with bytes), a regular expression, and its flags."""


class Loader(SourceFileLoader):
    """Runs the code of a module that was read from the bundle."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code: CodeType | None = code

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code from the bundle once, then that of the file: the module need not keep it in memory."""
        code, self._code = self._code, None
        return code or super().get_code(fullname)


class Bundle:
    """Finds modules in the bundle, from `begin` to `end`. `file` is its path."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._before = frozenset(sys.modules)
        self._found: dict[str, Entry] = {}
        self._patterns: dict[Pattern, tuple[Any, ...]] = {}
        self._asked: list[Pattern] = []
        """The regular expressions that modules have compiled since `begin`."""
        self._is_current = False

    def begin(self) -> None:
        """Look for modules in the bundle first, if it was written for this interpreter and these folders of modules."""
        # Imported here, because other commands import this module, too.
        import mmap
        from zlib import crc32

        with suppress(OSError, EOFError, ValueError, TypeError), open(self._file, "rb") as file:  # noqa: PTH123
            try:
                # Reading the file would take a tenth of this: it is a copy of many pages.
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except OSError:
                # Not every file system can map files.
                data = memoryview(file.read())
            header = _header()
            if data[: len(header)] == header:
                self._found, patterns, checksum = marshal.loads(data[len(header) :])  # noqa: S302  trusted as bytecode is
                if crc32(patterns) == checksum:
                    self._patterns = marshal.loads(patterns)  # noqa: S302  as it was written
                    self._is_current = True
        sys.meta_path.insert(0, self)
        if compiler is not None:
            compiler.compile = self._compile

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return how to load a module that is in the bundle; None if it is not, or if its source has changed."""
        if name not in self._found:
            return None
        source, bytecode, stamp, is_package, code = self._found.pop(name)
        if stamp != _stamp(source):
            self._is_current = False
            return None
        spec = ModuleSpec(name, Loader(name, source, code), origin=source, is_package=is_package)
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(source))  # noqa: PTH120
        spec.has_location, spec.cached = True, bytecode
        return spec

    def _compile(self, pattern: str | bytes, flags: int = 0) -> object:
        """Compile a regular expression for `re`: from the code in the bundle, if that is there."""
        is_kept = type(pattern) in (str, bytes) and _is_loading()
        asked = isinstance(pattern, str), pattern, int(flags)
        made_of = self._patterns.get(asked) if is_kept else None
        compiled = compiler._sre.compile(*made_of) if made_of else _compile(pattern, flags)  # noqa: SLF001
        # Not before: one that does not compile is not stored.
        if is_kept:
            self._asked.append(asked)
        return compiled

    def end(self) -> None:
        """Stop looking for modules in the bundle. If it was not current, have it written with what was loaded."""
        sys.meta_path.remove(self)
        if compiler is not None:
            compiler.compile = _compile
        self._found.clear()
        self._patterns.clear()
        if self._is_current or sys.dont_write_bytecode or sys.pycache_prefix:
            return
        # Where the user may not write, each start loads the modules one by one.
        if not os.access(os.path.dirname(self._file), os.W_OK):  # noqa: PTH120
            return
        loaded = [module for name, module in sys.modules.copy().items() if name not in self._before]
        places = [each for module in loaded if (each := _place(module))]
        request = marshal.dumps((self._file, _header(), places, self._asked))
        # Not imported above: so these are in the bundle too.
        import threading

        # The end of the dashboard does not wait for it: half a request is none, and the next start makes it again.
        threading.Thread(target=_have_written, args=(request,), name="crewboard-bundle", daemon=True).start()


_FORMAT = "modules and patterns"
"""The format of the bundle. Change it with `write`: another version of this module may find the same file."""

_compile = compiler and compiler.compile


def _is_loading() -> bool:
    """Return True while a module is being loaded: then no text of the user can be in a regular expression."""
    frame = sys._getframe()  # noqa: SLF001
    while (above := frame.f_back) is not None:
        frame = above
        if frame.f_code.co_name == "exec_module" and frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
    return False


def begin() -> None:
    """Load modules from the bundle of this installation from now on, until `end`."""
    if __spec__.cached is not None:
        Bundle(f"{__spec__.cached}.bundle").begin()


def end() -> None:
    """Stop loading modules from the bundle, if `begin` did begin."""
    for each in sys.meta_path.copy():
        if isinstance(each, Bundle):
            each.end()


def _folders() -> list[str]:
    """Return `sys.path`; without its first folder if that is the script's or, with `-m`, where the user is."""
    return sys.path if sys.flags.safe_path else sys.path[1:]


def _header() -> bytes:
    """Return the first line of a bundle: its format, the version of Python and the folders of modules."""
    return f"{_FORMAT} {sys.version!r} {_folders()}\n".encode(errors="surrogateescape")


def _stamp(source: str) -> tuple[int, int] | None:
    try:
        found = os.stat(source)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _place(module: ModuleType) -> Place | None:
    """Return where a module is, if it was loaded from source or bytecode below one of `_folders`; else None."""
    # Some entries of `sys.modules` are no modules.
    spec = getattr(module, "__spec__", None)
    if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin is None or spec.cached is None:
        return None
    is_package = spec.submodule_search_locations is not None
    depth = spec.name.count(".") + is_package
    folder = spec.origin.rsplit(os.sep, depth + 1)[0]
    return (spec.name, spec.origin, spec.cached, is_package) if folder in _folders() else None


def _have_written(request: bytes) -> None:
    """Have another process write the bundle: in this one, it would take 16 MiB that Python does not give back."""
    import subprocess

    # By its file: this module needs no other, and so neither the user's folders nor variables.
    command = [sys.executable, "-I", *["-O"] * sys.flags.optimize, __file__]
    with suppress(OSError):
        subprocess.run(
            command, input=request, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            check=False, env={},
        )  # fmt: skip


def write(request: bytes) -> None:
    """Write the bundle that `Bundle.end` asked for. As with bytecode, only its owner may change the file."""
    import tempfile
    from zlib import crc32

    file, header, places, asked = marshal.loads(request)  # noqa: S302  from the dashboard that started this process
    entries: dict[str, Entry] = {}
    for name, source, bytecode, is_package in places:
        # Before the code is read: if it changes meanwhile, the entry does not fit.
        stamp, code = _stamp(source), SourceFileLoader(name, source).get_code(name)
        if code is not None:
            entries[name] = source, bytecode, stamp, is_package, code
    handle, new = tempfile.mkstemp(prefix=f"{os.path.basename(file)}.", dir=os.path.dirname(file))  # noqa: PTH119, PTH120
    try:
        with open(handle, "wb") as made:  # noqa: PTH123
            patterns = marshal.dumps(_codes_of(asked) if asked else {})
            made.write(header + marshal.dumps((entries, patterns, crc32(patterns))))
        os.chmod(new, 0o644)  # noqa: PTH101
        os.replace(new, file)  # noqa: PTH105
    finally:
        with suppress(FileNotFoundError):
            os.unlink(new)  # noqa: PTH108


def _codes_of(asked: Sequence[Pattern]) -> dict[Pattern, tuple[Any, ...]]:
    """Return, for each regular expression, the arguments with which `re` calls its engine."""
    found: dict[Pattern, tuple[Any, ...]] = {}
    engine = compiler._sre  # noqa: SLF001

    def keep(pattern: str | bytes, flags: int, code: Sequence[int], *groups: object) -> None:
        # Some of these numbers are of a kind that has a name, too.
        found[asked_for] = (pattern, int(flags), [int(each) for each in code], *groups)

    compiler._sre = SimpleNamespace(**{**vars(engine), "compile": keep})  # noqa: SLF001
    for asked_for in asked:
        _compile(*asked_for[1:])
    compiler._sre = engine  # noqa: SLF001
    return found


if __name__ == "__main__":
    os.nice(10)
    # A source that is just edited may not compile: then nothing is written, and the next start asks again.
    write(sys.stdin.buffer.read())
