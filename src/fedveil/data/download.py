"""Downloads published files to the user's cache: tries several mirrors, resumes and verifies.

A download is written to NAME.part, verified and then renamed. So a file called NAME is always
complete and genuine. Only https is used, also for redirects.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from fedveil.base.files import open_in_place, open_to_append, put_in_place
from fedveil.data.data_folders import writing
from fedveil.data.idx import IdxFile, IdxSet, read_idx
from fedveil.errors import DataInvalid, DataUnavailable

#: Called with the bytes received so far and the expected total, over all files together.
Progress: TypeAlias = Callable[[int, int], None]

TIMEOUT_S = 30
#: The most requests to one mirror for one file. A mirror that sends nothing is abandoned earlier.
ATTEMPTS = 10
_CHUNK_BYTES = 1 << 16
#: Upper bound on what gzip adds to a file that it cannot compress.
_PACKING_BYTES = 1 << 12


class _MirrorFailed(Exception):
    """Raised if a mirror does not send a file. The message says why."""


class _NoSuchRange(Exception):
    """Raised if the partial file on this machine is longer than the mirror's file."""


def fetch_files(
    source: IdxSet, files: Sequence[IdxFile], folder: Path, progress: Progress | None = None
) -> None:
    """Download the `files` of `source` that are missing or damaged in `folder`.

    `progress` is called with the bytes received and the bytes of all files. Raises
    `DataUnavailable` if no mirror has a file, or if `folder` cannot be written. The next call
    resumes after the bytes received so far.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open_to_append(folder / ".lock")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = [file for file in files if not _genuine(target(folder, file), file)]
        for file, report in zip(wanted, _reporters(wanted, progress), strict=True):
            _fetch(source, file, folder, report)


def target(folder: Path, file: IdxFile) -> Path:
    return folder / f"{file.name}.gz"


def _genuine(path: Path, file: IdxFile) -> bool:
    try:
        read_idx(path, file)
    except (DataInvalid, DataUnavailable):
        return False
    return True


def _reporters(files: Sequence[IdxFile], progress: Progress | None) -> list[Progress]:
    """Return a progress function for each file, which calls `progress` for all files together.

    A progress function is called with two numbers: the bytes received so far, and the bytes to
    receive in total. `progress` gets the sums of these numbers over all files.
    """
    done = [0] * len(files)
    sizes = [file.download_bytes for file in files]

    def reporter(index: int) -> Progress:
        def report(bytes_done: int, size: int) -> None:
            done[index], sizes[index] = bytes_done, size
            if progress is not None:
                progress(sum(done), sum(sizes))

        return report

    return [reporter(index) for index in range(len(files))]


def _fetch(source: IdxSet, file: IdxFile, folder: Path, report: Progress) -> None:
    part = folder / f"{file.name}.gz.part"
    failures = []
    for mirror in source.mirrors:
        try:
            _from_mirror(f"{mirror}{file.name}.gz", part, file, report)
        except _MirrorFailed as failure:
            failures.append(f"{urllib.parse.urlsplit(mirror).hostname} {failure}")
            continue
        with writing(folder):
            put_in_place(part, target(folder, file))
        return
    kept = _size(part)
    rest = f"; {kept:,} bytes are saved, and the next fetch resumes after them" if kept else ""
    raise DataUnavailable(
        f"data {source.name}: {file.name}.gz cannot be downloaded: {'; '.join(failures)}{rest}; "
        f"you can also place the files in $FEDVEIL_DATA/{source.name} or in {folder}"
    )


def _from_mirror(url: str, part: Path, file: IdxFile, report: Progress) -> None:
    """Download the rest of `file` from `url` to `part` and verify it, or raise `_MirrorFailed`.

    `report` is called with the bytes received and the bytes of the file.
    """
    for _ in range(ATTEMPTS):
        before = _size(part)
        if before and _genuine(part, file):  # the last fetch was killed before the rename
            return
        try:
            complete = _receive(url, part, file, report)
        except _NoSuchRange:
            part.unlink()
            continue
        if complete:
            if _genuine(part, file):
                return
            part.unlink()
            if not before:
                raise _MirrorFailed("sent another file than the published one")
            # The bytes of an earlier attempt may be wrong, so start again once.
        elif _size(part) <= before:
            raise _MirrorFailed("cut the connection")
    raise _MirrorFailed(f"did not send the whole file in {ATTEMPTS} attempts")


def _receive(url: str, part: Path, file: IdxFile, report: Progress) -> bool:
    have = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "fedveil"})  # noqa: S310
    if have:
        request.add_header("Range", f"bytes={have}-")
    with _open(request) as response:
        if response.status != http.client.PARTIAL_CONTENT:
            have = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise _MirrorFailed("sent another range than was asked for")
        announced = response.headers.get("Content-Length", "")
        size = have + int(announced) if announced.isdigit() else None
        with writing(part), _open_to_append(part, anew=not have) as stream:
            while chunk := _read(response):
                have += len(chunk)
                if have > file.content_bytes + _PACKING_BYTES:
                    stream.truncate(0)
                    raise _MirrorFailed("sent more than the file can hold")
                stream.write(chunk)
                report(have, size or max(have, file.download_bytes))
    return chunk is not None and (size is None or have == size)


def _open_to_append(part: Path, *, anew: bool) -> IO[bytes]:
    """Open the file `part` to append to it. If `anew` is True, its content is deleted first."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if anew else os.O_APPEND)
    return os.fdopen(open_in_place(part, flags), "wb" if anew else "ab")


def _read(response: http.client.HTTPResponse) -> bytes | None:
    """Return the next bytes, b"" at the end of the response, or None if the connection broke."""
    try:
        return response.read1(_CHUNK_BYTES)  # also returns bytes that came before a break
    except (http.client.HTTPException, OSError):
        return None


class _OnlyHttps(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _require_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _require_https(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and (parts.scheme, parts.hostname) != ("http", "127.0.0.1"):
        raise _MirrorFailed(f"leads to {parts.scheme}://{parts.hostname}, which is not https")


def _open(request: urllib.request.Request) -> http.client.HTTPResponse:
    _require_https(request.full_url)
    opener = urllib.request.build_opener(_OnlyHttps())
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise _NoSuchRange from None
        raise _MirrorFailed(f"answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _MirrorFailed(f"cannot be reached ({error.reason})") from None
    except (http.client.HTTPException, OSError) as error:
        raise _MirrorFailed(f"cannot be reached ({error or type(error).__name__})") from None
    return response


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
