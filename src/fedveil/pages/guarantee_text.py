"""The privacy costs in a run's records, in words, for pages and terminals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedveil.privacy.guarantee_strength import Figure, attacker_wrong, epsilon_text
from fedveil.privacy.loss import format_delta
from fedveil.protections.catalog import POSITIONS
from fedveil.record.recorder import Record

#: The key of the epsilon that summarises a whole run, without the prefix `epsilon_`.
RUN = "run_every_round"
#: What the epsilon of a run means if its noise comes from a seed.
SEEDED = (
    "The bound assumes randomness from the operating system, as in a deployment. This run used its "
    "seed instead."
)
_ALL_SEEDED = (
    "The bounds assume randomness from the operating system, as in a deployment. These runs used "
    "their seeds instead."
)
#: Follows the epsilon of a vertical run whose other parties are on other machines.
ALONE = ", this party only"
#: A part of a sentence about the epsilons of several runs. `cell` marks those for one example.
FOR_A_CLIENT = "for a client in every round, or for one example of it where the table says so"


class Says(NamedTuple):
    """The label of an epsilon in a record, and a text that says what this epsilon bounds."""

    name: str
    bounds: str


_ALL = "a client's whole data, from all its reports together"
#: Texts about the ledger's epsilons, by key without the prefix `epsilon_`.
_FIGURES = {
    "per_bit": Says("a bit", "one bit that a mechanism encodes, from one round"),
    "per_parameter": Says("a parameter", "one parameter of an update, from one round"),
    "per_round": Says("a round", "a client's whole data, from its costliest round"),
    "run_every_round": Says("the whole run of a client in every round", _ALL),
    "run_most_drawn": Says("the whole run of the most-drawn client", _ALL),
}
#: Texts about the epsilons under `unit: example`. Bits and parameters have none: for one example,
#: a part of a report costs as much as the whole report.
_OF_AN_EXAMPLE = {
    "per_round": Says(
        "one example of a client in a round", "one example, from the client's costliest round"
    ),
    "run_every_round": Says(
        "the whole run of one example of a client in every round",
        "one example, from all reports of its client together",
    ),
    "run_most_drawn": Says(
        "the whole run of one example of the most-drawn client",
        "one example, from all reports of its client together",
    ),
}


def figures(record: Record) -> Mapping[str, Says]:
    """Return the label and the meaning of each epsilon in a record.

    The keys are those of the record without the prefix `epsilon_`, such as "per_round".
    """
    return _OF_AN_EXAMPLE if record["unit"] == "example" else _FIGURES


def whose(record: Record) -> str:
    """Return whose data the epsilons in a record cover, such as "one example of a client"."""
    return "one example of a client" if record["unit"] == "example" else "a client"


def cell(figure: Figure, unit: str | None, *, alone: bool = False) -> str:
    """Format a run's epsilon for a table of several runs.

    `unit` is the run's protected unit. If it is "example", "for one example" is appended. `alone`
    is True if the epsilon is one party's, and the other parties are on other machines.
    """
    text = epsilon_text(*figure)
    return f"{text} for one example" if unit == "example" else f"{text}{ALONE if alone else ''}"


def figure_of(record: Record, key: str) -> Figure:
    """Return a record's `epsilon_KEY` and `delta_KEY`, where KEY is `key`, such as "per_round"."""
    return Figure(record[f"epsilon_{key}"], record[f"delta_{key}"])


def at_delta(found: Iterable[Figure], whose: str) -> str:
    """Return the delta of these figures for the caption of a table, such as " at delta 1e-05".

    An epsilon at delta 0 also holds at every larger delta. If the deltas differ, the text refers to
    the key `privacy.delta` of `whose` job, such as "run". Returns "" if there are no figures.
    """
    deltas = {figure.delta for figure in found}
    if not deltas:
        return ""
    if len(deltas - {0.0}) > 1:
        return f" at each {whose}'s own privacy.delta"
    return f" at delta {format_delta(max(deltas))}"


def figure_lines(record: Record) -> list[str]:
    """Return lines of text: one for each distinct epsilon in a record, with what it covers.

    Another line follows for each value that clients send without noise.
    """
    found: dict[str, list[str]] = {}
    for key, says in figures(record).items():
        figure = figure_of(record, key)
        text = f"{epsilon_text(*figure)} at delta {format_delta(figure.delta)}"
        found.setdefault(text, []).append(says.name)
    lines = [f"{text} for {listed(names)}" for text, names in found.items()]
    return lines + [f"no finite epsilon: {what}" for what in record["in_clear"]]


def listed(names: Sequence[str]) -> str:
    """Join names as in a sentence, such as "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def attackers(job: Mapping[str, Any]) -> str:
    """Return a text that names the attackers against whom a job's protection holds.

    Returns "" if the protection is not built in, but a user's own class.
    """
    switch = job["protection"]
    protection = POSITIONS.get(str(switch["name"]))
    if protection is None:
        return ""
    block = switch.get(protection.block, {})
    return protection.against(protection.settings_type(**block))


def right(figure: Figure) -> str:
    """Return a text about the best attacker against the guarantee `figure`.

    An example is "is right at most 73.2% of the time".
    """
    percent = math.ceil(1000 * (1 - attacker_wrong(*figure))) / 10
    if percent < 100:
        return f"is right at most {percent:.1f}% of the time"
    return "may be right more than 99.9% of the time"


def meaning(record: Record) -> str:
    """Return a sentence that explains the epsilon of the whole run, and against whom it holds."""
    figure = figure_of(record, RUN)
    if figure.promise == "none":
        return "Nothing is guaranteed: what is sent may reveal everything about a client."
    trusted = record["rests_on_server"]
    sees = "everything except what the server sees" if trusted else "everything the server sees"
    data = "two datasets" if record["unit"] == "client" else "two examples"
    text = (
        f"An attacker who sees {sees}, and must tell which of {data} a client holds, "
        f"{right(figure)} (chance: 50%)."
    )
    if trusted:
        text += " The server is trusted: it needs no guess."
    return f"{text} {from_seed([record])}".strip()


def from_seed(records: Sequence[Record]) -> str:
    """Return what the bounds of these runs assume, or "" if none of the runs used its seed.

    `records` has the last record of each run.
    """
    if not any(str(record.get("randomness", "")).startswith("simulation") for record in records):
        return ""
    return SEEDED if len(records) == 1 else _ALL_SEEDED


def returned(job: Mapping[str, Any]) -> str:
    """Describe the protection of the gradients that a vertical run's leader sends back."""
    privacy = job["privacy"]
    if privacy.get("label_dp"):
        return (
            "The gradients that the leader returns reveal no more of a label than its account "
            "states."
        )
    if privacy.get("label_protection"):
        return "The gradients that the leader returns have noise that states no epsilon."
    return "The gradients that the leader returns are sent without protection, in no account."
