"""The text encoding and cell separator of a CSV file, from the job or guessed from its beginning.

An uncertain guess is refused, with a sentence that names the key to write.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from fedveil.base.untrusted import MOST_STREAMED_BYTES, Version, opened
from fedveil.data.data_folders import reading
from fedveil.errors import DataInvalid
from fedveil.vertical.task_settings import ReadingSettings

#: A row of 100,000 numbers of 17 digits has about 2 million characters.
MOST_LINE_CHARACTERS: Final = 1 << 24
SEPARATORS: Final = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
_CODECS = {"utf-8": "utf-8-sig", "utf-16": "utf-16", "cp1252": "cp1252", "latin-1": "latin-1"}
_SHOWN = {"utf-8-sig": "UTF-8", "cp1252": "CP1252", "latin-1": "Latin-1"}
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_KNOWN = {
    b"PK\x03\x04": "an Excel workbook or a zip archive", b"\x1f\x8b": "compressed by gzip",
    b"PAR1": "a Parquet file; name it .parquet", b"%PDF": "a PDF document",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook", b"{\\rtf": "a rich text document",
}  # fmt: skip
#: The number of bytes read at a time, and of those at the beginning of a file by which its
#: encoding, and UTF-16 without a byte order mark, is recognised.
_AT_ONCE, _BEGINNING, _HEAD = 1 << 22, 1 << 23, 1 << 16
_SAMPLED_LINES, _SAMPLED_CHARACTERS = 50, 1 << 20


@dataclass(frozen=True)
class CsvFormat:
    """The format of a CSV file: its text encoding, as the name of a codec, and its separator.

    `place` is the path of the file's settings in the job, for messages, or None if the job has
    none. If `version` is given, the file is refused if it has changed since it had this version.
    If `apart` is True, each line is read by itself, so that no row affects another.
    """

    path: str
    encoding: str
    separator: str
    place: str | None
    version: Version | None = None
    apart: bool = False

    @property
    def said(self) -> str:
        named = next(name for name, mark in SEPARATORS.items() if mark == self.separator)
        return f"{_SHOWN.get(self.encoding, 'UTF-16')}, separated by {named}"

    @contextmanager
    def blocks(self) -> Iterator[Iterator[str]]:
        """Context manager: opens the file, and yields its text in blocks of whole lines.

        Raises DataInvalid if a line is too long or is not text of this encoding.
        """
        with reading(Path(self.path)), opened(self.path, MOST_STREAMED_BYTES, self.version) as raw:
            yield self._decoded(raw)

    def _decoded(self, raw: Any) -> Iterator[str]:
        errors = "backslashreplace" if self.apart else "strict"
        decoder, rest = codecs.getincrementaldecoder(self.encoding)(errors), ""
        while True:
            read = raw.read(_AT_ONCE)
            try:
                text = rest + decoder.decode(read, not read)
            except UnicodeDecodeError as error:
                before = raw.tell() - len(error.object) + error.start
                raise DataInvalid(self._unreadable(self._line_at(before))) from None
            end = max(text.rfind("\n"), -1 if "\n" in text else text.rfind("\r", 0, -1)) + 1
            if not read:
                yield from (text,) if text else ()
                return
            if len(text) - end > MOST_LINE_CHARACTERS:
                line = self._line_at(raw.tell())
                raise DataInvalid(
                    f"{self.path}: line {line} has more than {MOST_LINE_CHARACTERS:,} characters; "
                    f"a row of a table must have fewer"
                )
            if end:
                yield text[:end]
            rest = text[end:]

    def _line_at(self, offset: int) -> int:
        """Return the number of the line that contains the byte at `offset`, by reading the file."""
        line, decoder = 1, codecs.getincrementaldecoder(self.encoding)("replace")
        with opened(self.path, MOST_STREAMED_BYTES) as raw:
            while offset > 0 and (read := raw.read(min(_AT_ONCE, offset))):
                line += decoder.decode(read).count("\n")
                offset -= len(read)
        return line

    def _unreadable(self, line: int) -> str:
        shown = _SHOWN.get(self.encoding, "UTF-16")
        return (
            f"{self.path}, line {line} is not {shown} text; {key(self.place, 'encoding: cp1252')}"
        )


def key(place: str | None, stated: str) -> str:
    """Return the end of an error message, which says how to make the file readable.

    It says to write the setting `stated` under the key `place` of the job. If `place` is None, it
    says to save the file in a standard format.
    """
    if place is None:
        return "save it with UTF-8, commas between cells, decimal points and dates like 2024-12-31"
    return f"write {place}.{stated}"


def find_format(
    path: str, settings: ReadingSettings, place: str | None = None, version: Version | None = None
) -> CsvFormat:
    """Return a file's format from `settings`. Values that they leave out are guessed from the file.

    `place` is the path of `settings` in the job, for messages. If `version` is given, the file is
    refused if it has changed since it had this version.
    """
    head = _beginning(path, version)
    stated = settings.encoding
    encoding = _encoding(path, head, place) if stated is None else _stated(stated, head)
    found = CsvFormat(path, encoding, ",", place, version)
    if settings.separator is not None:
        return replace(found, separator=SEPARATORS[settings.separator])
    with found.blocks() as blocks:
        return replace(found, separator=_separator(path, next(blocks, ""), place))


def lone_format(path: str, version: Version | None = None) -> CsvFormat:
    """Return the only format of files whose rows are read one by one: UTF-8, separated by commas.

    Nothing is guessed, because rows would decide the guess. Raises DataInvalid if the header shows
    another format.
    """
    header = _beginning(path, version).splitlines()[:1]
    found = next(
        (name for name, mark in SEPARATORS.items() if mark.encode() in b"".join(header)), ""
    )
    utf16 = b"\0" in b"".join(header)
    if utf16 or found not in ("", "comma"):
        shown = "UTF-16 text" if utf16 else f"separated by {found}"
        raise DataInvalid(
            f"{path} is {shown}, but with an epsilon for each row (unit = row), fedveil guesses no "
            f"format; {key(None, '')}"
        )
    return CsvFormat(path, "utf-8-sig", ",", None, version, apart=True)


def _beginning(path: str, version: Version | None) -> bytes:
    """Return the first bytes of a file. Raises DataInvalid if they show that it is no CSV file."""
    with reading(Path(path)), opened(path, MOST_STREAMED_BYTES, version) as raw:
        head = raw.read(_BEGINNING)
    for begin, what in _KNOWN.items():
        if head.startswith(begin):
            raise DataInvalid(f"{path} is {what}, not CSV")
    return head


def _stated(name: str, head: bytes) -> str:
    if name == "utf-16" and not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _without_mark(head) or "utf-16-le"
    return _CODECS[name]


def _encoding(path: str, head: bytes, place: str | None) -> str:
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    if wide := _without_mark(head[:_HEAD]):
        return wide
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        try:
            head.decode("cp1252")
        except UnicodeDecodeError:
            raise DataInvalid(
                f"{path} is neither UTF-8 nor CP1252 text; {key(place, 'encoding: latin-1')}"
            ) from None
        return "cp1252"
    return "utf-8-sig"


def _without_mark(head: bytes) -> str | None:
    """Guess the UTF-16 codec of text without a byte order mark from its beginning, or return None.

    One byte of nearly every letter is zero, and its position shows the byte order.
    """
    pairs = len(head) // 2
    for codec, zeros, letters in (("utf-16-le", 1, 0), ("utf-16-be", 0, 1)):
        none = head[zeros : 2 * pairs : 2].count(0)
        if pairs and none > 0.7 * pairs and head[letters : 2 * pairs : 2].count(0) == 0:
            return codec
    return None


def _separator(path: str, text: str, place: str | None) -> str:
    lines = list(islice(io.StringIO(text[:_SAMPLED_CHARACTERS], newline=""), _SAMPLED_LINES + 1))
    if len(lines) > 1 and (len(lines) > _SAMPLED_LINES or len(text) > _SAMPLED_CHARACTERS):
        lines = lines[:-1]  # the last line may be incomplete
    widths = {name: _widths(lines, mark) for name, mark in SEPARATORS.items()}
    many = [name for name, found in widths.items() if found and found[0] > 1]
    even = [name for name in many if len(set(widths[name])) == 1]
    fitting = even or many
    if len(fitting) > 1:
        raise DataInvalid(
            f"{path} may be separated by {' or by '.join(fitting)}; "
            f"{key(place, 'separator: ' + fitting[0])}"
        )
    return SEPARATORS[fitting[0]] if fitting else ","


def _widths(lines: list[str], mark: str) -> list[int]:
    try:
        return [len(cells) for cells in csv.reader(lines, delimiter=mark) if cells]
    except csv.Error:
        return []
