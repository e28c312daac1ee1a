"""Forbids this process the system calls that training does not need, with seccomp on Linux.

Afterwards the process cannot open a socket, start or signal a process, run a program, trace, mount,
or allocate memory outside its limits. It may start threads. No process can undo this.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys

#: The code of each architecture in a filter, and its system call numbers, from the kernel's tables.
_MACHINES = {
    "x86_64": (0xC000003E, {
        "clone": 56,
        "socket": 41, "socketpair": 53, "fork": 57, "vfork": 58, "execve": 59, "execveat": 322,
        "kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "shmget": 29,
        "semget": 64, "msgget": 68, "mq_open": 240, "memfd_create": 319, "mount": 165,
        "umount2": 166, "pivot_root": 155, "unshare": 272, "setns": 308, "open_by_handle_at": 304,
        "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298,
        "userfaultfd": 323,
    }),
    "aarch64": (0xC00000B7, {
        "clone": 220,
        "socket": 198, "socketpair": 199, "execve": 221, "execveat": 281,
        "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240,
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "shmget": 194,
        "semget": 190, "msgget": 186, "mq_open": 180, "memfd_create": 279, "mount": 40,
        "umount2": 39, "pivot_root": 41, "unshare": 97, "setns": 268, "open_by_handle_at": 265,
        "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241,
        "userfaultfd": 282,
    }),
}  # fmt: skip
#: Calls with the same number on every architecture: pidfd_send_signal, io_uring_setup, open_tree,
#: move_mount, fsopen, fspick, pidfd_open, pidfd_getfd, mount_setattr, memfd_secret.
_NEWER = (424, 425, 428, 429, 430, 433, 434, 438, 442, 447)
_CLONE3, _CLONE_THREAD, _X32 = 435, 0x10000, 0x40000000
#: Operations of a filter: load a word, jump if equal, jump if not below, jump if a bit is set,
#: return. The input of a filter has the call's number at byte 0, the architecture at byte 4, and
#: the first argument at byte 16.
_LOAD, _EQUAL, _NOT_BELOW, _BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_PR_SET_NO_NEW_PRIVS, _SET_MODE_FILTER, _ALL_THREADS = 38, 1, 1
_SECCOMP = {"x86_64": 317, "aarch64": 277}


def can_forbid() -> bool:
    """Return True if a process can forbid itself system calls here, with `forbid`."""
    return sys.platform == "linux" and platform.machine() in _MACHINES


def forbid() -> None:
    """Forbid all threads the system calls that training does not need, or raise OSError."""
    steps = b"".join(struct.pack("<HBBI", *step) for step in _filter(platform.machine()))
    held = ctypes.create_string_buffer(steps, len(steps))
    program = struct.pack("@HP", len(steps) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_long(0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_long(1), none, none, none):
        raise OSError(ctypes.get_errno(), "prctl")
    number = ctypes.c_long(_SECCOMP[platform.machine()])
    if libc.syscall(number, _SET_MODE_FILTER, _ALL_THREADS, program):
        raise OSError(ctypes.get_errno(), "seccomp")


def _filter(machine: str) -> list[tuple[int, int, int, int]]:
    """Return the steps of a seccomp filter for a processor type, such as x86_64.

    A step is (operation, steps to skip if true, steps to skip if false, operand).
    """
    code, numbers = _MACHINES[machine]
    head = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, code), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    tail = [
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, 16),  # clone's flags
        (_BIT, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | _EPERM),
        (_RETURN, 0, 0, _ERROR | _ENOSYS),  # clone3: the C library then calls clone
    ]
    denied = [number for name, number in numbers.items() if name != "clone"]
    checks = [(_NOT_BELOW, _X32, 4), (_EQUAL, _CLONE3, 5), (_EQUAL, numbers["clone"], 1)]
    checks += [(_EQUAL, number, 4) for number in (*denied, *_NEWER)]
    left = range(len(checks) - 1, -1, -1)
    jumps = [(op, n + to, 0, what) for n, (op, what, to) in zip(left, checks, strict=True)]
    return [*head, *jumps, *tail]
