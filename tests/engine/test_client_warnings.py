"""Warnings belong to the client whose training gave them, and to nobody after it."""

from __future__ import annotations

import threading
import warnings

from fedveil.engine.executors.client_warnings import WarningsApart, WarningsNoted
from fedveil.rounds.outcomes import Effort


def test_a_warning_is_noted_for_the_client_of_its_thread() -> None:
    one, other = Effort(), Effort()
    inside, warned = threading.Event(), threading.Event()

    def beside() -> None:
        with WarningsNoted(other):
            inside.set()
            warned.wait(10)
            warnings.warn("of the other", RuntimeWarning, stacklevel=1)

    before = warnings.showwarning
    with warnings.catch_warnings(record=True) as elsewhere:
        thread = threading.Thread(target=beside)
        with WarningsApart():
            with WarningsNoted(one):
                thread.start()
                inside.wait(10)
                for _ in range(2):  # one that repeats is noted again
                    warnings.warn("of the one", UserWarning, stacklevel=1)
                warned.set()
                thread.join()
            warnings.warn("of nobody", UserWarning, stacklevel=1)
    assert one.warnings == ["UserWarning: of the one"] * 2
    assert other.warnings == ["RuntimeWarning: of the other"]
    assert [str(warning.message) for warning in elsewhere] == ["of nobody"]
    assert warnings.showwarning is before


def test_a_warning_is_noted_in_every_block_of_one_context() -> None:
    efforts = [Effort(), Effort(), Effort()]
    before = warnings.showwarning
    with WarningsApart():
        for effort in efforts:
            with WarningsNoted(effort):
                warnings.warn("the same", UserWarning, stacklevel=1)
        assert warnings.showwarning is not before
    assert [effort.warnings for effort in efforts] == [["UserWarning: the same"]] * 3
    assert warnings.showwarning is before
