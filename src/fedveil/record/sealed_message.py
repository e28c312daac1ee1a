"""Messages in files, for resuming runs. A "sealed" message is followed by its SHA-256 digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedveil.base.message import Message, Value, decode, encoded_parts
from fedveil.base.untrusted import MALFORMED
from fedveil.errors import MessageInvalid, RunFolderError

_DIGEST_BYTES = 32


def sealed(message: Message) -> bytes:
    """Return the encoded message followed by its SHA-256 digest."""
    return b"".join(sealed_parts(message))


def sealed_parts(message: Message) -> list[bytes | memoryview]:
    """Return the encoded message and its digest as several buffers, without copying large ones."""
    parts, digest = encoded_parts(message), hashlib.sha256()
    for part in parts:
        digest.update(part)
    return [*parts, digest.digest()]


def unsealed(raw: bytes | memoryview) -> dict[str, Value]:
    """Decode a result of `sealed`. Raises `MessageInvalid` if any bit has changed."""
    data, digest = memoryview(raw)[:-_DIGEST_BYTES], bytes(raw[-_DIGEST_BYTES:])
    if hashlib.sha256(data).digest() != digest:
        raise MessageInvalid("its digest does not match")
    return decode(data)


@contextmanager
def intact(*paths: Path) -> Iterator[None]:
    """A context that turns every error in reading the files `paths` into a `RunFolderError`."""
    which = " or ".join(map(str, paths))
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{which} cannot be read: {error.strerror}") from error
    except LookupError as error:  # the text is only a key, or an index
        lacks = f"the key {error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise RunFolderError(f"{which} is damaged: {lacks}") from None
    except MALFORMED as error:
        reason = "; ".join(str(error).splitlines()) or type(error).__name__
        raise RunFolderError(f"{which} is damaged: {reason}") from None
