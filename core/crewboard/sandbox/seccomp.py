"""Filters of system calls for commands, as programs for the kernel (BPF).

Why not libseccomp: its Python binding is not on the package index and needs a system package, while these filters are
flat lists of refused calls whose numbers never change. The tests run each rule against the kernel.

With bubblewrap, whose namespaces hide most of the machine already, the filter refuses new namespaces, rarely used parts
of the kernel, and unix sockets. With Landlock it must refuse more: other processes, shared memory, metadata of files.
"""

import errno
import os
import socket
import struct
from dataclasses import dataclass
from functools import cache, lru_cache

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
"""Instructions of linux/bpf_common.h: load a word, AND it with a value, jump if equal, jump if not less, return."""

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
"""Offsets in struct seccomp_data of linux/seccomp.h."""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""For each machine, the index in the values of `_NUMBERS`, and the AUDIT_ARCH_* number of the kernel."""

ALLOW_ALL = struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW)
"""The program that allows every call."""

_X32 = 0x40000000
"""The lowest number of calls of the x32 ABI, a second set of numbers on x86_64."""

_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "unshare": (272, 97), "setns": (308, 268),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "clone": (56, 220), "clone3": (435, 435),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "acct": (163, 89), "swapon": (167, 224), "swapoff": (168, 225), "syslog": (103, 116), "quotactl": (179, 60),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "ioctl": (16, 29), "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "prlimit64": (302, 261), "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
    "open": (2, None), "creat": (85, None), "openat": (257, 56), "openat2": (437, 437), "mknod": (133, None),
    "mknodat": (259, 33),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "fcntl": (72, 25),
}  # fmt: skip
"""The numbers of each call on x86_64 and on aarch64; None if there is no such call."""

_NEW_NAMESPACES = 0x7E020000
"""The flags of clone for new namespaces: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""

_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902
_FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR = 0x40086602, 0x401C5820
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_SOCK_TYPE = 0xF
_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Rule:
    """A rule that refuses a system call: always, or if an argument has certain values.

    `argument` is its index. The call is refused if the argument's low 32 bits, AND `mask`, are in `values`, or with
    `unless`, if they are not. It then fails with `error`; if that is 0, it does nothing and reports success.
    """

    call: str
    error: int = errno.EPERM
    argument: int | None = None
    mask: int = _WORD
    values: tuple[int, ...] = ()
    unless: bool = False


def _all(*calls: str, error: int = errno.EPERM) -> list[Rule]:
    return [Rule(call, error) for call in calls]


def _others(argument: int, *calls: str) -> list[Rule]:
    """Return rules that allow calls only if the argument that names a process is 0, the caller itself."""
    return [Rule(call, argument=argument, values=(0,), unless=True) for call in calls]


_NAMESPACES = [
    *_all("mount", "umount2", "pivot_root", "unshare", "setns", "open_tree", "move_mount", "fsopen", "fsconfig"),
    *_all("fsmount", "fspick", "mount_setattr", "open_tree_attr"),
    Rule("clone", argument=0, mask=_NEW_NAMESPACES, values=(0,), unless=True),
    # Its flags are in memory, which a filter cannot read. libc then uses clone.
    Rule("clone3", errno.ENOSYS),
]
_KERNEL = _all(
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "open_by_handle_at", "kexec_load", "kexec_file_load",
    "init_module", "finit_module", "delete_module", "reboot", "acct", "swapon", "swapoff", "syslog", "quotactl",
    "keyctl", "add_key", "request_key",
)  # fmt: skip
_PROCESSES = [
    *_all("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise"),
    *_all("process_mrelease", "migrate_pages", "move_pages"),
    *_others(0, "prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
    *_others(1, "setpriority", "ioprio_set"),
]
_SHARED_MEMORY = _all(
    "shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv", "msgctl",
    "mq_open", "mq_unlink",
)  # fmt: skip
_METADATA = _all(
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat", "utime", "utimes",
    "futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr",
    "setxattrat", "removexattrat", "file_setattr",
    error=0,
)  # fmt: skip
"""Calls that do nothing and report success, because copying a file, which sets its mode, must not fail."""

_MODES_AT = {
    "open": 2, "creat": 1, "openat": 3, "mknod": 1, "mknodat": 2, "chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2
}  # fmt: skip
"""Calls that give a file a mode, and the index of the argument with the mode."""

_RUNS_AS_OWNER = 0o6000
"""S_ISUID and S_ISGID: other users could run such a file with the rights of its owner."""

_TYPE = 0o170000
_HARMLESS_TYPES = (0, 0o010000, 0o100000, 0o140000)
"""S_IFMT, the mask of a file's type, and the allowed types: none, S_IFIFO, S_IFREG, S_IFSOCK. Others are devices."""


def _modes() -> list[Rule]:
    """Return rules against making files that run with the rights of their owner, and devices."""
    rules = [
        Rule(call, argument=at, mask=_RUNS_AS_OWNER | (_TYPE if call.startswith("mknod") else 0),
             values=_HARMLESS_TYPES if call.startswith("mknod") else (0,), unless=True)
        for call, at in _MODES_AT.items()
    ]  # fmt: skip
    # Its mode is in memory, which a filter cannot read. Programs then use openat.
    return [*rules, Rule("openat2", errno.ENOSYS)]


_SIGNALS = [
    *_all("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"),
    Rule("fcntl", argument=1, values=(_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)),
]


def _terminals(*more: int) -> list[Rule]:
    return [Rule("ioctl", argument=1, values=(_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP, *more))]


def _sockets(families: tuple[int, ...]) -> list[Rule]:
    """Return rules that allow only sockets of `families`.

    If unix sockets are not among them, socket pairs are allowed only of kinds that stay connected to each other.
    """
    rules = [Rule("socket", errno.EACCES, argument=0, values=families, unless=True)]
    if socket.AF_UNIX not in families:
        kinds = (int(socket.SOCK_STREAM), int(socket.SOCK_SEQPACKET))
        rules.append(Rule("socketpair", errno.EACCES, argument=1, mask=_SOCK_TYPE, values=kinds, unless=True))
    return rules if families else [*rules, Rule("connect", errno.EACCES)]


_INTERNET = (int(socket.AF_INET), int(socket.AF_INET6), int(getattr(socket, "AF_NETLINK", 16)))


def in_bubblewrap() -> dict[str, list[Rule]]:
    """Return the rules, by name, for a command in bubblewrap.

    They allow no unix sockets, because a process outside can open one anywhere and at any time, and a mount to hide it
    would come too late.
    """
    return {
        "namespaces": _NAMESPACES,
        "kernel": _KERNEL,
        "terminals": _terminals(),
        "sockets": _sockets(_INTERNET),
        "modes": _modes(),
    }


def with_landlock(*, network: bool, writes: bool, scoped: bool) -> dict[str, list[Rule]]:
    """Return the rules, by name, for a command under Landlock.

    `network` and `writes` say what it may do; `scoped` is True if Landlock itself limits signals.
    """
    flags = () if writes else (_FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR)
    return {
        "namespaces": _NAMESPACES,
        "kernel": _KERNEL,
        "terminals": _terminals(*flags),
        "sockets": _sockets(_INTERNET if network else ()),
        "processes": _PROCESSES,
        "shared memory": _SHARED_MEMORY,
        # The first rule of a call decides, so what has no effect is not refused.
        "metadata": [] if writes else _METADATA,
        "modes": _modes(),
        "signals": [] if scoped else _SIGNALS,
    }


@cache
def architecture() -> tuple[int, int] | None:
    """Return which numbers of system calls this machine has, as an index, and its number for the kernel.

    Both are values of `_ARCHITECTURES`. Return None if no filter can be built for this machine.
    """
    return _ARCHITECTURES.get(os.uname().machine)


@lru_cache(maxsize=8)
def program(rules: tuple[Rule, ...]) -> bytes:
    """Return the rules as a program for seccomp. It allows calls that no rule is about.

    Calls of another architecture fail. Of several rules about a call, the first counts.

    Raises:
        OSError: The numbers for this machine are not known.
    """
    here = architecture()
    if here is None:
        raise OSError(errno.ENOSYS, f"no system call numbers for {os.uname().machine}")
    column, audit = here
    code = [(_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 1, 0, audit), _refuse(errno.ENOSYS), (_LOAD, 0, 0, _NUMBER_AT)]
    if column == 0:
        code += [(_AT_LEAST, 0, 1, _X32), _refuse(errno.ENOSYS)]
    for rule in rules:
        number = _NUMBERS[rule.call][column]
        if number is not None:
            if rule.argument is None:
                body = [_refuse(rule.error)]
            else:
                verdicts = [_refuse(rule.error), (_RETURN, 0, 0, _ALLOW)]
                otherwise, matched = verdicts if rule.unless else reversed(verdicts)
                tests = [(_EQUAL, len(rule.values) - index, 0, value) for index, value in enumerate(rule.values)]
                load = (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * rule.argument)
                body = [load, (_AND, 0, 0, rule.mask), *tests, otherwise, matched]
            code += [(_EQUAL, 0, len(body), number), *body]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in code)


def _refuse(error: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _REFUSE | error)
