"""Sentences about job files that are missing, of another kind, or split by the shell."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fedveil.errors import JobError
from fedveil.settings import yaml_file
from fedveil.settings.settings import Block, Settings


class Mine(BaseModel):
    a: int = 0
    model: str = ""
    block: dict[str, int]


class Other(BaseModel):
    b: int = 0
    model: dict[str, int]


def sentence(call: Any, *given: Any) -> str:
    with pytest.raises(JobError) as error:
        call(*given)
    (problem,) = error.value.problems
    return str(problem)


def test_a_file_that_is_not_there_is_looked_for_beside_it(tmp_path: Path) -> None:
    for name in ("train.yml", "trains.yaml", "other.yaml", "trian.txt"):
        (tmp_path / name).write_text("{}")
    said = sentence(yaml_file.read, tmp_path / "trian.yaml")
    assert said.endswith(f"No such file or directory (did you mean {tmp_path / 'train.yml'}?)")
    said = sentence(yaml_file.read, tmp_path / "seed=3")
    assert said.endswith(f"; --set {tmp_path / 'seed=3'} sets a key of the job")
    (tmp_path / "run").mkdir()
    assert sentence(yaml_file.read, tmp_path / "run").endswith("run is a folder, not a job file")
    (tmp_path / "run" / "job.yaml").touch()
    said = sentence(yaml_file.read, tmp_path / "run")
    assert said.endswith(f"not a job file: its job is {tmp_path / 'run' / 'job.yaml'}")


def test_an_open_quote_is_named_where_it_begins() -> None:
    said = sentence(yaml_file.mapping, "a: 1\nb: 'c\nd: 2\n", "x.yaml")
    assert said == "x.yaml, line 2, column 4: this quote is not closed"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: {eval_net: {}}", "is a vertical job of MindSpore Federated"),
        ("model: {train_net: {}, other: 1}", "is a vertical job of MindSpore Federated"),
        ("{shard_num: 2, join_type: a}", "configures MindSpore Federated's data join"),
        ("{shard_num: 2, a: 1}", None),
        ("model: {net: 1}", None),
        ("model: lenet", None),
    ],
)
def test_a_vertical_file_of_theirs_is_told_from_others(
    text: str, said: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(text)
    if said is None:
        yaml_file.refuse_their_vertical(file)
    else:
        assert f"{file} {said}" in sentence(yaml_file.refuse_their_vertical, file)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("{a: 1, b: 2}", True), ("{b: 2, c: 3}", False), ("{a: 1, model: {x: 1}}", True),
        ("{a: 1, model: m}", False), ("{block: {x: 1}}", False), ("{}", False),
    ],
)  # fmt: skip
def test_a_file_is_of_the_other_kind_if_all_its_strange_keys_are(
    text: str, other: bool, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    given = (file, Mine, Other.model_fields, "is of the other kind")
    if other:
        assert sentence(yaml_file.refuse_other_kind, *given) == f"{file} is of the other kind"
    else:
        yaml_file.refuse_other_kind(*given)


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        (["a={x:", "1}"], "a={x: 1}"), (["b=1", "a=[1,", "2,", "3]", "c"], "a=[1, 2, 3]"),
        (["a={x: 1}", "b"], None), (["a={x:", "1"], None), (["{x:", "1}"], None),
    ],
)  # fmt: skip
def test_a_setting_that_the_shell_has_split_is_put_together(
    words: Sequence[str], whole: str | None
) -> None:
    if whole is None:
        yaml_file.refuse_unquoted(words)
    else:
        said = sentence(yaml_file.refuse_unquoted, words)
        assert said == f'the shell splits a value at spaces. Quote it: --set "{whole}"'


def test_a_value_without_its_equals_sign_is_put_together(tmp_path: Path) -> None:
    there, gone = tmp_path / "job.yaml", tmp_path / "7"
    there.touch()
    said = sentence(yaml_file.refuse_parted, gone, ["seed=3", "rounds"])
    assert said == f"--set rounds {gone} must be written --set rounds={gone}"
    for path, overrides in ((there, ["rounds"]), (None, ["rounds"]), (gone, ["rounds", "seed"]),
                            (gone, ["rounds=7"]), (gone, None)):  # fmt: skip
        yaml_file.refuse_parted(path, overrides)


class Part(Block):
    a: int = 1
    b: int = 2


class Named(Settings):
    parts: dict[str, Part]
    shares: dict[str, float]


def test_a_setting_of_a_named_block_leaves_the_rest_of_it() -> None:
    data = {"parts": {"x": {"a": 3, "b": 4}, "y": {"a": 5}}, "shares": {"u": 0.5}}
    before = deepcopy(data)
    settings = [(("parts", "x", "a"), 6), (("shares", "v"), 0.25), (("parts", "z", "b"), 7),
                (("parts", "y"), {"b": 8})]  # fmt: skip
    assert yaml_file.put(data, settings, Named) == (
        {
            "parts": {"x": {"a": 6, "b": 4}, "y": {"a": 5, "b": 8}, "z": {"b": 7}},
            "shares": {"u": 0.5, "v": 0.25},
        },
        [],
    )
    assert data == before
    deeper = [(("shares", "v", "w"), 1.0), (("parts", "x", "c"), 1)]
    _, unknown = yaml_file.put(data, deeper, Named)
    assert [said.split(" ")[0] for said in unknown] == ["shares.v.w", "parts.x.c"]


def test_a_value_is_removed_with_a_parent_that_is_none() -> None:
    data = {"a": {"x": 1, "y": 2}, "b": 3, 4: 5}
    assert yaml_file.without(data, ("a", "x")) == {"a": {"y": 2}, "b": 3, 4: 5}
    assert yaml_file.without(data, ("b", "x")) == {"a": {"x": 1, "y": 2}, 4: 5}
    assert yaml_file.without(data, ("4",)) == {"a": {"x": 1, "y": 2}, "b": 3}
    assert yaml_file.without(data, ("c", "x")) == data
    deep = {"a": {"b": {"c": {"x": 1, "y": 2}, "z": 3}, "w": 4}, "v": 5}
    left = {"a": {"b": {"c": {"y": 2}, "z": 3}, "w": 4}, "v": 5}
    assert yaml_file.without(deep, ("a", "b", "c", "x")) == left
    assert yaml_file.without(deep, ("a", "b", "c")) == {"a": {"b": {"z": 3}, "w": 4}, "v": 5}
