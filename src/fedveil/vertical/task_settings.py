"""The built-in tasks and their settings in a job file. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedveil.settings.settings import Settings, text

TextPath = Annotated[str, text("the path of a file or folder", r"(?s).+")]
FilePath = Annotated[str, text("the path of a file", r"(?s).+")]

#: The class of each built-in task.
TASKS = {
    "mnist_halves": "fedveil.tasks.mnist_halves:MnistHalves",
    "tabular": "fedveil.tasks.tabular:Tabular",
    "tables": "fedveil.tasks.tables.own_tables:Tables",
    "pangu": "fedveil.tasks.pangu:Pangu",
}


class HalvesSettings(Settings):
    """`mnist_halves`: each of two followers has one half of every image."""

    data: Literal["digits", "mnist", "fashion_mnist"] = Field(
        "digits", description="the images; all but digits must be on this machine already"
    )
    width: int = Field(
        512, ge=2, description="the number of values that a half sends to the leader"
    )


class TabularSettings(Settings):
    """`tabular`: the leader and the follower bank have different features of the same rows."""

    table: Literal["breast_cancer", "wine", "diabetes"] = Field(
        "breast_cancer", description="one of scikit-learn's tables; diabetes is a regression"
    )
    width: int = Field(
        32, ge=2, description="the number of values that a deep part sends to the leader"
    )
    scores: int = Field(
        8, ge=1, description="the number of values that a wide part sends to the leader"
    )
    bins: int = Field(
        8, ge=2, description="the number of intervals into which the wide part divides a feature"
    )
    wide: Literal["hidden", "linear"] = Field(
        "hidden",
        description="followers' wide parts: `hidden` feeds them to a hidden layer of the "
        "leader, `linear` directly to the outputs, which reveals every label of "
        "two classes to a follower",
    )


class ReadingSettings(Settings):
    """The format of one party's table.

    A null value is guessed from the file, and the run reports it.
    """

    separator: Literal["comma", "semicolon", "tab", "pipe"] | None = Field(
        None, description="what separates a CSV file's cells; null: guessed from its first lines"
    )
    encoding: Literal["utf-8", "utf-16", "cp1252", "latin-1"] | None = Field(
        None,
        description="a CSV file's encoding; null: by its mark, UTF-8 if its beginning is that, "
        "else cp1252",
    )
    decimal: Literal["point", "comma"] | None = Field(
        None, description="the decimal mark of numbers; null: guessed from all of them"
    )
    kinds: dict[str, Literal["number", "date", "day-first", "month-first", "time", "boolean"]] = (
        Field(
            default_factory=dict,
            description="what columns of numbers contain; `day-first` and `month-first` are "
            "dates such as 1/2/2024. Columns that are not named are guessed",
        )
    )
    empty: list[str] = Field(
        default_factory=list,
        description="texts that mean an empty cell, besides those that always do",
    )


class IdSettings(Settings):
    """Rules that normalise ids, so that all parties write the same id alike."""

    whole_numbers: bool = Field(True, description="12.0 is the id 12")
    leading_zeros: Literal["keep", "drop"] = Field("keep", description="`drop`: 007 is the id 7")
    unicode: Literal["keep", "NFC", "NFKC"] = Field(
        "NFC", description="the Unicode form; `NFKC` also makes full-width letters ordinary ones"
    )
    case: Literal["keep", "fold"] = Field("keep", description="`fold`: A12 is the id a12")


class TableSettings(ReadingSettings):
    """One party's table. Each party's copy of the job may have other settings here."""

    path: FilePath | None = Field(
        None, description="a .parquet file, or CSV with a header; relative to the working directory"
    )
    test: FilePath | None = Field(
        None, description="a file of the held-out examples, if `test_fraction` is null"
    )
    id: str = Field("id", description="the column of ids; they are compared as text")
    label: str | None = Field(None, description="the column of labels, in the leader's table only")
    class_weights: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="the weight of each class in training, by the class's name in the leader's "
        "table; 1 for classes that are not named",
    )
    features: list[str] | None = Field(
        None, description="the columns to train on; null: all but id and label"
    )
    without: list[str] = Field(
        default_factory=list, description="columns to leave out if `features` is null"
    )
    categories: dict[str, Annotated[int, Field(ge=2)]] = Field(
        default_factory=dict,
        description="the columns of words, and the number of places of each: one for each of "
        "the most frequent words, the last for all others",
    )
    missing: Literal["refuse", "mean"] = Field(
        "refuse",
        description="`refuse`: an empty cell is an error; `mean`: it becomes the column's "
        "mean, or the last place if it is a word",
    )


class TablesSettings(Settings):
    """`tables`: every party reads its own table with a linear (wide) part and a deep part."""

    #: Keys that may differ between the parties' copies of a job, because each has its own table.
    OWN_KEYS: ClassVar[tuple[str, ...]] = ("files",)

    leader: str = Field("leader", description="the party with the labels")
    owners: list[str] = Field(
        default_factory=lambda: ["leader", "bank"],
        description="the parties with features, in the order in which the last part reads "
        "them; the leader need not be one",
    )
    classes: int | None = Field(
        2, ge=2, description="the number of classes of the labels; null: the labels are numbers"
    )
    test_fraction: float | None = Field(
        0.2,
        gt=0,
        lt=1,
        description="the share of ids held out, chosen by a digest of each; null: every party "
        "names a file, `test`",
    )
    width: int = Field(
        32, ge=2, description="the number of values that a deep part sends to the leader"
    )
    scores: int = Field(
        8, ge=1, description="the number of values that a wide part sends to the leader"
    )
    bins: int = Field(
        8, ge=2, description="the number of intervals into which a wide part divides a number"
    )
    vector: int = Field(8, ge=1, description="the size of a word's vector in a deep part")
    wide: Literal["hidden", "linear"] = Field(
        "hidden",
        description="followers' wide parts: `hidden` feeds them to a hidden layer of the "
        "leader, `linear` directly to the outputs, which reveals every label of "
        "two classes to a follower",
    )
    ids: IdSettings = Field(default_factory=IdSettings)
    files: dict[str, TableSettings] = Field(
        default_factory=dict, description="each party's table, by the party's name"
    )


class PanguSettings(Settings):
    """`pangu`: a decoder-only language model cut into three parts."""

    #: Keys that may differ between the parties' copies of a job: the leader's text.
    OWN_KEYS: ClassVar[tuple[str, ...]] = ("text", "test_text")

    preset: Literal["tiny", "small", "350M", "1.3B", "2.6B"] = Field(
        "tiny",
        description="the model's sizes: tiny trains in minutes on a CPU, and `fedveil vertical "
        "parts` shows the memory that each needs",
    )
    layers: int | None = Field(
        None, ge=1, description="transformer layers, including the query layer; null: the preset's"
    )
    width: int | None = Field(
        None,
        ge=1,
        description="the size of a token's vector, a multiple of heads; null: the preset's",
    )
    heads: int | None = Field(None, ge=1, description="attention heads; null: the preset's")
    context: int | None = Field(None, ge=1, description="tokens in an example; null: the preset's")
    tokenizer: Literal["pairs", "bytes"] = Field(
        "pairs",
        description="`pairs`: byte-pair encoding trained on the leader's training text; "
        "`bytes`: one token for each byte",
    )
    vocabulary: int | None = Field(
        None,
        ge=257,
        description="the number of tokens of `tokenizer: pairs`, including the 256 bytes and "
        "the end of a document; null: the preset's",
    )
    text: TextPath | None = Field(
        None,
        description="the leader's .txt file, or a folder of them; null: the documentation topics "
        "that come with Python",
    )
    test_text: TextPath | None = Field(
        None, description="held-out text, in the same form; null: the end of `text`"
    )
    test_fraction: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="the share of `text` that is held out if there is no `test_text`",
    )
