"""Rules for combinations of the keys of one question."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from fedveil.settings.allowed import shown
from fedveil.statistics.prefixes import END, MOST_CANDIDATES, too_many
from fedveil.statistics.question_settings import QuestionSettings

_CELLS = ("edges", "categories")
_GROUPED = ("by", "groups")
#: The keys that each kind of question uses, besides ask, where and weight.
READ = {
    "count": _GROUPED,
    "histogram": ("column", *_CELLS, *_GROUPED),
    "mean": ("column", "range", *_GROUPED),
    "variance": ("column", "range", *_GROUPED),
    "quantiles": ("column", "range", "at", "cells", *_GROUPED),
    "correlation": ("column", "other", "range", "other_range", *_GROUPED),
    "heavy_hitters": ("column", "alphabet", "length", "most", "false_words", *_GROUPED),
    "contingency": ("column", "other", *_CELLS, "other_edges", "other_categories", *_GROUPED),
}
_ALWAYS = ("ask", "where", "weight")
#: The smallest width of a range, relative to its larger end.
_NARROW = 1e-9
#: The largest width of a range. The variance of a variance contains the fourth power of the width,
#: which must be a finite 64-bit float.
_WIDE = 1e70
#: Keys that are required for every kind of question that uses them.
NEEDED = ("column", "other", "range", "other_range", "at", "alphabet")


def problems_of(place: str, question: QuestionSettings) -> Iterator[str]:
    """Yield a sentence for each problem of `question`.

    `place` is the key of the question in its file, such as questions.ages.
    """
    kind, unset = question.ask, "ask" not in question.model_fields_set
    for key, field in type(question).model_fields.items():
        unread = key not in (*_ALWAYS, *READ[kind])
        if unread and getattr(question, key) != field.get_default(call_default_factory=True):
            if unset:
                yield f"{place}.ask is missing: name one of {', '.join(READ)}"
                return
            yield f"{place}.{key} has no meaning for ask = {kind!r}: remove the line"
    for key in NEEDED:
        if key in READ[kind] and not getattr(question, key):
            yield f"{place}.{key} is missing: ask = {kind!r} needs it"
    if "edges" in READ[kind]:
        yield from _cells(place, "", question.edges, question.categories)
    if "other_edges" in READ[kind]:
        yield from _cells(place, "other_", question.other_edges, question.other_categories)
    cells = math.prod(_widths(question))
    if cells > MOST_CANDIDATES:
        yield (
            f"{place} has {cells:,} cells, and a report carries {MOST_CANDIDATES:,}: ask for "
            "fewer cells or groups"
        )
    yield from _columns(place, question)
    yield from _ranges(place, question)
    yield from _words(place, question)


def _widths(question: QuestionSettings) -> Iterator[int]:
    """Yield the number of a question's groups, then the number of cells of each column."""
    yield max(1, len(question.groups))
    for edges, categories in (
        (question.edges, question.categories),
        (question.other_edges, question.other_categories),
    ):
        yield max(1, len(edges) - 1, len(categories))


def _columns(place: str, question: QuestionSettings) -> Iterator[str]:
    named = {key: getattr(question, key) for key in ("column", "other", "by")}
    for one, two in combinations([key for key, column in named.items() if column], 2):
        if named[one] == named[two]:
            yield f"{place}.{two} = {shown(named[two])} is also {one}: name another column"


def _cells(
    place: str, prefix: str, edges: Sequence[float], categories: Sequence[object]
) -> Iterator[str]:
    if bool(edges) == bool(categories):
        said = "both are given" if edges else "there are no cells"
        yield (
            f"{place}: {said}: write either {prefix}edges of numbers or {prefix}categories of words"
        )
    elif edges and (len(edges) < 2 or any(low >= high for low, high in pairwise(edges))):
        yield f"{place}.{prefix}edges = {shown(edges)} is not two or more numbers in rising order"
    else:
        yield from _distinct(f"{place}.{prefix}categories", categories)


def _ranges(place: str, question: QuestionSettings) -> Iterator[str]:
    for key in ("range", "other_range"):
        ends = getattr(question, key)
        if ends and (len(ends) != 2 or ends[0] >= ends[1]):
            yield f"{place}.{key} = {shown(ends)} is not a lowest and a highest value"
        elif ends and not _NARROW * max(1e-100, *map(abs, ends)) < ends[1] - ends[0] < _WIDE:
            yield f"{place}.{key} = {shown(ends)} is too narrow or too wide for 64-bit numbers"
    if any(not 0 < share < 1 for share in question.at):
        yield f"{place}.at = {shown(question.at)} has a share outside (0, 1)"
    yield from _distinct(f"{place}.at", question.at)
    if question.cells & (question.cells - 1):
        yield f"{place}.cells = {question.cells} is not a power of two"


def _words(place: str, question: QuestionSettings) -> Iterator[str]:
    if (question.by is None) != (not question.groups):
        yield f"{place}: by names a column and groups lists its values: write both or neither"
    yield from _distinct(f"{place}.groups", question.groups)
    if question.ask == "heavy_hitters" and too_many(question):
        groups = f" and {len(question.groups)} groups" if question.groups else ""
        yield (
            f"{place}.most = {question.most} with {len(question.alphabet):,} letters{groups} is "
            "too many words for a report: ask for fewer, in fewer groups or of a smaller alphabet"
        )
    if len(set(question.alphabet)) < len(question.alphabet):
        yield f"{place}.alphabet = {shown(question.alphabet)} has a letter twice"
    if END in question.alphabet:
        yield f"{place}.alphabet = {shown(question.alphabet)} has the character 0, which ends words"


def _distinct(key: str, words: Sequence[object]) -> Iterator[str]:
    if len({str(word) for word in words}) < len(words):
        yield f"{key} = {shown(list(words))} has an entry twice"
    for word in words:
        if str(word) != str(word).strip():
            yield f"{key} has {shown(word)}, but words have no spaces around them: remove them"
