"""What a run's record says was promised, in words: on a page and in a terminal alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from fedveil.privacy.loss import format_delta
from fedveil.privacy.promise import Figure, attacker_wrong, told
from fedveil.record.recorder import Record

#: The figure that the whole run is judged by.
RUN = "run_every_round"


class Says(NamedTuple):
    """What a figure of the ledger is for, and what it bounds."""

    name: str
    bounds: str


_ALL = "a client's whole data, from all its reports together"
#: The ledger's figures.
_FIGURES = {
    "per_bit": Says("a bit", "one bit that a mechanism encodes, from one round"),
    "per_parameter": Says("a parameter", "one parameter of an update, from one round"),
    "per_round": Says("a round", "a client's whole data, from its costliest round"),
    "run_every_round": Says("the run, for a client drawn in every round", _ALL),
    "run_most_drawn": Says("the run, for the most-drawn client", _ALL),
}
#: The same where they are for one example of a client, which loses as much in any part of a report.
_OF_AN_EXAMPLE = {
    "per_round": Says(
        "one example of a client in a round", "one example, from the client's costliest round"
    ),
    "run_every_round": Says(
        "the run, for one example of a client drawn in every round",
        "one example, from all reports of its client together",
    ),
    "run_most_drawn": Says(
        "the run, for one example of the most-drawn client",
        "one example, from all reports of its client together",
    ),
}


def figures(record: Record) -> Mapping[str, Says]:
    """The ledger's figures that a record has, by the names that they have in it."""
    return _OF_AN_EXAMPLE if record["unit"] == "example" else _FIGURES


def figure_of(record: Record, key: str) -> Figure:
    """One of them."""
    return Figure(record[f"epsilon_{key}"], record[f"delta_{key}"])


def figure_lines(record: Record) -> list[str]:
    """A line for each, and for what leaves with no finite epsilon."""
    found = {says.name: figure_of(record, key) for key, says in figures(record).items()}
    lines = [
        f"{told(*figure)} for {what}, delta {format_delta(figure.delta)}"
        for what, figure in found.items()
    ]
    return lines + [f"no finite epsilon: {what}" for what in record["in_clear"]]


def right(figure: Figure) -> str:
    """How often the best attacker guesses right at most."""
    return f"{math.ceil(1000 * (1 - attacker_wrong(*figure)))} times in 1,000"


def meaning(record: Record) -> str:
    """What the whole run's figure says of an attacker, and of which ones."""
    figure = figure_of(record, RUN)
    if figure.promise == "none":
        return "what is sent may tell everything about a client"
    trusted = record["rests_on_server"]
    who = "everybody else sees" if trusted else "the server sees"
    data = "two data sets" if record["unit"] == "client" else "two examples"
    return (
        f"whoever knows all that {who} and all but which of {data} a client has guesses right at "
        f"most {right(figure)}; a coin does 500 times"
        f"{', and the server, which is trusted, needs no guess' if trusted else ''}"
    )
