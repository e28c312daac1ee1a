"""`fedveil ask`: statistics of the clients' rows under a protection, and their privacy cost."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedveil.base.plain_text import console, document, say
from fedveil.cli.exits import missing_argument
from fedveil.cli.job_arguments import remarks, set_option
from fedveil.cli.json_answer import AsJson, answer, only_json
from fedveil.cli.path_argument import path_argument, path_option
from fedveil.errors import JobError

if TYPE_CHECKING:
    from fedveil.statistics.question import QuestionFile

#: The most rows of a table in a terminal.
_MOST_ROWS = 100


def _explain_keys(*, as_json: bool) -> None:
    from fedveil.settings.reference import key_rows, keys
    from fedveil.statistics.question_reference import reference

    if as_json:
        answer(key_rows(reference(), None))
    else:
        document(keys(reference(), None))


def _needed(context: typer.Context, question: Path | None) -> Path | None:
    if question is None and not context.params["keys"]:  # --keys is parsed first
        raise missing_argument("QUESTION", context)
    return question


def ask(
    question: Annotated[
        Path | None,
        path_argument(callback=_needed, help="A YAML file with questions. Not needed with --keys."),
    ] = None,
    overrides: Annotated[list[str] | None, set_option("the question file")] = None,
    out: Annotated[
        Path | None,
        path_option(
            help="The folder for the answers. Default: a new folder under runs/, or with --on the "
            "subfolder `answer` of the app's folder."
        ),
    ] = None,
    on: Annotated[
        Path | None,
        path_option(
            help="A folder for an app of the framework Flower, which asks clients on other "
            "machines. The command writes the app there and starts it with `flwr run` on the "
            "default SuperLink (Flower's server) in ~/.flwr/config.toml, or in "
            "$FLWR_HOME/config.toml if FLWR_HOME is set. Default: ask simulated clients."
        ),
    ] = None,
    json: AsJson = False,
    keys: Annotated[
        bool, typer.Option("--keys", is_eager=True, help="Explain every key of a question file.")
    ] = False,
) -> None:
    """Ask clients for statistics of their rows: counts, means, quantiles, frequent words."""
    from fedveil.record.run_folder import refuse_taken
    from fedveil.statistics.question import QuestionFile

    if keys:
        _explain_keys(as_json=json)
        return
    assert question is not None, "the callback has checked it"
    try:
        file = QuestionFile.load(question, overrides or [])
    except JobError:
        from fedveil.federated.job import Job
        from fedveil.settings.yaml_file import refuse_other_kind

        run = f"is a federated job. Run it with: fedveil run {shlex.quote(str(question))}"
        refuse_other_kind(question, QuestionFile, Job.model_fields, run)
        raise
    refuse_taken(out, None)
    with only_json(json):
        if file.protection.name == "not_encrypt":
            remarks("note", ["nothing is protected: the server sees every client's answer"])
        if on is not None:
            from fedveil.statistics.flower_app import run_app

            answers = run_app(file, on, out)
        else:
            answers = _simulated(file, out)
        _print(answers)
    if json:
        answer(answers)


def deploy(directory: Path, question: Path, overrides: list[str] | None) -> dict[str, Any]:
    """Write a Flower app to `directory`, which asks clients the questions in the file `question`.

    `overrides` replace keys of this file, as KEY=VALUE. Prints the app's files and the command that
    runs it, and returns them for `--json`.
    """
    from fedveil.statistics.flower_app import deployable, write_app
    from fedveil.statistics.question import QuestionFile

    file = deployable(QuestionFile.load(question, overrides or []))
    wrote = write_app(directory, file)
    for path in wrote:
        say(f"wrote {path}")
    following = f"flwr run {shlex.quote(str(directory))}"
    say(f"next: {following}; docs/statistics/flower.md")
    return {"wrote": wrote, "clients": file.clients, "next": following}


def _simulated(file: QuestionFile, out: Path | None) -> dict[str, Any]:
    from fedveil.statistics.answer_folder import PAGE, create, keep
    from fedveil.statistics.asking import Asking, Simulator
    from fedveil.statistics.clients import load

    clients = load(file)
    remarks("note", clients.table.said)
    asking = Asking(file, Simulator(file, clients))
    folder = create(out, file.name)
    try:
        answers = asking.run()
    except BaseException:
        folder.discard()
        raise
    try:
        missing = keep(answers, folder)
    finally:
        folder.close()
    page = str(folder.path / PAGE) if missing is None else f"none: {missing}"
    return {**answers.data(), "folder": str(folder.path), "page": page}


def _print(answers: Mapping[str, Any]) -> None:
    from fedveil.privacy.ledger import Line
    from fedveil.statistics.answer_page import table
    from fedveil.statistics.answers import answers_of

    for found in answers_of(answers):
        say(f"{found.name} ({found.ask})")
        shown = table(found, _MOST_ROWS)
        if shown.rows:
            console().print(shown)
        if shown.caption:
            say(f"  {shown.caption}")
        for note in found.notes:
            say(f"  {note}")
    for line in answers["privacy"]:
        say(f"privacy   {Line(**line)}")
    say(f"page      {answers['page']}")
