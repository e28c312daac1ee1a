"""The settings of one question in a question file."""

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
#: A category in the file. A number means its text.
Word: TypeAlias = str | int


class QuestionSettings(Block):
    """One question about the clients' rows."""

    ask: Kind = Field("count", description="kind of question (docs/statistics.md)")
    column: str | None = Field(None, description="the column to ask about")
    other: str | None = Field(
        None, description="second column of a correlation or a contingency table"
    )
    where: str | None = Field(
        None, description="count only rows with this condition: `age >= 65 and sex == 'f'`"
    )
    by: str | None = Field(None, description="column that divides the rows into groups")
    groups: list[Word] = Field(
        default_factory=list, description="values of the column `by`. Each gets its own answer"
    )
    range: list[float] = Field(
        default_factory=list,
        description="lowest and highest value of the column. Values outside are clipped to it",
    )
    other_range: list[float] = Field(default_factory=list, description="the range of `other`")
    edges: list[float] = Field(
        default_factory=list,
        description="edges of a histogram's cells. Each cell includes its lower edge, and the last "
        "cell also its upper edge",
    )
    other_edges: list[float] = Field(default_factory=list, description="the edges of `other`")
    categories: list[Word] = Field(default_factory=list, description="categories of the column")
    other_categories: list[Word] = Field(
        default_factory=list, description="the categories of `other`"
    )
    at: list[float] = Field(
        default_factory=list, description="the quantiles, as shares of the rows. 0.5: the median"
    )
    cells: int = Field(
        256,
        ge=2,
        le=1024,
        description="number of cells into which quantiles divide the range, a power of two",
    )
    alphabet: str = Field(
        "abcdefghijklmnopqrstuvwxyz", description="the letters that words of heavy_hitters may have"
    )
    length: int = Field(12, ge=1, le=64, description="longest word of heavy_hitters, in letters")
    most: int = Field(
        20, ge=1, le=1000, description="most words that heavy_hitters returns for each group"
    )
    false_words: float = Field(
        0.1,
        ge=1e-6,
        le=0.9,
        description="largest expected share of false words in the answer of heavy_hitters, which "
        "are there only by noise. A larger share also finds more true words",
    )
    weight: float = Field(
        1.0,
        ge=1e-3,
        le=1e3,
        description="share of the privacy budget, relative to the other questions. Under rr and "
        "oue: share of the clients",
    )
