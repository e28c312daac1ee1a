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
        "digits", description="the images. All but digits must already be on this machine"
    )
    width: int = Field(
        512, ge=2, description="number of values per image that a follower sends to the leader"
    )


class TabularSettings(Settings):
    """`tabular`: two parties, "leader" and "bank", have different features of the same rows."""

    table: Literal["breast_cancer", "wine", "diabetes"] = Field(
        "breast_cancer", description="one of scikit-learn's tables. diabetes is a regression"
    )
    width: int = Field(
        32,
        ge=2,
        description="number of values per example that a party's deep part sends to the leader",
    )
    scores: int = Field(
        8,
        ge=1,
        description="number of values per example that a party's wide (linear) part sends to the "
        "leader",
    )
    bins: int = Field(
        8, ge=2, description="the number of intervals into which the wide part divides a feature"
    )
    wide: Literal["hidden", "linear"] = Field(
        "hidden",
        description="where the followers' wide parts lead. `hidden`: to a `hidden` layer of the "
        "leader. `linear`: directly to the outputs, which reveals every label to the followers if "
        "there are two classes",
    )


class ReadingSettings(Settings):
    """The format of one party's table. A null setting is guessed from the file and reported."""

    separator: Literal["comma", "semicolon", "tab", "pipe"] | None = Field(
        None,
        description="the separator of the cells in a CSV file. null: guessed from the first lines",
    )
    encoding: Literal["utf-8", "utf-16", "cp1252", "latin-1"] | None = Field(
        None,
        description="the encoding of a CSV file. null: by the byte order mark, else UTF-8 if the "
        "beginning is valid UTF-8, else cp1252",
    )
    decimal: Literal["point", "comma"] | None = Field(
        None, description="the decimal mark of numbers. null: guessed from all numbers"
    )
    kinds: dict[str, Literal["number", "date", "day-first", "month-first", "time", "boolean"]] = (
        Field(
            default_factory=dict,
            description="what columns contain. `day-first` and `month-first` are dates such as "
            "1/2/2024. Other columns are guessed",
        )
    )
    empty: list[str] = Field(
        default_factory=list, description="further texts that mean an empty cell"
    )


class IdSettings(Settings):
    """Rules that normalise ids, so that all parties write the same id alike."""

    whole_numbers: bool = Field(True, description="if true, 12.0 is the same id as 12")
    leading_zeros: Literal["keep", "drop"] = Field(
        "keep", description="`drop`: 007 is the same id as 7"
    )
    unicode: Literal["keep", "NFC", "NFKC"] = Field(
        "NFC",
        description="the Unicode form of ids. `NFKC` also turns full-width letters into ordinary "
        "ones",
    )
    case: Literal["keep", "fold"] = Field("keep", description="`fold`: A12 is the same id as a12")


class TableSettings(ReadingSettings):
    """One party's table. The parties' copies of the job may differ in these settings."""

    path: FilePath | None = Field(
        None,
        description="a .parquet file, or a CSV file with a header. Relative to the working "
        "directory",
    )
    test: FilePath | None = Field(
        None, description="a file of the held-out examples, if `test_fraction` is null"
    )
    id: str = Field("id", description="the column of ids. Ids are compared as text")
    label: str | None = Field(None, description="the column of labels, in the leader's table only")
    class_weights: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="weight of each class in training, by the class's name in the leader's table. "
        "Other classes have weight 1",
    )
    features: list[str] | None = Field(
        None,
        description="the columns to train on. null: all except id, label and pandas' unnamed index",
    )
    without: list[str] = Field(
        default_factory=list, description="columns not to train on, if `features` is null"
    )
    categories: dict[str, Annotated[int, Field(ge=2)]] = Field(
        default_factory=dict,
        description="the columns of words, each with the size of its vocabulary. The most frequent "
        "words get an entry each, and all other words share the last entry",
    )
    missing: Literal["refuse", "mean"] = Field(
        "refuse",
        description="empty cells. `refuse`: an error. `mean`: replaced by the column's `mean`, or "
        "by the last entry in a column of words",
    )


class TablesSettings(Settings):
    """`tables`: every party has its own table.

    A party with features has a linear (wide) part and a deep part of the model.
    """

    #: Keys that may differ between the parties' copies of a job, because each has its own table.
    OWN_KEYS: ClassVar[tuple[str, ...]] = ("files",)

    leader: str = Field("leader", description="the party with the labels")
    owners: list[str] = Field(
        default_factory=lambda: ["leader", "bank"],
        description="the parties with features, in the order in which the last part reads them. "
        "The leader may have none",
    )
    classes: int | None = Field(
        2, ge=2, description="number of classes of the labels. null: the labels are numbers"
    )
    test_fraction: float | None = Field(
        0.2,
        gt=0,
        lt=1,
        description="share of the examples that is held out, chosen by a digest of the id. null: "
        "every party names a file in `test`",
    )
    width: int = Field(
        32,
        ge=2,
        description="number of values per example that a party's deep part sends to the leader",
    )
    scores: int = Field(
        8,
        ge=1,
        description="number of values per example that a party's wide (linear) part sends to the "
        "leader",
    )
    bins: int = Field(
        8,
        ge=2,
        description="number of intervals into which a wide part divides a column of numbers",
    )
    vector: int = Field(8, ge=1, description="size of the vector for each word in a deep part")
    wide: Literal["hidden", "linear"] = Field(
        "hidden",
        description="where the followers' wide parts lead. `hidden`: to a `hidden` layer of the "
        "leader. `linear`: directly to the outputs, which reveals every label to the followers if "
        "there are two classes",
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
        description="the model's size. tiny trains in minutes on a CPU. `fedveil vertical parts` "
        "shows the memory that each size needs",
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
        description="`pairs`: byte-pair encoding, trained on the leader's training text. `bytes`: "
        "one token for each byte",
    )
    vocabulary: int | None = Field(
        None,
        ge=257,
        description="the number of tokens of `tokenizer: pairs`, including the 256 bytes and "
        "the end of a document; null: the preset's",
    )
    text: TextPath | None = Field(
        None,
        description="the leader's .txt file, or a folder of such files. null: the documentation "
        "topics that come with Python",
    )
    test_text: TextPath | None = Field(
        None,
        description="held-out `text`: a file or folder, as for `text`. null: the end of `text`",
    )
    test_fraction: float = Field(
        0.1, gt=0, lt=1, description="share of `text` that is held out if `test_text` is null"
    )
