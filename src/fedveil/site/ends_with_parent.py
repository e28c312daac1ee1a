"""Makes a child process end when the process that started it dies."""

from __future__ import annotations

import os
import sys

#: Asks the kernel for a SIGKILL when the parent dies, then runs the command in its arguments. The
#: request stays valid after the exec. Only Linux supports it.
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
    """Return a command that runs `words` and is killed when the thread that started it ends."""
    return [sys.executable, "-I", "-S", "-c", _CODE, str(os.getpid()), *words]
