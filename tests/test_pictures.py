"""A protection has one colour in every picture of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedveil.pages.colours import PROTECTIONS

PICTURES = Path(__file__).parents[1] / "docs" / "reproductions"
#: The protection of all curves that name none, in a picture of one protection.
OF_ONE = {
    "ldp-adaptive-dnn-location30": "rr", "ldp-adaptive-dnn-purchase100-synthetic": "rr",
    "ldp-adaptive-lenet-mnist": "rr",
    "ldp-cells-cells": "rr", "ldp-convergence-oue": "oue", "ldp-convergence-rr": "rr",
    "ldp-epsilon-leakage": "rr", "ldp-noniid-noniid": "rr", "signds-keys-rate": "signds",
    "signds-keys-step": "signds",
}  # fmt: skip
#: Pictures of no protection of the switch.
OF_NONE = {
    "embedding-dp-accuracy", "embedding-dp-ssim", "pangu-embedding-dp-loss", "secagg-cost-masks",
    "secagg-cost-server-seconds", "signds-table-dimensions",
}  # fmt: skip
_ENTRY = re.compile(r'stroke: (#[0-9a-f]{6})[^"]*"/>\s*(?:</?g[^>]*>\s*)*<text[^>]*>([^<]+)</text>')
_NAME = re.compile(r'<text [^>]*fill: (#[0-9a-f]{6})"[^>]*>([a-z]+_?[a-z]*)</text>')
#: The same in pictures of the project's own, and the colours of all curves there.
_OWN_ENTRY = re.compile(
    r'stroke="(#[0-9A-F]{6})"><path class="line"[^>]*/>(?:<path class="mark"[^>]*/>)?</g>'
    r'<text x="34" y="10">([^<]+)</text>'
)
_OWN_CURVE = re.compile(r'<g class="curve[^>]*stroke="(#[0-9A-F]{6})"')


def entries(picture: Path) -> dict[str, str]:
    """Return the colour of each curve's name, in the legend or beside the curve."""
    text = picture.read_text("utf-8")
    legend = text.partition('<g id="legend_1">')[2]
    beside = [(colour, name) for colour, name in _NAME.findall(text) if name in PROTECTIONS]
    found = [*_ENTRY.findall(legend), *beside, *_OWN_ENTRY.findall(text)]
    return {name: colour.lower() for colour, name in found}


def protection_of(entry: str, picture: str) -> str:
    if entry.endswith(("plain", "without protection")):
        return "not_encrypt"
    named = re.split(r"\W", entry)[0]
    return named if named in PROTECTIONS else OF_ONE[picture]


@pytest.mark.parametrize(
    "picture",
    [path for path in sorted(PICTURES.glob("*.svg")) if path.stem not in OF_NONE],
    ids=lambda path: path.stem,
)
def test_a_protection_has_its_colour(picture: Path) -> None:
    found = entries(picture)
    assert len(found) >= 2
    for name, colour in found.items():
        assert colour.upper() == PROTECTIONS[protection_of(name, picture.stem)], name
    text = picture.read_text("utf-8")
    drawn = {colour.lower() for colour in _OWN_CURVE.findall(text)}
    drawn |= set(re.findall(r"fill: none; (?:[a-z-]+: [^;]+; )*?stroke: (#[0-9a-f]{6})", text))
    known = {colour.lower() for colour in PROTECTIONS.values()}
    assert drawn & known <= {*found.values()}
