"""Records each client's warnings, although Python has only one warning filter per process."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from fedveil.rounds.outcomes import Effort


class _CurrentEffort(threading.local):
    """Holds, for each thread, the `Effort` of the client that the thread trains now, or None.

    An `Effort` has the times and warnings of a client's answer. New warnings are added to its list
    `warnings`.
    """

    effort: Effort | None = None


_current = _CurrentEffort()
_lock = threading.Lock()
_listeners = 0
_filters = ExitStack()


class WarningsApart:
    """A context that makes each `WarningsNoted` inside it fast to enter.

    The outermost context, of either class, replaces Python's warning filters until it ends. This
    is slow, so enter this context once around many uses of `WarningsNoted`.
    """

    def __enter__(self) -> None:
        global _listeners
        with _lock:
            if not _listeners:
                _filters.enter_context(warnings.catch_warnings())
                warnings.simplefilter("always")
                warnings.showwarning = partial(_note, warnings.showwarning)
            _listeners += 1

    def __exit__(self, *raised: object) -> None:
        global _listeners
        with _lock:
            _listeners -= 1
            if not _listeners:
                _filters.close()


class WarningsNoted(WarningsApart):
    """A context that adds the warnings in its block, from this thread, to `effort.warnings`.

    `effort` is the `Effort` of the client that is trained in the block.
    """

    def __init__(self, effort: Effort) -> None:
        self._effort = effort

    def __enter__(self) -> None:
        super().__enter__()
        _current.effort = self._effort

    def __exit__(self, *raised: object) -> None:
        _current.effort = None
        super().__exit__(*raised)


def _note(
    elsewhere: Callable[..., None], what: Warning | str, kind: type[Warning], *where: Any
) -> None:
    if _current.effort is None:
        elsewhere(what, kind, *where)
    else:
        _current.effort.warnings.append(f"{kind.__name__}: {what}")
