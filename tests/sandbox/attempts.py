"""The table of escape attempts: what a hostile command tries, for which agents it must fail, and where it cannot."""

from dataclasses import dataclass, field
from typing import Literal

Scope = Literal["readers", "everyone", "commands"]
"""Types that may not write, all types, or all that run commands."""


SCRIPT_IMPORT = "from crewboard import Team, choose_team, send"
"""The modules that a script of an agent would import."""


@dataclass(frozen=True)
class Attempt:
    """A command that prints ESCAPED if it thinks that it succeeded; the targets are checked in any case."""

    name: str
    text: str
    scope: Scope = "everyone"
    open_at: frozenset[tuple[str, str]] = field(default=frozenset())
    """Level and type where docs/reference/sandbox.md says that this is possible."""
    code: str = ""
    """The same as Python, for an attempt in Python."""


def _python(name: str, code: str, scope: Scope = "everyone", **more: frozenset[tuple[str, str]]) -> Attempt:
    body = f"import ctypes, errno, fcntl, mmap, os, resource, signal, socket, struct, sys\n{code}\nprint('ESCAPED')"
    return Attempt(name, f"{{python}} -I -S - <<'PYTHON'\n{body}\nPYTHON\n", scope, code=body, **more)


def _script(name: str, code: str) -> Attempt:
    body = f"from pathlib import Path\n{SCRIPT_IMPORT}\n{code}\nprint('ESCAPED')"
    return Attempt(name, f"{{python}} -I - <<'PYTHON'\n{body}\nPYTHON", code=body)


_WRITES = [
    Attempt("redirect", "echo x > file && echo ESCAPED"),
    Attempt("append", "echo x >> file && echo ESCAPED"),
    Attempt("new file", "echo x > new && echo ESCAPED"),
    Attempt("new file below", "echo x > src/new && echo ESCAPED"),
    Attempt("rename", "mv file renamed && echo ESCAPED"),
    Attempt("remove", "rm -f file && echo ESCAPED"),
    Attempt("new folder", "mkdir folder && echo ESCAPED"),
    Attempt("remove a folder", "rm -rf src; test -d src || echo ESCAPED"),
    Attempt("hard link", "ln file linked && echo ESCAPED"),
    Attempt("symbolic link", "ln -s file linked && echo ESCAPED"),
    Attempt("truncate", "truncate -s 0 file && echo ESCAPED"),
    Attempt("tee", "echo x | tee file >/dev/null && echo ESCAPED"),
    Attempt("copy over", "cp /etc/hostname file && echo ESCAPED"),
    Attempt("edit in place", "sed -i s/one/two/ file && echo ESCAPED"),
    Attempt("dd without truncating", "echo x | dd of=file conv=notrunc status=none && echo ESCAPED"),
    Attempt("fallocate", "fallocate -l 4096 file && echo ESCAPED"),
    Attempt("named pipe", "mkfifo pipe && echo ESCAPED"),
    Attempt("change the mode", "chmod 777 file; [ $(stat -c %a file) != 777 ] || echo ESCAPED"),
    Attempt("change the times", "touch -d 2001-01-01 file; [ $(stat -c %Y file) -gt 1000000000 ] || echo ESCAPED"),
    Attempt("touch", "touch file"),
    Attempt("through /proc/self/cwd", "echo x > /proc/self/cwd/file && echo ESCAPED"),
    Attempt("through /proc/self/root", "echo x > /proc/self/root{root}/file && echo ESCAPED"),
    Attempt("through a link in the scratch folder", "ln -sf {root}/file $TMPDIR/l; echo x > $TMPDIR/l && echo ESCAPED"),
    Attempt("through a hard link in the scratch folder", "ln -f file $TMPDIR/h && echo x > $TMPDIR/h"),
    Attempt("commit", "git -c user.name=x -c user.email=x commit -q --allow-empty -m x && echo ESCAPED"),
    _python("open for update", "open('file', 'r+').write('x')"),
    _python("through a reopened descriptor", "fd = os.open('file', 0); os.open(f'/proc/self/fd/{{fd}}', os.O_RDWR)"),
    _python("mapped memory", "mmap.mmap(os.open('file', os.O_RDWR), 4)[0:1] = b'x'"),
    _python("replace", "os.replace('file', 'src/file')"),
    _python("truncate by path", "os.truncate('file', 1)"),
    _python(
        "an extended attribute", "os.setxattr('file', 'user.x', b'x'); assert os.getxattr('file', 'user.x') == b'x'"
    ),
    _python(
        "an immutable flag",
        "fd = os.open('file', 0); fcntl.ioctl(fd, 0x40086602, struct.pack('l', 0x80))",
    ),
    _python("change the owner", "os.chown('file', 1, 1); assert os.stat('file').st_uid == 1"),
    Attempt("remount", "mount -o remount,rw,bind {root} && echo ESCAPED"),
    Attempt("unmount", "umount -l {root} && echo ESCAPED"),
    Attempt("mount over", "mount -t tmpfs none {root} && echo ESCAPED"),
    Attempt("a user namespace and a bind mount", "unshare -rm mount --bind $TMPDIR {root} && echo ESCAPED"),
]

_AT_LANDLOCK = frozenset({("landlock", kind) for kind in ("explore", "test", "code")})
_METADATA_OPEN = frozenset({("landlock", "code")})
_PIPES_OPEN = frozenset({("bubblewrap", kind) for kind in ("explore", "test", "code")})

_OUTSIDE = [
    Attempt("write outside", "echo x > {outside}/file && grep -qx x {outside}/file && echo ESCAPED"),
    Attempt("new file outside", "echo x > {outside}/new"),
    Attempt("write by a relative path", "echo x > ../outside/file"),
    Attempt("remove outside", "rm -f {outside}/file"),
    Attempt("change a mode outside", "chmod 777 {outside}/file", open_at=_METADATA_OPEN),
    Attempt("change times outside", "touch {outside}/file", open_at=_METADATA_OPEN),
    Attempt("hard link from outside", "ln {outside}/file $TMPDIR/o && echo x > $TMPDIR/o", "commands"),
    Attempt("link to outside", "ln -sf {outside}/file $TMPDIR/s && echo x > $TMPDIR/s", "commands"),
    Attempt("a pipe of the host", "echo x > {home}/pipe"),
    Attempt("a pipe of the host where all may look", "echo x > {outside}/pipe", open_at=_PIPES_OPEN),
    Attempt("write a setting of the kernel", "f=/proc/sys/kernel/hostname; cat $f > $f && echo ESCAPED"),
    Attempt("write a setting of the machine", "f=/sys/kernel/mm/ksm/run; v=$(cat $f); echo $v > $f && echo ESCAPED"),
    Attempt("the request to restart", "true >> /proc/sysrq-trigger && [ ! -c /proc/sysrq-trigger ] && echo ESCAPED"),
    Attempt("the memory of the machine", "head -c 1 /proc/kcore | grep -q . && echo ESCAPED"),
    Attempt("a device", "mknod ${{TMPDIR:-/tmp}}/d b 1 0 && echo ESCAPED"),
    Attempt("a disk", 'd=$(find /dev -type b | head -1); [ -n "$d" ] && head -c 1 $d && echo ESCAPED'),
    Attempt("a host's /dev/shm", "cat /dev/shm/{shm} && echo ESCAPED"),
]

_MODE = """
p = os.environ['TMPDIR'] + '/s'
os.umask(0)
if os.path.exists(p): os.remove(p)
{}
assert os.stat(p).st_mode & 0o6000
"""


def _setuid(how: str, code: str) -> Attempt:
    return _python(f"a setuid file by {how}", _MODE.format(code), "commands")


_MODES = [
    Attempt("a setuid file", "cd $TMPDIR; cp /bin/true s; chmod u+s s; [ -u s ] && echo ESCAPED", "commands"),
    Attempt("a setgid file", "cd $TMPDIR; cp /bin/true g; chmod g+s g; [ -g g ] && echo ESCAPED", "commands"),
    _setuid("open", "os.open(p, os.O_CREAT | os.O_WRONLY, 0o4755)"),
    _setuid("fchmod", "os.fchmod(os.open(p, os.O_CREAT | os.O_WRONLY, 0o755), 0o4755)"),
    _setuid("a name", "open(p, 'w'); os.chmod('s', 0o4755, dir_fd=os.open(os.environ['TMPDIR'], 0))"),
    _setuid("mknod", "os.mknod(p, 0o104755)"),
    _setuid("openat2", "h = struct.pack('QQQ', os.O_CREAT | os.O_WRONLY, 0o4755, 0)\n"
            "ctypes.CDLL(None).syscall(437, -100, p.encode(), h, len(h))"),
    _setuid("fchmodat2", "open(p, 'w'); ctypes.CDLL(None).syscall(452, -100, p.encode(), 0o4755, 0)"),
    _python("a device without a number", "os.mknod(os.environ['TMPDIR'] + '/d', 0o020600, 0)", "commands"),
]  # fmt: skip

_SECRETS = [
    Attempt("a key in the home", "cat {home}/.ssh/id_rsa && echo ESCAPED"),
    Attempt("a key in the home by a link", "ln -s {home}/.ssh $TMPDIR/k; cat $TMPDIR/k/* && echo ESCAPED", "commands"),
    Attempt("a key in the home by /proc", "cat /proc/self/root{home}/.ssh/id_rsa && echo ESCAPED"),
    Attempt("passwords of the machine", "cat /etc/shadow | grep -q . && echo ESCAPED"),
    Attempt("the environment", "env | grep -q sk-ant && echo ESCAPED"),
    Attempt("environments of processes", "cat /proc/[0-9]*/environ | grep -qa sk-ant && echo ESCAPED"),
    Attempt("the environment of the first process", "cat /proc/1/environ | grep -qa sk-ant && echo ESCAPED"),
    Attempt("the environment of a process outside", "cat /proc/{victim}/environ && echo ESCAPED"),
    Attempt("a folder of a process outside", "ls /proc/{victim}/cwd/ && echo ESCAPED"),
]

_TEAM = [
    Attempt("read the team's roster", "cat {team}/config.json && echo ESCAPED"),
    Attempt("read a mailbox", "cat .crewboard/default/inbox/scout.jsonl && echo ESCAPED"),
    Attempt("read results", "cat .crewboard/default/results/* && echo ESCAPED", "commands"),
    Attempt("write mail", "echo '{{}}' >> {team}/inbox/scout.jsonl"),
    Attempt("answer a request", "echo '{{}}' > {team}/requests/r.json"),
    Attempt("change a result", "echo x > {team}/results/scout-1-1.md"),
    Attempt("move the team away", "mv .crewboard elsewhere && cat elsewhere/default/config.json && echo ESCAPED"),
    Attempt("the team by a link", "ln -sf {team} $TMPDIR/t && cat $TMPDIR/t/config.json && echo ESCAPED", "commands"),
    Attempt("the team by /proc", "cat /proc/self/cwd/.crewboard/default/config.json && echo ESCAPED"),
    Attempt("the team under a mount", "umount .crewboard; cat {team}/config.json && echo ESCAPED"),
    Attempt("a link to a team's file", "ln {team}/config.json src/c && cat src/c && echo ESCAPED"),
    Attempt("a team in a folder below", "cat pkg/.crewboard/default/config.json && echo ESCAPED"),
    Attempt("mail of a team below", "echo x >> pkg/.crewboard/default/inbox/scout.jsonl && echo ESCAPED"),
    Attempt("a team below, moved away", "mv pkg old; cat old/.crewboard/default/config.json && echo ESCAPED"),
    # A script is refused twice: it sees no files of the team, nor the secret without which each team is foreign to it.
    _script(
        "mail in another's name by a script",
        "send(Team(choose_team(Path('{root}'), None), by='lead'), 'operator', 'x')",
    ),
    _script(
        "mail to a team below by a script",
        "send(Team(choose_team(Path('{root}/pkg'), None)), 'operator', 'x')",
    ),
]

_GIT = [
    Attempt("a hook", "echo x > .git/hooks/pre-commit && echo ESCAPED"),
    Attempt("a hook by another folder", "mv .git/hooks .git/old && mkdir .git/hooks && echo ESCAPED"),
    Attempt("a setting of git", "git config core.fsmonitor x && echo ESCAPED"),
    Attempt("git diverted", "echo .. > .git/commondir"),
    Attempt("another repository in its place", "mv .git .git-old && echo ESCAPED; mv .git-old .git"),
]

_CONNECT = "s = socket.socket(socket.AF_{family}, socket.SOCK_{kind}{protocol}); s.settimeout(1); s.{action}"


def _connect(name: str, family: str, kind: str, action: str, protocol: str = "") -> Attempt:
    return _python(name, _CONNECT.format(family=family, kind=kind, protocol=protocol, action=action))


_NETWORK = [
    _connect("TCP", "INET", "STREAM", "connect(('127.0.0.1', {tcp}))"),
    _connect("MPTCP", "INET", "STREAM", "connect(('127.0.0.1', {tcp}))", ", 262"),
    _connect("UDP", "INET", "DGRAM", "sendto(b'x', ('127.0.0.1', {udp})); sys.exit()"),
    _connect("TCP by mapped IPv6", "INET6", "STREAM", "connect(('::ffff:127.0.0.1', {tcp}))"),
    _connect("raw packets", "INET", "RAW", "sendto(bytes(8), ('127.0.0.1', 0))", ", 1"),
    _connect("frames", "PACKET", "RAW", "bind(('lo', 0))"),
    _connect("a virtual machine's host", "VSOCK", "STREAM", "close()"),
    _connect("the kernel's ciphers", "ALG", "SEQPACKET", "close()"),
    _connect("a socket outside", "UNIX", "STREAM", "connect('{outside}/socket')"),
    _connect("a socket of the host in the workspace", "UNIX", "STREAM", "connect('{root}/socket')"),
    _connect("a datagram socket outside", "UNIX", "DGRAM", "sendto(b'x', '{outside}/dgram')"),
    _connect("an abstract socket", "UNIX", "STREAM", "connect('\\0{abstract}')"),
    _python(
        "a connection of a pair whose other end is closed",
        "a, b = socket.socketpair(); b.close(); a.connect('{outside}/socket')",
    ),
    _python(
        "a socket by the calls of x32",
        "assert os.uname().machine == 'x86_64'\nassert ctypes.CDLL(None).syscall(0x40000000 | 41, 1, 1, 0) >= 0",
    ),
    _python(
        "a socket by the calls of 32 bits",
        "assert os.uname().machine == 'x86_64'\n"
        # push rbx; eax = 359 (socket); ebx = 1; ecx = 1; edx = 0; int 0x80; pop rbx; ret
        "code = bytes.fromhex('53b867010000bb01000000b90100000031d2cd805bc3')\n"
        "page = mmap.mmap(-1, 4096, prot=7); page.write(code)\n"
        "call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))\n"
        "assert call() >= 0",
    ),
    _python("a datagram of a pair", "socket.socketpair(1, 2)[0].sendto(b'x', '{outside}/dgram')"),
]

_CALL = "libc = ctypes.CDLL(None, use_errno=True)\nassert libc.syscall({numbers}[os.uname().machine], {arguments}) >= 0"


def _call(name: str, x86_64: int, aarch64: int, arguments: str) -> Attempt:
    numbers = f"dict(x86_64={x86_64}, aarch64={aarch64})"
    return _python(name, _CALL.format(numbers=numbers, arguments=arguments))


_PROCESSES = [
    Attempt("the arguments of a process outside", "grep -qa sleep /proc/{victim}/cmdline && echo ESCAPED",
            open_at=_AT_LANDLOCK),
    Attempt("see a process outside", "kill -0 {victim} && echo ESCAPED"),
    Attempt("a signal to a process outside", "kill -TERM {victim} && echo ESCAPED"),
    _python("a signal by pidfd", "signal.pidfd_send_signal(os.pidfd_open({victim}), signal.SIGTERM)"),
    _python("an owner of signals", "r, w = os.pipe(); fcntl.fcntl(r, fcntl.F_SETOWN, {victim})\nfcntl.fcntl(r, 10, 15)"
            "; fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC); os.write(w, b'x'); sys.exit()"),
    _python("limits of a process outside", "resource.prlimit({victim}, resource.RLIMIT_NOFILE)"),
    _python("priority of a process outside", "os.setpriority(os.PRIO_PROCESS, {victim}, 5)"),
    _python("processors of a process outside", "os.sched_setaffinity({victim}, os.sched_getaffinity(0))"),
    _call("trace a process outside", 101, 117, "0x4206, {victim}, 0, 0"),
    _call("read the memory of a process outside", 438, 438, "os.pidfd_open({victim}), 0, 0"),
    _call("a user namespace", 272, 97, "0x10000000"),
    _call("a user namespace by clone", 56, 220, "0x10000000 | 17, 0, 0, 0, 0"),
    _call("another namespace", 308, 268, "os.open('/proc/self/ns/net', 0), 0"),
    _call("a mount of the new kind", 430, 430, "b'tmpfs', 0"),
    _call("calls through a ring", 425, 425, "1, ctypes.create_string_buffer(256)"),
    _call("keys of the kernel", 250, 219, "0, -3, 1"),
    _call("programs in the kernel", 321, 280, "0, ctypes.create_string_buffer(256), 72"),
    _call("shared memory of the host", 29, 194, "{shm_key}, 0, 0"),
    Attempt("the host's user namespace", "[ $(readlink /proc/self/ns/user) = '{user_namespace}' ] && echo ESCAPED",
            open_at=_AT_LANDLOCK),
    _python("the session of the worker", "assert os.getsid(0) == 0"),
    Attempt("capabilities", "grep -q 'CapEff:.*[1-9a-f]' /proc/self/status && echo ESCAPED"),
    Attempt("rights by exec", "grep -q 'NoNewPrivs:.*0' /proc/self/status && echo ESCAPED"),
]  # fmt: skip

ATTEMPTS = [
    *(Attempt(each.name, each.text, "readers", each.open_at) for each in _WRITES),
    *_OUTSIDE, *_MODES, *_SECRETS, *_TEAM, *_GIT, *_NETWORK, *_PROCESSES,
]  # fmt: skip
