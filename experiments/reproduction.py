"""Repeats a source's experiment in a folder, and writes its page."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote

from experiments import published_runs
from experiments.catalog import about, find
from experiments.experiment import NewPart, Outcome, Scale, Tell
from experiments.outcome_page import Repeated, long_tables, page
from experiments.statement_list import PAGES
from fedveil.base.untrusted import MALFORMED, MOST_KEY_BYTES, read_text
from fedveil.errors import InvalidValue, RunFolderError
from fedveil.pages.svg import svg
from fedveil.record.run_folder import RunFolder
from fedveil.studies.several_runs import resumed_by

#: File that marks an experiment's folder, with its duration so far.
BEGUN = "experiment.json"


def reproduce(
    name: str, scale: Scale, out: Path | None, tell: Tell, *, published: bool = False
) -> tuple[Path, Outcome]:
    """Repeat the experiment `name`. Returns the path of its page, and its outcome.

    If an earlier call with this folder was interrupted, its finished parts are read from there.
    With `published`, runs with published curves are not trained.
    """
    experiment = find(name)
    experiment.check(scale)
    if published and not experiment.saved_metrics:
        raise InvalidValue(f"{name} needs more of its runs than curves, so none are published")
    path = out or Path("runs", f"reproduce-{name}-{scale}")
    where = "" if out is None else f" --out {quote(str(out))}"
    how = f"fedveil reproduce {name} --scale {scale}{' --published' * published}{where}"
    with ExitStack() as stack:
        folder = RunFolder.of_many(path)
        stack.callback(folder.close)
        spent_s = _begun(folder, name, scale)
        _offer(folder, published_runs.together(PAGES) if published else b"")
        takes = f"{name} at scale {scale} takes about {about(experiment.estimate_s(scale))}"
        tell(f"{takes} on two cores; it is in {path}")
        stack.enter_context(resumed_by(how))
        clock = _Clock(spent_s, counts=not (path / f"{name}.md").exists())
        with _timed(folder, name, scale, clock):

            def tell_and_save(line: str) -> None:  # a killed run then loses only its own seconds
                clock.counts |= isinstance(line, NewPart)
                _write(folder, name, scale, clock.seconds)
                tell(line)

            outcome = experiment.run(path, scale, tell_and_save)
        figures = {plot.name: f"{name}-{plot.file}.svg" for plot in outcome.plots}
        for plot in outcome.plots:
            folder.write_atomically(figures[plot.name], svg(plot))
        for file, table in long_tables(name, outcome).items():
            folder.write_atomically(file, table.csv().encode())
        if outcome.curves:
            curves = published_runs.lines(outcome.curves, experiment.saved_metrics)
            folder.write_atomically(f"{name}{published_runs.SUFFIX}", curves)
        repeated = Repeated(experiment, scale, outcome, figures, clock.seconds, how, path)
        folder.write_atomically(f"{name}.md", page(repeated).encode())
    return path / f"{name}.md", outcome


def _begun(folder: RunFolder, name: str, scale: Scale) -> float:
    """Return the seconds already spent in this folder.

    Raises `RunFolderError` if the folder has other content than this experiment.
    """
    file = folder.path / BEGUN
    if not file.exists():
        if any(not entry.name.startswith(".") for entry in folder.path.iterdir()):
            raise RunFolderError(
                f"{folder.path} is not empty and holds no experiment: name another folder"
            )
        _write(folder, name, scale, 0.0)
        return 0.0
    try:
        begun = json.loads(read_text(file, MOST_KEY_BYTES))
        which, spent_s = (begun["name"], begun["scale"]), float(begun["seconds"])
    except (OSError, *MALFORMED) as error:
        raise RunFolderError(f"{file} cannot be read: {error!r}") from None
    if which != (name, scale):
        raise RunFolderError(
            f"{folder.path} holds {which[0]} at scale {which[1]}: name another folder for {name} "
            f"at scale {scale}"
        )
    return spent_s


def _offer(folder: RunFolder, curves: bytes) -> None:
    """Write the published `curves` to the folder. If `curves` is empty, delete any older file."""
    if curves:
        folder.write_atomically(published_runs.ALL, curves)
    else:
        (folder.path / published_runs.ALL).unlink(missing_ok=True)


class _Clock:
    """Adds up the seconds of an experiment over several calls.

    Reading a finished experiment does not count, but training one more run for it does.
    """

    def __init__(self, spent_s: float, *, counts: bool) -> None:
        self.counts = counts
        self._spent_s, self._began = spent_s, time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._spent_s + (time.perf_counter() - self._began if self.counts else 0.0)


@contextmanager
def _timed(folder: RunFolder, name: str, scale: Scale, clock: _Clock) -> Iterator[None]:
    """Save the total duration at the end of the block, even after an error."""
    try:
        yield
    finally:
        _write(folder, name, scale, clock.seconds)


def _write(folder: RunFolder, name: str, scale: Scale, seconds: float) -> None:
    begun = {"name": name, "scale": scale, "seconds": round(seconds, 1)}
    folder.write_atomically(BEGUN, json.dumps(begun).encode())
