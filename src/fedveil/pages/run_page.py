"""The page of one federated run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedveil.base.quantity import quantity
from fedveil.base.untrusted import MOST_JOB_BYTES, read_bytes, read_text
from fedveil.engine.run_records import RETRAINED
from fedveil.pages import curves
from fedveil.pages.finding_text import conclusion
from fedveil.pages.finding_text import figures as figures_of
from fedveil.pages.guarantee_text import figure_of, figures, right, whose
from fedveil.pages.machines import machine_totals
from fedveil.pages.page import Code, Fact, Fold, Page, Part, Picture, Points, Section
from fedveil.pages.read_run import ReadRun
from fedveil.pages.run_summary import best_round, ending
from fedveil.pages.table import Table
from fedveil.privacy.finding import Finding
from fedveil.privacy.guarantee_strength import MEANS, Promise, epsilon_text
from fedveil.privacy.loss import format_delta
from fedveil.protections.catalog import POSITIONS
from fedveil.record.byte_count import shown_bytes
from fedveil.record.recorder import LOST, UNUSABLE, Record
from fedveil.record.run_folder import EVENTS, JOB

#: Largest size of an attack's picture.
_LONGEST_PICTURE = 8_000_000
#: The attacks whose pictures show each original above its reconstruction.
_PAIRED = ("gradient", "exact", "steal")
_PNG = b"\x89PNG\r\n\x1a\n"
#: Why the epsilon beside an attack may differ from the run's own, and in a federated run, why else.
_OTHER_REPORTS = (
    "The epsilon beside an attack covers what this attack saw, which may be more or fewer reports "
    "than the run sent."
)
_FEWEST_CLIENTS = (
    " An attack that simulates clients assumes the fewest that a round may have, while the run's "
    "ledger counts those that reported."
)
#: Suffixes of the names of durations that are summed over clients, even if these ran in parallel.
_SUMMED = dict.fromkeys(("training", "protection"), ", summed over clients")


def run_page(run: ReadRun) -> Page:
    """Return the page of a run: its conclusions, plots, tables and settings."""
    sections = [
        *(_rounds(run, run.last) if run.records else ()),
        *(_guaranteed(run, run.last) if run.started and not run.records else ()),
        *found(run),
        *repeat(run, "flwr run APP" if run.deployed else f"fedveil run {JOB}"),
        Section("Settings", [what_was_trained(run)]),
    ]
    return Page(run.name, [how_far(run), *ending(run)], sections)


def attack_page(run: ReadRun) -> Page:
    """Return the page of attacks on a job: each conclusion, the metrics, and the job."""
    text = read_text(run.folder / JOB, MOST_JOB_BYTES)
    facts = [
        Fact(
            f"{finding.attack} against {finding.protection}",
            conclusion(finding),
            f"At effort {finding.effort}. A successful attack proves a leak; a failed one proves "
            "nothing.",
        )
        for finding in run.findings
    ]
    shown = found(run, concluded=True)
    return Page(run.name, facts, [*shown, Section("The job", [Fold(JOB, [Code(text)])])])


def _rounds(run: ReadRun, last: Record) -> Iterator[Section]:
    alone = {run.name: run}
    plots = [*curves.quality(alone), *curves.at_clients(alone), *curves.epsilon(alone)]
    yield Section("Every round", [*plots, *curves.traffic(run), *curves.seconds(run)])
    yield from _language(run, last)
    yield from _guaranteed(run, last)
    yield Section("Bytes and time", [_costs(run), *_machines(run)])
    yield Section("Reports that do not count", list(_lost(run.records)))


def _guaranteed(run: ReadRun, last: Record) -> Iterator[Section]:
    yield Section("What was promised", _promises(run, last))
    yield Section("What is not protected", [Points(list(_open(last)))])


def _language(run: ReadRun, last: Record) -> Iterator[Section]:
    if not run.compared:
        return
    figure = figure_of(last, "run_every_round")
    promise = (
        f"After {quantity(len(run.records), 'round')} under {run.job['protection']['name']}: "
        f"{figure} for {whose(last)} in every round. The model before is the one in the folder, "
        "which no client has changed."
    )
    figures = [[c.what, c.before, c.after] for c in run.compared if c.kind == "figure"]
    texts = [[c.what, c.before, c.after] for c in run.compared if c.kind == "prompt"]
    parts: list[Part] = [Table(["on the test examples", "before", "after"], figures, promise)]
    if texts:
        caption = "Continuations by the most likely token."
        parts.append(Table(["prompt", "before", "after"], texts, caption))
    yield Section("Before and after", parts)


def how_far(run: ReadRun) -> str:
    """Return a sentence that describes the run and its progress."""
    job, done = run.job, len(run.records)
    state = "still running, or killed" if run.ended is None else run.ended
    state = "; ".join(filter(None, [state, run.unfinished]))
    return (
        f"{job['model']} on {job['data']['name']}, "
        f"{quantity(job['clients']['number'], 'client')}, under "
        f"{job['protection']['name']}: {done} of {quantity(job['rounds'], 'round')}; {state}."
    )


def what_was_trained(run: ReadRun) -> Table:
    """Return a table of the run's model, data, clients and duration."""
    job, last = run.job, run.last
    data, clients, training = job["data"], job["clients"], job["training"]
    protection, server = job["protection"], job["server"]
    settings = protection.get(protection["name"]) or protection.get(_block(protection)) or {}
    best = best_round(run)
    rows = {
        "job": job["name"],
        "model": f"{job['model']}, trained: {training['train']}",
        "adapter": _adapter(job),
        "task": job.get("task", "classification"),
        "data": f"{data['name']}, split {data['split']}",
        "whose": run.said(f"{data['name']}: "),
        "clients": f"{clients['number']:,}; in a round {100 * clients['fraction']:.4g}% of them, "
        f"sampling {clients['sampling']}",
        "training": f"epochs {training['epochs']}, batches of {training['batch_size']}, "
        f"{training['optimizer']}, learning rate {training['lr']:g}, on {training['device']}",
        "trained by": last.get("trainer", ""),
        "server": _server(server),
        "protection": protection["name"],
        "its settings": ", ".join(f"{k} {plain(v)}" for k, v in settings.items() if v is not None),
        "randomness": last.get("randomness", ""),
        "rounds": f"{len(run.records)} of {job['rounds']}",
        "time": f"{duration(seconds(run.records))} in rounds" if run.records else "",
        "best round": "" if best is None else str(best),
        "made by": run.said("began: ") or run.said("went on after "),
        "seed": job["seed"],
    }
    return Table(["", ""], [[name, str(value)] for name, value in rows.items() if value != ""])


def _server(server: Mapping[str, Any]) -> str:
    optimizer = "averaging" if server["optimizer"] == "none" else server["optimizer"]
    return f"{optimizer}, rate {server['lr']:g}, clients weighted {server['weighting']}"


def _adapter(job: Mapping[str, Any]) -> str:
    adapter = job.get("adapter", {})
    if adapter.get("kind", "none") == "none":
        return ""
    targets = ", ".join(adapter["targets"]) or "peft's choice"
    return f"{adapter['kind']}, rank {adapter['rank']}, alpha {adapter['alpha']:g}, of {targets}"


def plain(value: object) -> str:
    """Format the value of a setting as in a job file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _block(protection: Mapping[str, object]) -> str:
    """Return the name of the job's key under `protection` that has the protection's settings.

    The key of a user's own protection is "own". Returns "" if the protection has no settings.
    """
    position = POSITIONS.get(str(protection["name"]))
    return (position.block if position is not None else "own") or ""


def seconds(records: Iterable[Record]) -> float:
    """Return the duration of all rounds together, in seconds."""
    return math.fsum(record.get("seconds_round", 0.0) for record in records)


def duration(took: float) -> str:
    """Format a duration of `took` seconds, such as "3 min 20 s"."""
    if took < 100:
        return f"{took:.1f} s"
    minutes, rest = divmod(round(took), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _promises(run: ReadRun, last: Record) -> list[Part]:
    rows, words = [], dict[Promise, None]()
    for key, says in figures(last).items():
        figure = figure_of(last, key)
        words[figure.promise] = None
        rows.append([
            says.name, epsilon_text(*figure), format_delta(figure.delta), right(figure), says.bounds
        ])  # fmt: skip
    for line in run.accounts:
        words[line.figure.promise] = None
        delta = format_delta(line.delta)
        rows.append(
            [line.what, epsilon_text(line.epsilon, line.delta), delta, right(line.figure), ""]
        )
    columns = ["for", "epsilon", "delta", "the best attacker", "what it bounds"]
    return [
        "Each figure bounds what an attacker can learn about its subject. The attacker knows "
        "everything else, sees what was released, and guesses which of two equally likely inputs "
        "was used (chance: 50%). No figure is rounded down.",
        Table(columns, rows),
        Points([f"{word}: the best attacker is {MEANS[word]}." for word in words]),
    ]


def _open(last: Record) -> Iterator[str]:
    """Yield sentences about what the job leaves unprotected, and what the protection relies on.

    `last` has the latest values of the run's metrics.
    """
    for what in last["in_clear"]:
        yield f"Sent in the clear, with no finite epsilon: {what}."
    if figure_of(last, "run_every_round").promise == "none":
        yield "The reports: nothing is promised about what they or their sum reveal."
    if last["rests_on_server"]:
        yield (
            "The server is trusted: it adds the noise, and sees what is sent without it. Everyone "
            "else must rely on it."
        )
    if last["randomness"].startswith("simulation"):
        yield (
            "This was a simulation: all randomness comes from the job's seed, so anyone with the "
            "job can remove noise and masks. A deployed job takes it from the operating system."
        )
    yield "Who took part in which round, and when: the server knows its clients."


def _costs(run: ReadRun) -> Table:
    rows = [
        ["upload of a client in a round", shown_bytes(run.last["bytes_up_per_client"])],
        *(
            [what, shown_bytes(sum(record[key] for record in run.records))]
            for what, key in (("all uploads", "bytes_up"), ("all downloads", "bytes_down"))
        ),
        ["wall-clock time of all rounds", duration(seconds(run.records))],
    ]
    for part in curves.PARTS:
        took = math.fsum(record.get(f"seconds_{part}", 0.0) for record in run.records)
        rows.append([f"{part}{_SUMMED.get(part, '')}", duration(took)])
    return Table(["what", "in all"], rows)


def _machines(run: ReadRun) -> Iterator[Part]:
    rows = [
        [name, f"{of.clients:,}", duration(of.busy_s), f"{100 * of.idle:.0f}%"]
        for name, of in machine_totals(run.records).items()
    ]
    if rows:
        yield Table(["machine", "clients, over all rounds", "worked for", "idle"], rows)
    again = sum(record.get(RETRAINED, 0) for record in run.records)
    if again:
        yield f"{quantity(again, 'training')} on a lost machine had to be repeated."


def _lost(records: Sequence[Record]) -> Iterator[Part]:
    """Yield a table that counts missing reports by reason, and a line for each void round."""
    rows = []
    for kind in (*LOST, UNUSABLE):
        times: Counter[str] = Counter()
        for record in records:
            times.update(record[kind])
        rows += [[kind, reason, str(count)] for reason, count in times.most_common()]
    dropped = sum(record["dropped"] for record in records)
    if dropped:
        rows.append(["dropped", "no answer", str(dropped)])
    if rows:
        yield Table(["what", "reason", "clients, over all rounds"], rows)
    else:
        yield "Every requested report arrived and was usable."
    void = [
        f"Round {record['round']} is void: {record['void'].removeprefix('the round is void: ')}"
        for record in records
        if record["void"]
    ]
    if void:
        yield Points(void)


def found(run: ReadRun, *, concluded: bool = False) -> Iterator[Section]:
    """Yield a section with the results of attacks and audits, and their pictures.

    `concluded` is True if the page shows the conclusions elsewhere. The section then omits them.
    """
    parts: list[Part] = []
    for finding in run.findings:
        parts += [] if concluded else [conclusion(finding)]
        parts += _finding(run.folder, finding)
    if parts:
        if not concluded:  # a page of attacks on a job has no ledger, so no other epsilon
            parts.append(_OTHER_REPORTS + _FEWEST_CLIENTS * ("protection" in run.job))
        yield Section("What attacks found", parts)


def _finding(folder: Path, finding: Finding) -> Iterator[Part]:
    saw = f", which saw {finding.saw}" if finding.saw else ""
    caption = (
        f"{finding.attack} at effort {finding.effort} against {finding.protection}{saw}; promised: "
        f"epsilon {epsilon_text(finding.epsilon, finding.delta)}{finding.distance}: "
        f"{finding.verdict}"
    )
    yield replace(figures_of(finding), caption=caption)
    if finding.unseen:
        yield Fold("What this audit could not have seen", [Points(finding.unseen)])
    for name in finding.pictures:
        png = _png(folder, name)
        if png is not None:
            caption = f"{finding.attack} against {finding.protection}"
            above = ": originals above, reconstructions below" if finding.attack in _PAIRED else ""
            yield Picture(png, f"{caption}{above}")


def _png(folder: Path, name: str) -> bytes | None:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        return None
    try:
        data = read_bytes(path, _LONGEST_PICTURE)
    except OSError:
        return None
    return data if data.startswith(_PNG) else None


def repeat(run: ReadRun, command: str) -> Iterator[Section]:
    """Yield a section with the job, the run's events, and `command`, which repeats the run."""
    yield Section(
        "Repeat this run",
        [
            "A simulation needs only the job, and the data and Python files that the job names. "
            "With seeded randomness, the result is the same to the byte on the same kind of "
            "machine.",
            Code(command),
            Fold(JOB, [Code(read_text(run.folder / JOB, MOST_JOB_BYTES))]),
            *([Fold(EVENTS, [Code("\n".join(run.events))])] if run.events else []),
        ],
    )
