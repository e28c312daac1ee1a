"""Text for a language model: reading documents, tokenising them, and cutting examples.

Text is bytes throughout, so joining the tokens gives the same bytes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.files import from_home
from fedveil.base.untrusted import MOST_TEXT_BYTES, read_bytes
from fedveil.base.validate import integer, within
from fedveil.data.data_folders import reading
from fedveil.errors import DataInvalid, DataUnavailable, MissingExtra

Tokens: TypeAlias = npt.NDArray[np.int64]
Documents: TypeAlias = Sequence[bytes]

#: Number of tokens: every byte value, and the end of a document.
BYTE_TOKENS = 257

#: The tokeniser reads text as Latin-1, one character for each byte. A token never spans two chunks.
#: A chunk is letters, digits or other signs, each with an optional preceding blank, or line ends,
#: or blanks. The bytes from 128 on, which belong to UTF-8's longer characters, count as letters.
_CHUNK = (
    r" ?[A-Za-z\x{80}-\x{ff}]+| ?[0-9]+| ?[^\sA-Za-z0-9\x{80}-\x{ff}]+"
    r"|\n+|[^\S\n]+(?!\S)|[^\S\n]+"
)
#: Documents are tokenised in pieces of about this size, several at once. They are cut at the
#: beginning of a line: a chunk ends there anyway, so the tokens are those of the whole document.
_PIECE_BYTES = 1 << 16
#: A tokenizer from a file has to return these documents unchanged.
_PROBES = (bytes(range(256)), b"a")


def read(source: str | Path | None) -> list[bytes]:
    """Read a .txt file, or all .txt files in a folder and its subfolders, sorted by path.

    Without a `source`, reads the topics of Python's own `help()`.
    """
    if source is None:
        # Imported late: half a megabyte that few programs need.
        from pydoc_data.topics import topics

        return [topics[name].encode() for name in sorted(topics)]
    path = from_home(source)
    with reading(path):
        if not path.exists():
            raise DataUnavailable(f"text = {str(source)!r} is neither a file nor a folder")
        files = [path] if path.is_file() else sorted(path.rglob("*.txt"))
    if not files:
        raise DataUnavailable(f"text = {str(source)!r} contains no .txt file")
    documents = []
    for file in files:
        with reading(file):
            documents.append(read_bytes(file, MOST_TEXT_BYTES))
    return documents


def hold_out(documents: Documents, fraction: float) -> tuple[list[bytes], list[bytes]]:
    """Split documents into two lists: training documents and held-out documents.

    About the last `fraction` of all bytes is held out, from the start of a line if possible.
    """
    fraction = within("test_fraction", fraction, 0, 1, open_low=True, open_high=True)
    left = round(sum(map(len, documents)) * (1 - fraction))
    for number, document in enumerate(documents):
        if left < len(document):
            cut = document.find(b"\n", left) + 1 or left
            if not any((document[cut:], *documents[number + 1 :])):
                cut = left  # the last line is so long that nothing would be held out
            first, second = document[:cut], document[cut:]
            return (
                [*documents[:number], *([first] if first else [])],
                [*([second] if second else []), *documents[number + 1 :]],
            )
        left -= len(document)
    return list(documents), []


class ByteTokenizer:
    """A tokenizer whose tokens are single bytes."""

    #: Tokens are 0..vocabulary - 1; the last one is the end of a document.
    vocabulary = BYTE_TOKENS

    def encode(self, documents: Documents) -> Tokens:
        """Return the tokens of all documents, each followed by the end token."""
        end = np.array([self.vocabulary - 1])
        parts = [part for text in documents for part in (np.frombuffer(text, np.uint8), end)]
        return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)

    def pieces(self) -> Sequence[bytes | None]:
        return [*(bytes([value]) for value in range(256)), None]


class PairTokenizer:
    """Byte-level byte-pair encoding, with the most frequent pairs of its training text."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        self._model = model
        self.vocabulary = integer("vocabulary", vocabulary, BYTE_TOKENS)
        if model.get_vocab_size() > vocabulary - 1:
            raise DataInvalid(
                f"the tokenizer has {model.get_vocab_size()} tokens and the end of a "
                f"document, which do not fit in vocabulary = {vocabulary}"
            )
        self._pieces = _bytes_of(model.get_vocab(), vocabulary)

    @classmethod
    def train(cls, documents: Documents, vocabulary: int) -> PairTokenizer:
        """Train a tokenizer of at most `vocabulary` tokens on `documents`.

        Equal arguments give equal tokenizers.
        """
        library = _library()
        model = library.Tokenizer(library.models.BPE())
        model.pre_tokenizer = library.pre_tokenizers.Split(library.Regex(_CHUNK), "isolated")
        trainer = library.trainers.BpeTrainer(
            vocab_size=integer("vocabulary", vocabulary, BYTE_TOKENS) - 1,
            initial_alphabet=[chr(value) for value in range(256)],
            show_progress=False,
        )
        model.train_from_iterator(_pieces(documents), trainer)
        return cls(model, vocabulary)

    @classmethod
    def from_bytes(cls, data: bytes, vocabulary: int) -> PairTokenizer:
        """Load a tokenizer from what `to_bytes` returned.

        Raises DataInvalid if `data` is of no tokenizer that returns the bytes of every text.
        """
        try:
            model = _library().Tokenizer.from_str(data.decode())
        except MissingExtra:
            raise
        except Exception as error:  # the library raises Exception itself
            raise DataInvalid(f"the tokenizer's file cannot be read: {error}") from None
        found = cls(model, vocabulary)
        try:
            is_whole = join(found.encode(_PROBES), found.pieces()) == b"".join(_PROBES)
        except Exception:  # such as for a byte without a token
            is_whole = False
        if not is_whole:
            raise DataInvalid("the tokenizer's file was edited: its tokens lose or add bytes")
        return found

    def to_bytes(self) -> bytes:
        """Encode the tokenizer in the JSON format of the `tokenizers` package."""
        return str(self._model.to_str(pretty=True)).encode()

    def encode(self, documents: Documents) -> Tokens:
        parts = []
        for document in documents:
            found = self._model.encode_batch_fast(list(_pieces([document])))
            parts += [np.array(piece.ids, np.int64) for piece in found]
            parts.append(np.array([self.vocabulary - 1], np.int64))
        return np.concatenate([np.empty(0, np.int64), *parts])

    def pieces(self) -> Sequence[bytes | None]:
        """Return each token's bytes, or None for the end token and for each unused token."""
        return self._pieces


Tokenizer: TypeAlias = ByteTokenizer | PairTokenizer


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise MissingExtra("tokenizers", "vertical", "byte-pair encoding") from None
    return tokenizers


def _bytes_of(tokens: Mapping[str, int], vocabulary: int) -> list[bytes | None]:
    """Return the bytes of each token, in the order of the numbers in `tokens`. None has no bytes.

    Raises DataInvalid for a number that two tokens have or that is not below that of the end token,
    the last of the `vocabulary`, and for a token with a letter that stands for no byte.
    """
    found: list[bytes | None] = [None] * vocabulary
    for text, number in tokens.items():
        told = f"the tokenizer's file was edited: its token {text[:20]!a}"
        if number >= vocabulary - 1:
            raise DataInvalid(
                f"{told} has the number {number}, and vocabulary = {vocabulary} has numbers up to "
                f"{vocabulary - 2} for tokens"
            )
        if found[number] is not None:
            raise DataInvalid(f"{told} has the number {number}, as another token has")
        try:
            found[number] = text.encode("latin-1")
        except UnicodeEncodeError:
            raise DataInvalid(f"{told} has a letter above U+00FF, which is no byte") from None
    return found


def _pieces(documents: Iterable[bytes]) -> Iterator[str]:
    for document in documents:
        start = 0
        while start < len(document):
            end = _line_start(document, start + _PIECE_BYTES)
            yield document[start:end].decode("latin-1")
            start = end


def _line_start(document: bytes, position: int) -> int:
    end = document.find(b"\n", position)
    while end != -1 and document[end + 1 : end + 2] == b"\n":
        end += 1
    return len(document) if end == -1 else end + 1


def join(tokens: Iterable[int], pieces: Sequence[bytes | None]) -> bytes:
    """Return the joined bytes of `tokens`. `pieces` has each token's bytes, None for no bytes."""
    return b"".join(pieces[token] or b"" for token in tokens)


def windows(tokens: Tokens, context: int) -> tuple[Tokens, Tokens]:
    """Cut `tokens` into examples. Returns their inputs and labels, both (examples, context).

    An example, the unit of privacy, is a window of `context` tokens. The label of a token is the
    token after it. Windows do not overlap, so each token is an input of at most one example. Tokens
    at the end that do not fill a window are omitted. Both arrays are views of `tokens`.
    """
    context = integer("context", context, 1)
    count = (len(tokens) - 1) // context
    if count < 1:
        raise DataInvalid(
            f"the text has {len(tokens)} tokens, but one window needs at least {context + 1}"
        )
    used = count * context
    return tokens[:used].reshape(count, context), tokens[1 : used + 1].reshape(count, context)
