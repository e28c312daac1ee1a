"""Lets the operating system end a child process when the process that started it dies."""

from __future__ import annotations

import os
import sys

#: Becomes the command in its arguments, after it has asked the kernel for a SIGKILL at its parent's
#: death. The request survives the exec. Systems other than Linux have no such request.
_CODE = """\
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, 9)
except AttributeError:
    pass
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def command(words: list[str]) -> list[str]:
    """Return a command for this process's child. It is killed when the calling thread ends."""
    return [sys.executable, "-I", "-S", "-c", _CODE, str(os.getpid()), *words]
