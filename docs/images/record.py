"""Make run.svg anew, from a real run of the default job: python docs/images/record.py"""

import re
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

import fedveil
from fedveil.federated.job import Job
from fedveil.pages.read_run import read_run
from fedveil.run_display import RunDisplay
from fedveil.starter import DEFAULT_JOB


def main() -> None:
    """Run, and write what the terminal showed."""
    console = Console(record=True, width=104)
    job = Job.load(DEFAULT_JOB)
    console.print("$ fedveil run")
    with TemporaryDirectory() as folder, chdir(folder):
        with RunDisplay(console, job.rounds) as display:
            run = fedveil.simulate(job, "runs/private-digits", progress=display.show)
        display.summary(read_run(run.folder))
    text = console.export_svg(title="fedveil", clear=True)
    # A picture loads nothing: the reader's own fixed-width font will do.
    text = re.sub(r"\n    @font-face \{.*?\n    \}(?=\n)", "", text, flags=re.DOTALL)
    Path(__file__).resolve().with_name("run.svg").write_text(text)


if __name__ == "__main__":
    main()
