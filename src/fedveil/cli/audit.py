"""`fedveil audit`: tests the claims of all protections, or shows the findings of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedveil.base.plain_text import say
from fedveil.cli.json_answer import AsJson, answer, only_json
from fedveil.cli.path_argument import path_argument
from fedveil.errors import ClaimRefuted, JobError, RunFolderError

_TRIALS = 20_000


def audit(
    run: Annotated[
        Path | None,
        path_argument(
            metavar="RUN",
            help="The folder of a run that was audited (its job sets `audit.canaries`) or "
            "attacked. Default: test all protections now.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1000,
            help="Without RUN: number of times to run each protection on each of two inputs. More "
            f"trials detect smaller violations. Default: {_TRIALS}.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Test the privacy claims of all protections, or show a RUN's audit and attack results.

    Without RUN: run each protection many times on two inputs. The outputs must be no easier to tell
    apart than the protection's epsilon (privacy cost) allows. With RUN: show the results that are
    saved in the run folder. An audited run had artificial clients (canaries), which fedveil tried
    to detect. Exits with code 1 if a claim is refuted.
    """
    if run is not None:
        if trials is not None:
            raise JobError(["--trials cannot be used with RUN, whose results are only shown"])
        with only_json(json):
            _print_findings(run, json=json)
        return
    from fedveil.cli.audit_cases import cases

    found = []
    with only_json(json):
        for case in cases():
            result = case.audit(trials or _TRIALS)
            found.append({"mechanism": case.name, "refuted": result.refuted, "said": str(result)})
            say(f"{case.name}: {result}")
    if json:
        answer(found)
    names = [str(of["mechanism"]) for of in found if of["refuted"]]
    if names:
        raise ClaimRefuted(f"refuted: {', '.join(names)}")


def _print_findings(folder: Path, *, json: bool) -> None:
    from fedveil.privacy.guarantee_strength import Figure
    from fedveil.record.finding_lines import as_data, raise_if_refuted, read_findings
    from fedveil.record.run_folder import job_of

    findings = read_findings(folder)
    if not findings:
        job_of(folder)  # raises an error if `folder` is not a run folder
        raise RunFolderError(
            f"{folder} holds no findings: run with audit.canaries, or run `fedveil attack`"
        )
    for finding in findings:
        promised = Figure(finding.epsilon, finding.delta)
        verdict = "refuted" if finding.refutes else finding.verdict
        say(f"{finding}; saw {finding.saw}; promised: {promised}{finding.distance}: {verdict}")
        for missed in finding.unseen:
            say(f"  {missed}")
    if json:
        answer([as_data(finding) for finding in findings])
    raise_if_refuted(findings)
