"""Texts become rows of tokens: each line alone, with its owner and its targets."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_language
from fedveil.data import datasets, text_folder
from fedveil.data.text_folder import TextForm
from fedveil.engine.assembly import load_data
from fedveil.errors import DataInvalid, DataUnavailable, FedveilWarning, ModelInvalid
from fedveil.federated.job import Job
from fedveil.pretrained.model_folder import ModelFolder
from fedveil.pretrained.token_rows import TokenRows


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tokenizers")
    return tiny_language.words_folder(tmp_path_factory.mktemp("words") / "words")


def read(words: Path, folder: Path, train: Sequence[Any], test: Sequence[Any], **more: Any) -> Any:
    texts = tiny_language.text_folder(folder, train, test)
    form = TextForm(
        ModelFolder.of(f"hf:{words}"), more.pop("task", "next_token"), more.pop("length", 5)
    )
    return datasets.load("text_folder", folder=str(texts), texts=form, **more)


def test_a_long_text_is_cut_and_no_example_has_two_texts(words: Path, tmp_path: Path) -> None:
    rows = tiny_language.rows(words, 5)
    text, short = "quiet town tonight by the fire", "a bird"
    ids = [*rows.encode(text), 0]
    data = read(
        words, tmp_path / "x",
        [{"text": text, "client": "b"}, {"text": short, "client": "a"}], [{"text": text}],
    )  # fmt: skip
    pieces = -(-(len(ids) - 1) // 5)
    assert pieces > 2
    assert rows.decode(ids) == text, "the end has no letters"
    assert [t for y in data.train.y[:pieces] for t in y if t != -100] == ids[1:]
    assert [t for x in data.train.x[:pieces] for t in x][: len(ids) - 1] == ids[:-1]
    assert np.array_equal(data.test.x, data.train.x[:pieces])
    assert data.owners.tolist() == [1] * pieces + [0] * (len(data.train) - pieces)
    assert data.classes == 270
    assert data.targets == "tokens"


def test_an_instructions_prompt_is_not_learnt(words: Path, tmp_path: Path) -> None:
    rows = tiny_language.rows(words, 11)
    line = {"prompt": "the cat", "answer": " sat"}
    data = read(words, tmp_path / "x", [line] * 2, [line], task="instruction", length=11)
    prompt, answer = rows.encode(line["prompt"]), rows.encode(line["answer"])
    whole, known = [*prompt, *answer, 0], len(prompt) - 1
    rest = 11 - known - len(answer) - 1
    assert data.train.x[1].tolist() == [*whole[:-1], *[0] * (12 - len(whole))]
    assert data.train.y[1].tolist() == [-100] * known + [*answer, 0] + [-100] * rest
    assert data.owners is None


def test_the_test_part_decides_the_classes(words: Path, tmp_path: Path) -> None:
    lines = [{"text": f"rain {i}", "label": label} for i, label in enumerate(["b", 0, "aa"])]
    data = read(words, tmp_path / "x", lines, lines, task="sequence_classification",
                targets="class")  # fmt: skip
    assert data.train.y.tolist() == [2, 0, 1]
    assert data.classes == 3
    with pytest.raises(DataInvalid, match=r"line 1: its label '4' is in no line of test.jsonl"):
        read(words, tmp_path / "y", [{"text": "a", "label": 4}], lines,
             task="sequence_classification", targets="class")  # fmt: skip


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("bad", [
    {"text": 7}, {"words": "a", "client": 3}, [], {"text": "ok", "client": ""},
    {"text": "", "client": "b"}, {"text": 7, "client": "a"},
])  # fmt: skip
def test_alone_an_invalid_line_counts_for_nothing(
    bad: Any, at: int, words: Path, tmp_path: Path
) -> None:
    """It raises no error and moves no other example. Without a client, its neighbour owns it."""
    form = TextForm(ModelFolder.of(f"hf:{words}"), "next_token", 2, by_client=True)
    lines = [{"text": "the cat", "client": "b"}, {"text": "a bird", "client": "a"}]
    texts = tiny_language.text_folder(tmp_path / "good", lines, lines)
    good = text_folder.read(str(texts), form, apart=True)
    assert len(good.train) > 2, "a line has several examples"
    texts = tiny_language.text_folder(tmp_path / "bad", [*lines[:at], bad, *lines[at:]], lines)
    data = text_folder.read(str(texts), form, apart=True)
    place = len(good.train) if at else 0
    assert data.train.usable.tolist() == [i != place for i in range(len(good.train) + 1)]
    assert np.array_equal(np.delete(data.train.x, place, 0), good.train.x)
    assert np.array_equal(np.delete(data.train.y, place, 0), good.train.y)
    assert not data.train.x[place].any()
    assert np.delete(data.owners, place).tolist() == good.owners.tolist()
    owner = bad.get("client") if isinstance(bad, dict) else None
    assert data.owners[place] == {"a": 0, "b": 1}.get(owner, 0 if at else 1)


def test_a_job_with_the_unit_example_reads_each_line_alone(words: Path, tmp_path: Path) -> None:
    lines = [{"text": "rain"}, {"text": "the cat", "client": "b"}, {"text": "a", "client": "c"}]
    texts = tiny_language.text_folder(tmp_path / "x", lines, lines[1:])
    unit = {"privacy.unit": "example", "protection": "dp_encrypt", "training.sampling_rate": 0.5}
    settings = tiny_language.settings(words, texts, **unit, **{"training.epochs": 1})
    train = load_data(Job.load(None, settings)).train
    assert train.usable is not None
    assert train.usable.tolist() == [False, *[True] * (len(train) - 1)]


def test_alone_no_line_decides_whether_others_have_an_owner(words: Path, tmp_path: Path) -> None:
    """Without `split: by_client`, one line with a client changes nothing for the others."""
    lines = [{"text": "the cat"}, {"text": "a bird"}, {"text": "rain", "client": "c"}]
    data = read(words, tmp_path / "x", lines, lines[:1], apart=True)
    assert data.train.usable.all()
    assert data.owners is None


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("[]", "line 3: it is not a JSON object"),
        ("{", "line 3: "),
        ('{"text": ""}', "line 3: its text is '', but a text is needed"),
        ('{"texts": "a"}', "line 3: it has no text, but a text is needed"),
        ('{"text": "a", "client": 3}', "line 3: its client is 3, but a text is needed"),
        ('{"text": "a", "client": "c"}', "some lines name a client and others do not"),
        ('{"text": "\\ud800"}', "line 3: "),
    ],
)
def test_a_wrong_line_is_one_sentence(
    line: str, sentence: str, words: Path, tmp_path: Path
) -> None:
    texts = tiny_language.text_folder(tmp_path / "x", [{"text": "a"}], [{"text": "a"}])
    with (texts / "train.jsonl").open("a") as file:
        file.write(f"\n \n{line}")
    form = TextForm(ModelFolder.of(f"hf:{words}"), "next_token", 5)
    with pytest.raises(DataInvalid, match=sentence) as caught:
        text_folder.read(str(texts), form)
    assert "train.jsonl" in str(caught.value)


def test_a_text_that_the_tokeniser_refuses_is_an_invalid_line(words: Path, tmp_path: Path) -> None:
    """Without a token for unknown words, the library raises an error of no particular class."""
    library = pytest.importorskip("tokenizers")
    known = library.Tokenizer(library.models.WordLevel({"<end>": 0, "rain": 1}))
    known.pre_tokenizer = library.pre_tokenizers.Whitespace()
    folder = tmp_path / "known"
    shutil.copytree(words, folder)
    known.save(str(folder / "tokenizer.json"))
    lines = [{"text": "rain rain"}, {"text": "dragon"}]
    texts = tiny_language.text_folder(tmp_path / "x", lines, lines[:1])
    form = TextForm(ModelFolder.of(f"hf:{folder}"), "next_token", 3)
    with pytest.raises(DataInvalid, match="line 2: the tokeniser cannot convert it: WordLevel"):
        text_folder.read(str(texts), form)
    train = text_folder.read(str(texts), form, apart=True).train
    assert train.usable is not None
    assert train.usable.tolist() == [True, False]


class Panic(BaseException):
    """A panic of a library written in Rust is no `Exception` either."""


def test_a_text_at_which_the_tokeniser_panics_is_an_invalid_line_alone(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panicking:
        def __init__(self, real: Any) -> None:
            self.real = real

        def encode(self, text: str, **more: Any) -> Any:
            if text == "dragon":
                raise Panic("index out of range")
            return self.real.encode(text, **more)

    begin = TokenRows.__init__

    def init(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self._tokenizer = Panicking(self._tokenizer)

    monkeypatch.setattr(TokenRows, "__init__", init)
    lines = [{"text": "rain rain"}, {"text": "dragon"}, {"text": "cat"}]
    texts = tiny_language.text_folder(tmp_path / "x", lines, lines[:1])
    form = TextForm(ModelFolder.of(f"hf:{words}"), "next_token", 40)
    train = text_folder.read(str(texts), form, apart=True).train
    assert train.usable is not None
    assert train.usable.tolist() == [True, False, True]
    with pytest.raises(DataInvalid, match="line 2: the tokeniser cannot convert it: Panic: index"):
        text_folder.read(str(texts), form)


def test_only_a_line_feed_ends_a_line(words: Path, tmp_path: Path) -> None:
    """Other programs write the characters U+2028 and U+0085 into JSON as they are."""
    texts = tiny_language.text_folder(tmp_path / "x", [], [{"text": "a"}])
    line = '{"text": "the\u2028cat\x85sat"}\n'
    (texts / "train.jsonl").write_bytes((line * 2).replace("\n", "\r\n").encode())
    form = TextForm(ModelFolder.of(f"hf:{words}"), "next_token", 40)
    train = text_folder.read(str(texts), form).train
    ids = tiny_language.rows(words, 40).encode("the\u2028cat\x85sat")
    assert train.x[:, : len(ids)].tolist() == [ids, ids]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"text": "a"}\n'.encode("utf-16"), r"line 1: its byte 1 is 0xff, which is not UTF-8"),
        (b'{"text": "a"}\n{"text": "caf\xe9"}', r"line 2: its byte 14 is 0xe9, which is not UTF-8"),
    ],
)
def test_a_file_in_another_encoding_is_one_sentence(
    words: Path, tmp_path: Path, content: bytes, said: str
) -> None:
    texts = tiny_language.text_folder(tmp_path / "x", [{"text": "a"}], [])
    (texts / "test.jsonl").write_bytes(content)
    form = TextForm(ModelFolder.of(f"hf:{words}"), "next_token", 5)
    with pytest.raises(DataInvalid, match=said):
        text_folder.read(str(texts), form)


def test_a_byte_order_mark_is_no_text(words: Path, tmp_path: Path) -> None:
    texts = tiny_language.text_folder(tmp_path / "x", [{"text": "a"}], [])
    (texts / "test.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\n')
    form = TextForm(ModelFolder.of(f"hf:{words}"), "next_token", 5)
    data = text_folder.read(str(texts), form)
    assert np.array_equal(data.test.x, data.train.x)


LONG = {"prompt": "rain falls on the quiet town tonight", "answer": "yes"}
SHORT = {"prompt": "a", "answer": "b"}


def test_a_prompt_that_leaves_no_room_for_its_answer_is_told(words: Path, tmp_path: Path) -> None:
    """Nothing is learnt from it, and as a test line it makes no part of any metric."""
    with pytest.warns(FedveilWarning) as caught:
        data = read(
            words, tmp_path / "x", [LONG, SHORT, LONG], [SHORT, LONG], task="instruction", length=9
        )
    told = (
        "the prompt leaves no token for the answer. Use a larger language.length or shorter prompts"
    )
    assert [str(warning.message) for warning in caught] == [
        f"{tmp_path}/x/test.jsonl: for 1 of 2 lines, {told}",
        f"{tmp_path}/x/train.jsonl: for 2 of 3 lines, {told}",
    ]
    assert (data.train.y == -100).all(axis=1).tolist() == [True, False, True]
    for train, test, where in (([SHORT], [LONG], "test"), ([LONG], [SHORT], "train")):
        with pytest.raises(
            DataInvalid, match=rf"{where}\.jsonl: for 1 of 1 line, the prompt leaves no token"
        ):
            read(words, tmp_path / where, train, test, task="instruction", length=9)


def test_alone_no_long_prompt_is_told(words: Path, tmp_path: Path) -> None:
    """The number of such training lines, and whether all are, depend on single lines."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedveilWarning)
        data = read(
            words, tmp_path / "x", [LONG], [SHORT], task="instruction", length=9, apart=True
        )
    assert data.train.usable.tolist() == [True]


def test_missing_and_empty_files_are_told(words: Path, tmp_path: Path) -> None:
    form = TextForm(ModelFolder.of(f"hf:{words}"), "next_token", 5)
    with pytest.raises(DataUnavailable, match=r"test\.jsonl"):
        text_folder.read(str(tmp_path), form)
    texts = tiny_language.text_folder(tmp_path / "x", [], [{"text": "a"}])
    with pytest.raises(DataInvalid, match=r"train\.jsonl holds no line"):
        text_folder.read(str(texts), form)
    with pytest.raises(DataInvalid, match="needs one of the tasks"):
        text_folder.read(str(texts), TextForm(form.model, "regression", 5))


def test_a_damaged_tokeniser_is_one_sentence(words: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    copied.mkdir()
    for file in words.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    found = json.loads((copied / "tokenizer.json").read_text())
    (copied / "tokenizer.json").write_text(json.dumps({**found, "model": {"type": "none"}}))
    with pytest.raises(ModelInvalid, match="cannot be loaded"):
        tiny_language.rows(copied, 5)
