"""One question of a question file."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from fedveil.settings.settings import Block

Kind: TypeAlias = Literal[
    "count",
    "histogram",
    "mean",
    "variance",
    "quantiles",
    "correlation",
    "heavy_hitters",
    "contingency",
]
#: A category, as in the file. A number stands for its text.
Word: TypeAlias = str | int


class QuestionSettings(Block):
    """One question about the clients' rows."""

    ask: Kind = Field("count", description="kind of question (docs/statistics.md)")
    column: str | None = Field(None, description="the column that the question is about")
    other: str | None = Field(
        None, description="second column of a correlation or a contingency table"
    )
    where: str | None = Field(
        None, description="condition on a row, such as `age >= 65 and sex == 'f'`"
    )
    by: str | None = Field(None, description="column whose groups are answered separately")
    groups: list[Word] = Field(default_factory=list, description="the groups of the column `by`")
    range: list[float] = Field(
        default_factory=list,
        description="lowest and highest value of the column. Values outside are moved to the ends",
    )
    other_range: list[float] = Field(default_factory=list, description="the range of `other`")
    edges: list[float] = Field(
        default_factory=list,
        description="edges of a histogram's cells. A cell includes its lower edge, the last both",
    )
    other_edges: list[float] = Field(default_factory=list, description="the edges of `other`")
    categories: list[Word] = Field(default_factory=list, description="categories of the column")
    other_categories: list[Word] = Field(
        default_factory=list, description="the categories of `other`"
    )
    at: list[float] = Field(
        default_factory=list, description="shares for which quantiles are asked. 0.5: the median"
    )
    cells: int = Field(256, ge=2, le=1024, description="cells of a quantile, a power of two")
    alphabet: str = Field(
        "abcdefghijklmnopqrstuvwxyz", description="the letters of the words of heavy_hitters"
    )
    length: int = Field(12, ge=1, le=64, description="longest word of heavy_hitters, in letters")
    most: int = Field(
        20, ge=1, le=1000, description="number of words that heavy_hitters returns, of each group"
    )
    false_words: float = Field(
        0.1,
        ge=1e-6,
        le=0.9,
        description="expected share of words that noise alone brings into the answer of "
        "heavy_hitters. A larger share finds more of the frequent words",
    )
    weight: float = Field(
        1.0,
        ge=1e-3,
        le=1e3,
        description="share of the noise budget, relative to the other questions; under rr and oue "
        "the share of the clients",
    )
