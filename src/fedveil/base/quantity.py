"""Formats numbers for readers: with few digits, or with a noun, such as "20 rounds"."""

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


def few_digits(value: float, digits: int = 3) -> str:
    """Return a number with this many significant digits, or the whole number from 1,000 on.

    >>> few_digits(0.12345), few_digits(2432.7), few_digits(999.6), few_digits(1e30)
    ('0.123', '2,433', '1,000', '1e+30')
    """
    short = f"{value:.{digits}g}"
    whole = 1_000 <= abs(float(short)) < 1e15
    return f"{value:,.0f}" if whole else short
