"""Text to tokens, back, and to windows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.errors import DataInvalid, DataUnavailable, InvalidValue
from fedveil.language import text
from fedveil.language.text import ByteTokenizer, PairTokenizer, Tokenizer

CORPUS = [b"the cat sat on the mat\n" * 40, "über die Brücke, über den Fluß\n".encode() * 20]
PAIRS = PairTokenizer.train(CORPUS, 300)
#: Several line ends or blanks in a row are one token.
SPACED = PairTokenizer.train([b"ab  12\n\n\nab   12\n\n" * 40], 300)
#: It leaves numbers of its vocabulary unused.
SHORT = PairTokenizer.train([b"abab cdcd" * 20], 300)
TOKENIZERS: list[Tokenizer] = [ByteTokenizer(), PAIRS, SPACED]
#: Line ends, blanks and bytes that are no UTF-8 come often, as pieces are cut near them.
HARD = st.lists(
    st.one_of(st.binary(max_size=12), st.sampled_from([b"\n", b"\n\n", b"  ", b" the", b"\xff"])),
    max_size=30,
).map(b"".join)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(documents=st.lists(HARD, max_size=4))
def test_any_bytes_come_back(tokenizer: Tokenizer, documents: list[bytes]) -> None:
    tokens = tokenizer.encode(documents)
    assert tokens.dtype == np.int64
    end = tokenizer.vocabulary - 1
    cuts = np.flatnonzero(tokens == end)
    assert len(cuts) == len(documents)
    parts = np.split(tokens, cuts + 1)
    pieces = tokenizer.pieces()
    assert len(pieces) == tokenizer.vocabulary
    assert [text.join(part, pieces) for part in parts[:-1]] == documents
    assert len(parts[-1]) == 0


@pytest.mark.parametrize("tokenizer", [PAIRS, SPACED])
@given(document=HARD)
def test_cutting_into_pieces_changes_no_token(tokenizer: PairTokenizer, document: bytes) -> None:
    whole = tokenizer.encode([document])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_PIECE_BYTES", 3)
        cut = tokenizer.encode([document])
    assert whole.tolist() == cut.tolist()


def test_blank_lines_at_the_edge_of_a_piece_are_not_cut_apart() -> None:
    assert {b"\n\n", b"\n\n\n", b"  "} <= set(SPACED.pieces())
    for blank in (b"\n\n", b"\n\n\n"):
        document = b"a" * text._PIECE_BYTES + blank + b"ab"
        assert SPACED.pieces().index(blank) in SPACED.encode([document])


def test_frequent_words_are_one_token() -> None:
    pieces = PAIRS.pieces()
    assert b" the" in pieces
    assert " über".encode() in pieces
    assert len(PAIRS.encode(CORPUS)) < sum(map(len, CORPUS)) / 2


def test_every_byte_has_a_token_of_its_own() -> None:
    for tokenizer in TOKENIZERS:
        assert {bytes([value]) for value in range(256)} <= set(tokenizer.pieces())


def test_no_token_spans_a_letter_and_a_digit_and_line_ends_are_one() -> None:
    pieces = PairTokenizer.train([b"ab12 ab12\n\n" * 40], 280).pieces()
    assert {b"ab", b"12", b" ab", b"\n\n"} <= set(pieces)
    assert not any(piece and re.search(rb"[a-z][0-9]", piece) for piece in pieces)
    assert ByteTokenizer().pieces()[-1] is None


def test_a_short_text_leaves_the_rest_of_the_vocabulary_unused() -> None:
    tokenizer = PairTokenizer.train([b"ab ab ab"], 1000)
    pieces = tokenizer.pieces()
    assert len(pieces) == tokenizer.vocabulary == 1000
    assert pieces[-1] is None
    assert pieces.count(None) > 700
    assert tokenizer.encode([b"ab"]).max() == 999
    again = PairTokenizer.from_bytes(tokenizer.to_bytes(), 1000)
    assert again.encode([b"ab"]).max() == 999, "the end of a document stays what was learnt"


def test_a_tokenizer_is_the_same_in_another_process_and_from_its_file() -> None:
    script = (
        "import sys; from fedveil.language.text import PairTokenizer;"
        f"sys.stdout.buffer.write(PairTokenizer.train({CORPUS!r}, 300).to_bytes())"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert other == PAIRS.to_bytes()
    again = PairTokenizer.from_bytes(other, 300)
    assert again.pieces() == PAIRS.pieces()
    assert again.encode(CORPUS).tolist() == PAIRS.encode(CORPUS).tolist()


def test_a_damaged_tokenizer_is_refused() -> None:
    with pytest.raises(DataInvalid, match="the tokenizer's file cannot be read"):
        PairTokenizer.from_bytes(b"{}", 300)
    with pytest.raises(DataInvalid, match="do not fit in vocabulary = 280"):
        PairTokenizer.from_bytes(PAIRS.to_bytes(), 280)
    size = PAIRS._model.get_vocab_size()
    assert PairTokenizer.from_bytes(PAIRS.to_bytes(), size + 1).pieces()[-1] is None
    with pytest.raises(DataInvalid, match=f"has {size} tokens and the end of a document, which do"):
        PairTokenizer.from_bytes(PAIRS.to_bytes(), size)
    with pytest.raises(InvalidValue, match=re.escape("vocabulary = 256 is outside [257, inf)")):
        PairTokenizer.train(CORPUS, 256)


def tokens(**changed: int) -> Callable[[dict[str, Any]], None]:
    return lambda file: file["model"]["vocab"].update(changed)


def added(text: str) -> Callable[[dict[str, Any]], None]:
    """Return a function that adds a special token, which is in no vocabulary of a model."""
    signs = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    token = {"id": 298, "content": text, "special": True, **signs}
    return lambda file: file["added_tokens"].append(token)


NOT_WHOLE = "its tokens lose or add bytes"
PADDING = {
    "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 7000,
    "pad_type_id": 0, "pad_token": "[PAD]",
}  # fmt: skip
TRUNCATION = {"direction": "Right", "max_length": 100, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            tokens(a=5000),
            "token 'a' has the number 5000, and vocabulary = 300 has numbers up to 298",
        ),
        (tokens(a=299), "its token 'a' has the number 299, and vocabulary = 300 has"),
        (tokens(a=300), "its token 'a' has the number 300, and vocabulary = 300 has"),
        (added("\u0100"), "its token '\\u0100' has a letter above U+00FF, which is no byte"),
        (tokens(**{"\u20ac\n": 290}), "its token '\\u20ac\\n' has a letter above U+00FF, which"),
        (tokens(**{"z" * 99: 70}), "has the number 70, as another token has"),
        (lambda file: file["model"]["vocab"].pop("\xff"), NOT_WHOLE),
        (lambda file: file.update(normalizer={"type": "Lowercase"}), NOT_WHOLE),
        (lambda file: file.update(truncation=TRUNCATION), NOT_WHOLE),
        (lambda file: file.update(padding=PADDING), NOT_WHOLE),
        (
            lambda file: file.update(
                model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}
            ),
            NOT_WHOLE,
        ),
    ],
)
def test_an_edited_tokenizer_is_one_sentence(
    edit: Callable[[dict[str, Any]], None], said: str
) -> None:
    file = json.loads(SHORT.to_bytes())
    assert PairTokenizer.from_bytes(json.dumps(file).encode(), 300).pieces() == SHORT.pieces()
    edit(file)
    with pytest.raises(DataInvalid) as error:
        PairTokenizer.from_bytes(json.dumps(file).encode(), 300)
    assert str(error.value).startswith("the tokenizer's file was edited: its token")
    assert said in str(error.value)
    assert len(str(error.value)) < 200
    assert "\n" not in str(error.value)


def test_text_comes_from_files_in_the_order_of_their_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "one.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes(b"\xff first")
    (tmp_path / "c.md").write_bytes(b"no text")
    (tmp_path / "c.txt").write_bytes(b"third")
    assert text.read(tmp_path) == [b"\xff first", b"second", b"third"]
    assert text.read(tmp_path / "a.txt") == [b"\xff first"]
    with pytest.raises(DataUnavailable, match="is neither a file nor a folder"):
        text.read(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataUnavailable, match=r"contains no \.txt file"):
        text.read(tmp_path / "empty")


def test_the_default_text_is_there_without_any_file() -> None:
    documents = text.read(None)
    assert len(documents) > 50
    assert any(b"lambda" in document for document in documents)
    assert documents == text.read(None)


@given(documents=st.lists(st.binary(max_size=40), max_size=6), fraction=st.floats(0.01, 0.99))
def test_holding_out_loses_nothing(documents: list[bytes], fraction: float) -> None:
    train, test = text.hold_out(documents, fraction)
    assert b"".join(train + test) == b"".join(documents)
    wanted = fraction * sum(map(len, documents))
    # A document on the border is cut at the next line's beginning, at most a document further.
    assert wanted - 41 <= sum(map(len, test)) <= wanted + 1


def test_a_document_on_the_border_is_cut_where_a_line_begins() -> None:
    train, test = text.hold_out([b"one\n", b"two\nthree\nfour\n"], 0.5)
    assert train == [b"one\n", b"two\nthree\n"]
    assert test == [b"four\n"]
    assert text.hold_out([b"on", b"e line only"], 0.5) == ([b"on", b"e li"], [b"ne only"])
    with pytest.raises(InvalidValue, match=re.escape("test_fraction = 1 is outside (0, 1)")):
        text.hold_out([b"one"], 1)


@pytest.mark.parametrize("after", [[], [b""]])
def test_a_text_whose_last_line_is_long_is_cut_inside_it(after: list[bytes]) -> None:
    """Else nothing would be held out, and the run could not begin."""
    assert text.hold_out([b"one\n", b"x" * 95 + b"\n", *after], 0.1) == (
        [b"one\n", b"x" * 86],
        [b"x" * 9 + b"\n", *after],
    )


def test_a_document_cut_in_its_last_line_is_trained_on_whole_if_others_follow() -> None:
    documents = [b"one\n" + b"x" * 20 + b"\n", b"two\n", b"six\nten\n"]
    assert text.hold_out(documents, 0.6) == (documents[:1], documents[1:])


def test_a_document_that_is_held_out_from_its_first_byte_leaves_no_empty_one() -> None:
    """An empty document would be one more end token to learn."""
    assert text.hold_out([b"one\n", b"twenty"], 0.6) == ([b"one\n"], [b"twenty"])


@given(count=st.integers(2, 100), context=st.integers(1, 20))
def test_windows_cover_the_text_once(count: int, context: int) -> None:
    tokens = np.arange(count)
    if count <= context:
        with pytest.raises(DataInvalid, match=f"needs at least {context + 1}"):
            text.windows(tokens, context)
        return
    inputs, labels = text.windows(tokens, context)
    assert inputs.shape == labels.shape == (len(inputs), context)
    covered = inputs.size
    assert inputs.reshape(-1).tolist() == list(range(covered))
    assert labels.reshape(-1).tolist() == list(range(1, covered + 1))
    assert count - context <= covered + 1 <= count
