"""Sentences about wrong values of settings with blocks and mappings that a user names."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field, ValidationError

from fedveil.errors import DataInvalid, JobError
from fedveil.settings.allowed import Allowed, allowed, block_of, keys, sentences
from fedveil.settings.settings import Block, Choice, Settings, Under
from fedveil.settings.stored import Stored


class Inner(Block):
    a: int = 1


class Outer(Settings):
    parties: dict[str, Inner] = Field(default_factory=dict)
    shares: dict[str, float] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("given", "path", "sentence"),
    [
        ({"parties": {3: {}}}, "parties.3", "parties.3 is a name that is not text"),
        ({"shares": {3: 1.0}}, "shares.3", "shares.3 is a name that is not text"),
        ({3: 1}, "3", "3 is a key that is not text"),
        ({"parties": {"x": {"a": "y"}}}, "parties.x.a", "parties.x.a = 'y' is not a whole number"),
        ({"parties": 3}, "parties", "parties = 3 is not a mapping of names to blocks of keys"),
        (
            {"parties": {"x": 3}},
            "parties.x",
            "parties.x = 3 is not a block of keys; the keys of parties.x are a",
        ),
    ],
)
def test_a_wrong_name_or_block_is_one_sentence(
    given: dict[Any, Any], path: str, sentence: str
) -> None:
    with pytest.raises(ValidationError) as error:
        Outer.model_validate(given)
    assert sentences(error.value, Outer) == {tuple(path.split(".")): sentence}


@pytest.mark.parametrize("word", ["DP", "dp", "Dp_Encrypted", "LDP"])
def test_a_word_is_suggested_whatever_its_case(word: str) -> None:
    words = Allowed(words=("rr", "dp_encrypt"))
    said = "is not one of rr, dp_encrypt (did you mean dp_encrypt?)"
    assert words.complaint(word) == said


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        (Allowed(number="number", interval="[0, 3)"), True, "is not a number in [0, 3)"),
        (Allowed(text="text"), {"a": 1}, "is not text"),
        (Allowed(text="text"), None, "is not text"),
        (
            Allowed(words=("auto", "all"), number="whole number", interval="[1, inf)"),
            0,
            "is outside [1, inf) and not auto or all",
        ),
        (
            Allowed(words=("oue", "hadamard")),
            "HADAMRD",
            "is not one of oue, hadamard (did you mean hadamard?)",
        ),
        (
            Allowed(words=("dpsomethingelse", "dp_encrypt")),
            "dp",
            "is not one of dpsomethingelse, dp_encrypt (did you mean dp_encrypt?)",
        ),
    ],
)
def test_a_complaint_fits_the_kind_of_the_value(
    field: Allowed, value: object, complaint: str
) -> None:
    assert field.complaint(value) == complaint


class Noise(Block):
    dp_eps: float = 3.0
    target_epsilon: float = 2.0


class Step(Block):
    lr: float = 0.5


class Kind(Choice):
    BLOCKS: ClassVar[dict[str, str | None]] = {"few": "few", "all": None}
    name: Literal["few", "all"] = "all"
    few: Step = Field(default_factory=Step)
    scale: Annotated[float, Under("name", "few")] = 7.0


class Study(Settings):
    noise: Noise = Field(default_factory=Noise)
    step: Step = Field(default_factory=Step)
    kind: Kind = Field(default_factory=Kind)
    either: Noise | bool = False
    weights: dict[Literal["up", "down"], float] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("given", "path", "start"),
    [
        (
            {"epsilon": 3},
            ("epsilon",),
            "epsilon = 3 is not a known key (did you mean noise.target_epsilon?); the keys are",
        ),
        (
            {"step": {"Learning_Rate": 3}},
            ("step", "Learning_Rate"),
            "step.Learning_Rate = 3 is not a known key (did you mean step.lr?); the keys of step",
        ),
        (
            {"step": {"noise.dp_eps": 3}},
            ("step", "noise.dp_eps"),
            "step.noise.dp_eps = 3 is not a known key; the keys of step",
        ),
        (
            {"weights": {"upp": 1.0}},
            ("weights", "upp"),
            "weights.upp is not a known key (did you mean up?); the keys are up, down",
        ),
        ({"lr": 3}, ("lr",), "lr = 3 is not a known key (did you mean step.lr"),
        ({"wing:flap": 3}, ("wing:flap",), "wing:flap = 3 is not a known key; the keys are"),
        ({"wing:3": None}, ("wing:3",), "wing:3 is not a key with a value; a space is missing"),
        ({"wing": {"flap": 3}}, ("wing",), "wing is not a known key; the keys are"),
        ({"wing": None}, ("wing",), "wing = null is not a known key; the keys are"),
        ({"noise.wing": 3}, ("noise.wing",), "noise.wing = 3 is not a known key (did you mean"),
        (
            {"noise.dp_eps": 4},
            ("noise.dp_eps",),
            "noise.dp_eps = 4 is a key of the block noise: write it inside that block",
        ),
        ({"kind": {"name": None}}, ("kind", "name"), "kind.name = null is not one of few, all"),
    ],
)
def test_a_wrong_key_is_looked_for_where_it_can_be(
    given: dict[str, Any], path: tuple[str, ...], start: str
) -> None:
    with pytest.raises(ValidationError) as error:
        Study.model_validate(given)
    found = sentences(error.value, Study)
    assert list(found) == [path]
    assert found[path].startswith(start)


class Titled(Block):
    name: str = "none"
    number: int = 7
    step: Step = Field(default_factory=Step)


class Titles(Settings):
    step: Step = Field(default_factory=Step)
    titled: Titled = Field(default_factory=Titled)
    of: dict[str, Titled] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"step": "lr:3"}, "a space is missing after the colon"),
        ({"titled": "name:few"}, "a space is missing after the colon"),
        ({"titled": "few"}, "its name is titled.name: write `titled: {name: few}`"),
        ({"titled": "own:few"}, "its name is titled.name: write `titled: {name: own:few}`"),
        ({"titled": "step.lr:3"}, "a space is missing after the colon"),
        ({"titled": 11}, "its number is titled.number: write `titled: {number: 11}`"),
        ({"titled": True}, "the keys of titled are name, number, step"),
        ({"of": {"x": 11}}, "its number is of.x.number: write `x: {number: 11}`"),
        ({"step": "few"}, "the keys of step are lr"),
    ],
)
def test_a_text_in_place_of_a_block_has_one_hint(given: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValidationError) as error:
        Titles.model_validate(given)
    (sentence,) = sentences(error.value, Titles).values()
    assert sentence.endswith(f" is not a block of keys; {hint}")


def test_the_path_of_a_key_begins_with_every_block_around_it() -> None:
    assert [".".join(path) for path in keys(Titles, ("own",))] == [
        "own.step.lr", "own.titled.name", "own.titled.number", "own.titled.step.lr",
        "own.of.NAME.name", "own.of.NAME.number", "own.of.NAME.step.lr",
    ]  # fmt: skip


def test_a_block_is_never_changed_in_place() -> None:
    noise = Noise(dp_eps=5.0)
    with pytest.raises(JobError, match=r"^dp_eps = 4\.0 cannot be set in place: use job\.with_"):
        noise.dp_eps = 4.0
    with pytest.raises(ValidationError, match=r"(?s)Noise.*epsilon.*frozen"):
        noise.epsilon = 4.0  # type: ignore[attr-defined]
    assert noise == Noise(dp_eps=5.0)
    assert not hasattr(noise, "epsilon")


def test_only_a_field_for_one_block_is_a_block() -> None:
    blocks = {name: block_of(field) for name, field in Study.model_fields.items()}
    assert blocks == {"noise": Noise, "step": Step, "kind": Kind, "either": None, "weights": None}


def test_a_key_without_effect_is_named_only_if_it_was_changed() -> None:
    kinds = (Kind(), Kind(scale=5.0), Kind(name="few", scale=5.0))
    assert [list(kind.without_effect()) for kind in kinds] == [[], [("scale", "name")], []]


class Listed(Settings):
    at: list[float] | None = None
    names: list[str] | None = None
    count: int | None = Field(None, ge=3)
    null_first: None | int = None  # noqa: RUF036
    nulls_first: None | list[int] = None  # noqa: RUF036
    shares: dict[Literal["up", "down"], float] | None = None


def test_a_list_or_null_is_described_so() -> None:
    told = {name: str(allowed(field)) for name, field in Listed.model_fields.items()}
    assert told == {
        "at": "a list of numbers or null", "names": "a list of text or null",
        "count": "a whole number in [3, inf) or null", "null_first": "a whole number or null",
        "nulls_first": "a list of whole numbers or null",
        "shares": "a mapping of up, down to a number",
    }  # fmt: skip


class Kept(Stored):
    what = "a note"
    share: float
    count: int = 0


def test_a_saved_result_is_read_as_it_was_written_or_refused() -> None:
    kept = Kept(share=0.1 + 0.2, count=2**60)
    assert Kept.read(kept.written(), "note.json") == kept
    texts = (b'{"share": "0.3"}', b'{"share": 1, "count": true}', b'{"count": 1}', b"[]", b"{")
    for damaged in texts:
        with pytest.raises(DataInvalid, match=r"^note.json is damaged: it is not a note$"):
            Kept.read(damaged, "note.json")
