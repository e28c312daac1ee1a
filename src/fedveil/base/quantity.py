"""Formats numbers with their nouns, such as "20 rounds"."""

from __future__ import annotations


def quantity(number: int, noun: str) -> str:
    """Return a number with its noun, which gets an s unless the number is 1.

    >>> quantity(1, "round"), quantity(1438, "client")
    ('1 round', '1,438 clients')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def all_of(number: int, noun: str) -> str:
    """Return a phrase for all things of a kind: "all 20 rounds", or "the only round".

    >>> all_of(1, "round")
    'the only round'
    """
    return f"the only {noun}" if number == 1 else f"all {quantity(number, noun)}"
