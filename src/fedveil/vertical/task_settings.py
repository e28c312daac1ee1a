"""The built-in tasks and their settings, as a job file names them. Importable without torch."""

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
        "digits", description="the images; all but digits must lie on this machine already"
    )
    width: int = Field(512, ge=2, description="numbers of a half that cross to the leader")


class TabularSettings(Settings):
    """`tabular`: the leader and the follower bank have different features of the same rows."""

    table: Literal["breast_cancer", "wine", "diabetes"] = Field(
        "breast_cancer", description="one of scikit-learn's tables; diabetes is a regression"
    )
    width: int = Field(32, ge=2, description="numbers of the deep part that cross to the leader")
    scores: int = Field(8, ge=1, description="numbers of the wide part that cross to the leader")
    bins: int = Field(8, ge=2, description="intervals that the wide part cuts a feature into")
    wide: Literal["hidden", "linear"] = Field(
        "hidden",
        description="followers' wide parts: `hidden` behind a layer of the leader's, or `linear` "
        "into the outputs, which tells a follower every label of two classes",
    )


class TableSettings(Settings):
    """One party's table. Parties do not compare these settings with each other."""

    path: FilePath | None = Field(
        None,
        description="a .parquet file, or CSV in UTF-8 with a header, as seen from where the "
        "command is given",
    )
    test: FilePath | None = Field(
        None, description="a file of the held-out examples, where `test_fraction` is null"
    )
    id: str = Field("id", description="the column of ids; they are compared as text")
    label: str | None = Field(None, description="the column of labels, of the leader's table alone")
    class_weights: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="how much an example of a class counts in training, by the class's name in the "
        "leader's table; 1 for those that are not named",
    )
    features: list[str] | None = Field(
        None, description="the columns that are trained on; null: all but id and label"
    )
    without: list[str] = Field(
        default_factory=list, description="columns to leave out where `features` is null"
    )
    categories: dict[str, Annotated[int, Field(ge=2)]] = Field(
        default_factory=dict,
        description="the columns of words, and how many places each has: one for each of the most "
        "frequent words, the last for all others",
    )
    missing: Literal["refuse", "mean"] = Field(
        "refuse",
        description="an empty cell is an error; or the column's mean, and of words the last place",
    )


class TablesSettings(Settings):
    """`tables`: every party reads its own table with a linear (wide) part and a deep part."""

    #: Keys that may differ between the parties' copies of a job: each party's own table.
    OWN_KEYS: ClassVar[tuple[str, ...]] = ("files",)

    leader: str = Field("leader", description="the party with the labels")
    owners: list[str] = Field(
        default_factory=lambda: ["leader", "bank"],
        description="the parties with features, in the order in which the last part reads them; "
        "the leader need not be one",
    )
    classes: int | None = Field(
        2, ge=2, description="how many classes the labels have; null: they are numbers"
    )
    test_fraction: float | None = Field(
        0.2,
        gt=0,
        lt=1,
        description="the share of ids held out, chosen by a digest of each; null: every party "
        "names a file, `test`",
    )
    width: int = Field(32, ge=2, description="numbers of a deep part that cross to the leader")
    scores: int = Field(8, ge=1, description="numbers of a wide part that cross to the leader")
    bins: int = Field(8, ge=2, description="intervals that a wide part cuts a number into")
    vector: int = Field(8, ge=1, description="numbers that a word has in a deep part")
    wide: Literal["hidden", "linear"] = Field(
        "hidden",
        description="followers' wide parts: `hidden` behind a layer of the leader's, or `linear` "
        "into the outputs, which tells a follower every label of two classes",
    )
    files: dict[str, TableSettings] = Field(
        default_factory=dict, description="each party's table, by the party's name"
    )


class PanguSettings(Settings):
    """`pangu`: a decoder-only language model cut into three parts."""

    #: Keys that may differ between the parties' copies of a job: the leader's text.
    OWN_KEYS: ClassVar[tuple[str, ...]] = ("text", "test_text")

    preset: Literal["tiny", "small", "350M", "1.3B", "2.6B"] = Field(
        "tiny",
        description="the model's sizes: tiny takes minutes on a CPU, and `fedveil vertical parts` "
        "says what each takes of memory",
    )
    layers: int | None = Field(
        None, ge=1, description="transformer layers, the query layer included; null: the preset's"
    )
    width: int | None = Field(
        None,
        ge=1,
        description="numbers in a token's vector, a multiple of heads; null: the preset's",
    )
    heads: int | None = Field(None, ge=1, description="heads of attention; null: the preset's")
    context: int | None = Field(None, ge=1, description="tokens in an example; null: the preset's")
    tokenizer: Literal["pairs", "bytes"] = Field(
        "pairs",
        description="byte-pair encoding learnt from the leader's training text, or a token a byte",
    )
    vocabulary: int | None = Field(
        None,
        ge=257,
        description="tokens of `tokenizer: pairs`, the 256 bytes and the end of a document "
        "included; null: the preset's",
    )
    text: TextPath | None = Field(
        None,
        description="the leader's .txt file, or a folder of them; null: the documentation topics "
        "that come with Python",
    )
    test_text: TextPath | None = Field(
        None, description="held-out text, likewise; null: the end of `text`"
    )
    test_fraction: float = Field(
        0.1, gt=0, lt=1, description="the share of `text` that is held out without `test_text`"
    )
