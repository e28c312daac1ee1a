"""A job's text form: strict reading, settings on top, and writing that loses nothing."""

from __future__ import annotations

import copy
import pickle
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedveil.errors import JobError
from fedveil.federated.blocks import MODELS
from fedveil.federated.job import Job
from fedveil.protections.signds import SignDSSettings
from fedveil.settings import allowed, yaml_file
from fedveil.vertical.job import VerticalJob
from hostile_files import bounded
from job_checks import POSITIONS, attempt, load, problems, vectors

# --- settings on top ----------------------------------------------------------------------------

HELD = "protection: {name: dp_encrypt, dp_encrypt: {dp_eps: 9}, signds: {sign_k: 0.2}}"


def test_a_position_is_picked_with_its_defaults_and_the_other_blocks_stay():
    job = load(HELD, "protection=signds")
    assert job.protection.name == "signds"
    assert job.protection.signds == SignDSSettings()
    assert job.protection.dp_encrypt.dp_eps == 9
    assert load(HELD, "protection.name=signds").protection.signds.sign_k == 0.2


def test_a_position_that_is_chosen_already_keeps_its_settings():
    assert load(HELD, "protection=dp_encrypt").protection.dp_encrypt.dp_eps == 9


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_whole_blocks_are_set_before_single_keys(order: tuple[int, int]):
    settings = ["protection=signds", "protection.signds.sign_k=0.1"]
    assert load(HELD, *(settings[i] for i in order)).protection.signds.sign_k == 0.1


def test_settings_of_several_kinds():
    job = load(
        "protection: rr\ntraining: {lr: 0.5, batch_size: 7}\nserver:\nsimulation:\n",
        "training={lr: 1e-2, epochs: 3}",
        "protection.unary.cells=2",
        "simulation.dropouts.masked=0.1",
        "simulation.dropouts.unmask=.02",
        "server.optimizer=none",
        "seed=1",
        "seed=2",
        " name = a=b ",
        "model=a.b:c",
        "privacy.max_epsilon=null",
    )
    assert (job.training.lr, job.training.epochs, job.training.batch_size) == (0.01, 3, 7)
    assert (job.protection.name, job.protection.unary.cells) == ("rr", 2)
    assert job.simulation.dropouts == {"masked": 0.1, "unmask": 0.02}
    assert (job.server.optimizer, job.seed, job.name, job.model) == ("none", 2, "a=b", "a.b:c")


@pytest.mark.parametrize(("override", "sentence"), vectors("setting_sentences.txt"))
def test_a_setting_that_cannot_be_applied(override: str, sentence: str):
    assert problems("name: n", override) == [sentence]


def test_a_setting_mends_what_the_file_has_wrong():
    assert load("training: {lr: fast}", "training.lr=0.1") == Job()
    assert load("protection: sgnds", "protection=not_encrypt") == Job()
    assert problems("clients: 3", "clients.number=4") == [
        "clients = 3 is not a block of keys; its number is clients.number: write `clients: "
        "{number: 3}`"
    ]


# --- YAML ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.e-3", ".1e-2", "+1e-3", "0.001", "1_0e-4"])
def test_numbers_with_an_exponent(text: str):
    assert load(f"training: {{lr: {text}}}").training.lr == 0.001


@pytest.mark.parametrize("text", ["1" * 500_000 + "x", "1_" * 250_000 + "x", "1" * 500_000 + ".x"])
def test_a_long_text_of_digits_is_read_once(text: str):
    """Some patterns for numbers try every place where the digits could be cut in two."""
    with bounded():
        (problem,) = problems(f"seed: {text}")
    assert problem.endswith("... is not a whole number in [0, inf)")


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("a: [1\nb: 2", ", line 2, column 2: expected ',' or ']', but got ':'"),
        ("seed: 1\nseed: 2", ", line 2: the key seed is given twice"),
        ("training:\n  lr: 1\n  epochs: 1\n  lr: 2", ", line 4: the key lr is given twice"),
        ("3: 4", ", line 1: the key 3 is not text"),
        ("# rounds: 3\n", " is empty: it needs at least one key with a value"),
        ("- 1", " holds [1], not keys with values"),
        ("word", " holds 'word', not keys with values"),
        (
            "rounds = 3",
            " holds 'rounds = 3', not keys with values; write a key and its value like this: "
            "`rounds: 20`",
        ),
        (
            "rounds:3",
            " holds 'rounds:3', not keys with values; a space is missing after the colon in line "
            "1: 'rounds:3'",
        ),
        (
            "seed: 1\nrounds:3\nmodel: mlp",
            ", line 3, column 1: could not find expected ':'; a space is missing after the colon "
            "in line 2: 'rounds:3'",
        ),
        (
            "training:\n  epochs：1\n  lr: 0.1",
            ", line 3, column 5: mapping values are not allowed here; write `: ` in place of the "
            "full-width colon in line 2: 'epochs：1'",
        ),
        (
            "seed: 1\n\tmodel: mlp",
            ", line 2, column 1: found character '\\t' that cannot start any token; line 2 is "
            "indented by a tab: use spaces",
        ),
        (
            '"""A model."""\n\nimport torch\n',
            ", line 1, column 3: this is not YAML: a line such as `rounds: 3` is needed here",
        ),
        (
            "seed: 1\n---\nseed: 2",
            ", line 2, column 1: a second document begins here: write all keys in one, without ---",
        ),
        (
            "seed: !!python/object/apply:os.getcwd []",
            ", line 1, column 7: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object/apply:os.getcwd'",
        ),
    ],
)
def test_what_is_wrong_with_the_text_is_said_with_its_place(text: str, ending: str):
    (sentence,) = problems(text)
    assert sentence.endswith(ending)


def test_several_keys_given_twice_are_all_named():
    assert len(problems("seed: 1\nseed: 2\nrounds: 1\nrounds: 2")) == 2


@pytest.mark.parametrize(
    "text",
    ["seed: !!int abc", "a: !!bool x", "a: !!timestamp x", f"seed: {'9' * 6000}", "[" * 2000],
)
def test_text_that_the_parser_chokes_on(text: str):
    (sentence,) = problems(text)
    assert "\n" not in sentence


PIECES = ("[", "]", "{", "}", ": ", "? ", ", ", "a", "\n", "\n  ", "- ", "'y'", "&k ", "x" * 1100)


def tokens(loader: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    try:
        while loader.check_token():
            token = loader.get_token()
            found.append((type(token), token.start_mark.index, token.end_mark.index))
    except yaml.YAMLError as error:
        found.append((str(error),))
    return found


@given(st.lists(st.sampled_from(PIECES), max_size=25))
@example(["x" * 1100, ": ", "a"])
@example(["[", "\n", "a", ": ", "]"])
def test_keys_are_found_as_by_pyyaml(pieces: list[str]):
    text = "".join(pieces)
    assert tokens(yaml_file._Loader(text, 100)) == tokens(yaml.SafeLoader(text))


def test_a_key_that_means_yes_or_no_is_text():
    """A party in Norway is called NO."""
    text = "on: 1\nOff: 2\nyes: 3\nNO: 4\nOFF: 5\n"
    found = yaml_file.mapping(text, "x")
    assert found == {"on": 1, "Off": 2, "yes": 3, "NO": 4, "OFF": 5}
    assert yaml_file.mapping(yaml_file.write(found), "x") == found
    for text, said in (("NO: 1\nNO: 2", "line 2: the key NO is given twice"),
                       ("True: 1", "line 1: the key True is not text")):  # fmt: skip
        with pytest.raises(JobError, match=said):
            yaml_file.mapping(text, "x")


def test_dates_are_text():
    assert load("name: 2024-01-01").name == "2024-01-01"


def test_a_key_that_would_break_the_line_is_escaped():
    for text in ('clients: {"a\\nb": 1}', 'seed: 1\n"a\\nb": 1\n"a\\nb": 2'):
        (sentence,) = problems(text)
        assert r"'a\nb'" in sentence
        assert "\n" not in sentence
    (sentence,) = problems("", "clients.a\nb=1")
    assert "\n" not in sentence


def test_anchors_and_merges_work():
    job = load("training: &t {lr: 0.5}\nclients: {number: &n 7}\nseed: *n")
    assert (job.training.lr, job.seed) == (0.5, 7)


def test_a_block_in_two_places_is_set_in_one():
    job = load("training: &t {lr: 0.5}\nserver: *t", "training.lr=0.25", "server={tau: 0.5}")
    assert (job.training.lr, job.server.lr, job.server.tau) == (0.25, 0.5, 0.5)


@pytest.mark.parametrize(
    "text",
    ["training: &t {lr: *t}", "fl_name: a\nround: &t {x: *t}", "a: &s [&t [&u [*s, *t, *u]], *t]"],
)
def test_a_block_that_holds_itself(text: str):
    (sentence,) = problems(text)
    place = r", line \d, column \d+: the alias [st] is inside the block that it names$"
    assert re.search(place, sentence)


def test_a_written_key_is_that_of_its_own_value():
    """True, 1 and 1.0 are equal in Python, and are different texts."""
    assert [yaml_file.write({"a": [v]}) for v in (True, 1, 1.0)] == [
        f"a:\n- {text}\n" for text in ("true", "1", "1.0")
    ]


def test_a_file_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(JobError, match=r"nothing\.yaml cannot be read: No such file or directory$"):
        Job.load(tmp_path / "nothing.yaml")
    with pytest.raises(JobError, match=r"is a folder, not a job file$"):
        Job.load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(JobError, match=r"latin\.yaml is not UTF-8 text$"):
        Job.load(tmp_path / "latin.yaml")


# --- nothing is lost, nothing else is raised ----------------------------------------------------

AWKWARD = [
    "1e3",
    "null",
    "~",
    "2024-01-01",
    "yes",
    "12:30",
    "0x1f",
    "<<",
    "=",
    "a: b",
    "#a",
    "é'\"",
]
NAMES = st.sampled_from(AWKWARD) | st.text(min_size=1, max_size=20).filter(
    lambda name: (
        not any(ord(c) < 32 or ord(c) == 127 or c in "/\\" for c in name) and name.isprintable()
    )
)
POSITIVE = st.floats(1e-300, 1e300)
#: A smaller learning rate is refused.
RATES = st.floats(1e-30, 1e300)
JOBS = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES,
        "seed": st.integers(0, 2**70),
        "rounds": st.integers(1, 10**9),
        "clients": st.fixed_dictionaries(
            {}, optional={"number": st.integers(100, 10**6), "fraction": st.floats(0.5, 1)}
        ),
        "model": st.sampled_from([*MODELS, "a.b:c"]),
        "training": st.fixed_dictionaries(
            {}, optional={"lr": RATES, "epochs": st.integers(1, 9), "engine": st.just("vmap")}
        ),
        "server": st.fixed_dictionaries(
            {}, optional={"tau": POSITIVE, "optimizer": st.sampled_from(["none", "yogi"])}
        ),
        "protection": st.sampled_from(POSITIONS)
        | st.fixed_dictionaries(
            {"name": st.sampled_from(POSITIONS)},
            optional={
                "signds": st.fixed_dictionaries({"sign_k": st.floats(1e-9, 0.25)}),
                "dp_encrypt": st.fixed_dictionaries({"dp_eps": POSITIVE}),
            },
        ),
        "simulation": st.fixed_dictionaries(
            {"workers": st.just("auto") | st.integers(0, 64)},
            optional={"dropouts": st.dictionaries(st.just("masked"), st.floats(0, 0.99))},
        ),
        "privacy": st.fixed_dictionaries({"max_epsilon": st.none() | POSITIVE}),
    },
)


@given(JOBS)
def test_a_written_job_loads_back_equal(data: dict[str, Any]):
    job = Job(**data)
    text = job.to_yaml()
    again = load(text)
    assert again == job
    assert again.to_yaml() == text
    assert pickle.loads(pickle.dumps(job)) == copy.deepcopy(job) == job


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["signds", "auto", "adam", "by_client"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(sorted({n for path in allowed.keys(Job) for n in path}))
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*Job.model_fields, "fl_name", "oops"]), JUNK, max_size=4))
@settings(max_examples=80)
def test_junk_is_a_job_or_one_sentence_for_each_problem(data: dict[str, Any]):
    job, found = attempt(lambda: Job(**data))
    assert (job is None) == bool(found)
    assert len(set(found)) == len(found)
    assert not any("\n" in sentence for sentence in found)
    if job is not None:
        assert load(job.to_yaml()) == job


@given(st.text(alphabet="ab:{}[]&*!#-|>%@`'\"\n\t ,?1.e~", max_size=30))
def test_any_text_is_a_job_or_a_job_error(text: str):
    job, found = attempt(lambda: load(text))
    assert (job is None) == bool(found)
    assert all(sentence and "\n" not in sentence for sentence in found)


@pytest.mark.parametrize("key", ["rounds", "name", "clients.number", "training.lr"])
@pytest.mark.parametrize("form", ["9", "-9", "0xf", "0b1", "59:59"])
def test_a_number_that_nobody_writes_is_one_sentence(key: str, form: str):
    """Python would not show it, or take a second to make it."""
    number = form + form[-1] * 5000 if ":" not in form else ":".join(["59"] * 5000)
    (sentence,) = problems(put_together(key, number))
    assert re.search(r"line \d, column \d+: a whole number has at most 64 characters$", sentence)
    assert load(f"seed: {9 * 10**62}").seed == 9 * 10**62


def put_together(key: str, value: str) -> str:
    first, _, rest = key.partition(".")
    return f"{first}:\n  {rest}: {value}" if rest else f"{first}: {value}"


# --- aliases that stand for more than a file can hold -------------------------------------------


def bomb(levels: int, each: str, entry: str) -> str:
    """Every block names the one before it nine times: 9^levels values in a few hundred bytes."""
    lines = [f"a0: &a0 {entry}"]
    for level in range(1, levels + 1):
        names = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {each.format(names)}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("each", "entry"), [("[{}]", "[lol]"), ("{{<<: [{}]}}", "{x: 1}"), ("{{x: [{}]}}", "{x: 1}")]
)
def test_aliases_that_stand_for_too_much_end_at_once(
    each: str, entry: str, monkeypatch: pytest.MonkeyPatch
):
    made = 0
    construct = yaml_file._Loader.construct_object

    def counted(self: Any, node: Any, deep: bool = False) -> Any:
        nonlocal made
        made += 1
        return construct(self, node, deep)

    monkeypatch.setattr(yaml_file._Loader, "construct_object", counted)
    for levels in (4, 9):  # without the limit, the first would still end
        (sentence,) = problems(bomb(levels, each, entry))
        assert sentence.endswith("the aliases up to here stand for more than 10000 values")
        assert ", line 5, column " in sentence
        assert made == 0


def test_a_text_that_is_read_again_is_as_it_was_and_names_its_own_file():
    text = "a: &x {b: [1]}\nc: *x"
    first = yaml_file.mapping(text, "one.yaml")
    first["a"]["b"].append(2)
    first["a"]["e"] = 7
    first["d"] = 3
    assert yaml_file.mapping(text, "two.yaml") == {"a": {"b": [1]}, "c": {"b": [1]}}
    for source in ("one.yaml", "two.yaml"):
        with pytest.raises(JobError, match=f"^{source}, line 2: the key a is given twice$"):
            yaml_file.mapping("a: 1\na: 2", source)
    assert len(yaml_file.mapping("{a: 1, b: 2}", "x", 5)) == 2
    with pytest.raises(JobError, match="more than 4 keys and values"):
        yaml_file.mapping("{a: 1, b: 2}", "x", 4)


def test_aliases_within_the_bound_are_read():
    text = f"name: &n x\nlist: [{', '.join(['*n'] * 10_000)}]"
    assert problems(text)[0].startswith("list = ['x', 'x', ")
    (sentence,) = problems(text.replace("]", ", *n]"))
    assert sentence.endswith("the aliases up to here stand for more than 10000 values")


def test_a_file_with_more_values_than_anybody_writes_is_refused(tmp_path: Path):
    entries = ["name:", *["- a: 1"] * 3_332]  # the mapping, its key, its list, and three for each
    assert problems("\n".join(entries))[0].startswith("name = [{'a': 1}, {'a': 1}, ")  # 9,999
    (sentence,) = problems("\n".join([*entries, "seed: 1", "rounds: 2"]))
    assert sentence.endswith(
        "line 3335, column 1: there are more than 10,000 keys and values up to here"
    )


def test_a_job_of_megabytes_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def parsed(*_: object) -> None:
        raise AssertionError("it is parsed")

    monkeypatch.setattr(yaml_file, "_parse", parsed)
    (tmp_path / "job.yaml").write_text("a: b # comment\n" * 3_500_000)
    with pytest.raises(JobError, match="it has 52,500,000 bytes; the limit is 1,048,576"):
        Job.load(tmp_path / "job.yaml")


@pytest.mark.parametrize("text", ['name: "\\uD800"', '"\\uDFFF": 1', 'name: ["a\\uDC80b"]'])
def test_half_of_a_character_is_refused(text: str):
    (sentence,) = problems(text)
    assert sentence.endswith(r"a text holds half of a character (\uD800 to \uDFFF)")


def test_a_file_has_the_limits_that_its_reader_sets(tmp_path: Path) -> None:
    """Aliases repeat values that are counted once, and have a limit of their own."""
    path = tmp_path / "small.yaml"
    path.write_text("a: 1\nb: 2\n")
    assert yaml_file.read(path, 10, 5) == {"a": 1, "b": 2}
    with pytest.raises(JobError, match="more than 4 keys and values"):
        yaml_file.read(path, 10, 4)
    with pytest.raises(JobError, match="it has 10 bytes; the limit is 9"):
        yaml_file.read(path, 9, 5)
    assert yaml_file.mapping("a: &x [1, 2]\nb: *x\n", "it", 6) == {"a": [1, 2], "b": [1, 2]}


def test_a_block_of_both_kinds_of_jobs_makes_no_job_the_other_kind(tmp_path: Path) -> None:
    """Both kinds have a block `privacy`, and only vertical jobs have a block `task`."""
    other = VerticalJob.model_fields
    for text, refused in (("privacy: {delta: 7}", False), ("task: {name: tables}", True)):
        (tmp_path / "job.yaml").write_text(text)
        with pytest.raises(JobError, match="is vertical") if refused else nullcontext():
            yaml_file.refuse_other_kind(tmp_path / "job.yaml", Job, other, "is vertical")
