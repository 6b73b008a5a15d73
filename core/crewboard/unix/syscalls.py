"""Landlock, seccomp, capabilities and prctl: system calls that Python does not offer, through ctypes.

Why ctypes: it needs no compiler and no wheel for each platform, and the calls are a dozen with stable numbers. The
bindings on the package index cover a part of Landlock, or need libseccomp installed.

Each restriction holds for ever, for the thread that asks for it and for everything that this thread starts.
"""

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls landlock_*(2), the same on every architecture."""

_VERSION = 1
_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
"""Rights that a rule of Landlock can give, from linux/landlock.h."""

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = (
    WRITE_FILE | TRUNCATE | REFER | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_SYM
)
_FOR_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_TCP = 0b11
_ABSTRACT_SOCKETS, _SIGNALS = 0b01, 0b10

SCOPES_SIGNALS = 6
"""The first ABI version that can forbid signals and abstract sockets to processes outside; 4 has TCP, 5 ioctl."""

_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def prctl(option: int, *values: int | bytes) -> None:
    """Change a setting of this process or thread.

    Raises:
        OSError: The kernel refused.
    """
    given = (*values, 0, 0, 0, 0)[:4]
    passed = [ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value) for value in given]
    _checked(_libc.prctl(option, *passed), f"prctl {option}")


def landlock_abi() -> int:
    """Return the version of the kernel's Landlock ABI; 0 if it has none or it is switched off."""
    if sys.platform != "linux":
        return 0
    with suppress(OSError):
        return _checked(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION), "landlock")
    return 0


def restrict_files(grants: Iterable[tuple[Path, int]], abi: int, *, network: bool) -> None:
    """Restrict this thread and its children to `grants`: files and folders, with all below, and the rights to each.

    `abi` is the version from `landlock_abi`. Without `network`, TCP is forbidden as well, if that version can do it. A
    path that is a link or does not exist gives no rights.

    Raises:
        OSError: The kernel refused; nothing is restricted.
    """
    handled = (1 << (13 + (abi >= 2) + (abi >= 3) + (abi >= 5))) - 1  # noqa: PLR2004  each ABI added one right
    # `struct landlock_ruleset_attr` in the size of the ABI: what it handles is refused unless granted.
    attributes = struct.pack("=Q", handled)
    attributes += struct.pack("=Q", 0 if network else _TCP) if abi >= 4 else b""  # noqa: PLR2004
    attributes += struct.pack("=Q", _ABSTRACT_SOCKETS | _SIGNALS) if abi >= SCOPES_SIGNALS else b""
    size = ctypes.c_size_t(len(attributes))
    ruleset = _checked(_libc.syscall(_CREATE_RULESET, ctypes.c_char_p(attributes), size, 0), "landlock")
    try:
        for path, rights in grants:
            with suppress(FileNotFoundError, PermissionError, NotADirectoryError):
                fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    mode = os.fstat(fd).st_mode
                    if not stat.S_ISLNK(mode):
                        allowed = rights & handled if stat.S_ISDIR(mode) else rights & handled & _FOR_FILES
                        rule = ctypes.c_char_p(struct.pack("=Qi", allowed, fd))
                        _checked(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0), f"landlock {path}")
                finally:
                    os.close(fd)
        _checked(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "landlock")
    finally:
        os.close(ruleset)


def no_new_privileges() -> None:
    """Keep this thread, and all that it starts, from gaining rights by running a program, such as a setuid one.

    Raises:
        OSError: The kernel refused.
    """
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter (`seccomp.program`) for this thread and its children.

    Raises:
        OSError: The kernel refused.
    """
    steps = ctypes.create_string_buffer(program)
    described = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(steps)))
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(described))


def drop_capabilities() -> None:
    """Give up all capabilities of this thread, by which root has more rights than an ordinary user.

    Raises:
        OSError: The kernel refused.
    """
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = ctypes.c_char_p(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    _checked(_libc.capset(header, ctypes.c_char_p(bytes(24))), "capset")
