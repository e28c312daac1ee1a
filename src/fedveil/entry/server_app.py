"""The ServerApp of a deployed job. It shows the run in the server's terminal and on a page."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedveil.base.plain_text import console
from fedveil.engine.finished_run import Run
from fedveil.engine.start import start
from fedveil.entry.presentation import PRESENTATION
from fedveil.errors import FedveilError, with_notes
from fedveil.flower.job.app_folder import read_job
from fedveil.flower.job.flower_engine import FOLDER, FlowerEngine, open_folder, run_path
from fedveil.pages.read_run import read_run
from fedveil.run_display import RunDisplay

_LINE_WIDTH = 200


def make_app(folder: Path) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            serve(folder, grid, context)
        except FedveilError as error:
            # Flower logs an error with its traceback, in which the sentence would be hard to find.
            raise error.with_traceback(None) from None

    return app


def serve(folder: Path, grid: Grid, context: Context) -> Run:
    """Run the app's job, or resume it from its last complete round."""
    display_on = console(file=sys.stdout, force_terminal=False, width=_LINE_WIDTH)
    try:
        job = read_job(folder)
        display = RunDisplay(display_on, job.rounds)
        path = run_path(job, context.run_config.get(FOLDER))
        with ExitStack() as stack:
            display.starting(f"waiting for clients and reports of round 1/{job.rounds}")
            stack.enter_context(display)
            begun = start(
                job,
                FlowerEngine(grid, folder),
                partial(open_folder, path, job),
                stack,
                warn=display.warn,
                presentation=PRESENTATION,
            )
            run = begun.run(display.show)
    except FedveilError as error:
        sentence = f"error: {with_notes(str(error), error)}"
        display_on.print(sentence, markup=False, highlight=False, soft_wrap=True)
        raise
    display.summary(read_run(run.folder))
    return run
