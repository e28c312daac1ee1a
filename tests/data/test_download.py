"""Downloads from a server that cuts, lies, stalls and refuses: what takes its name is genuine."""

from __future__ import annotations

import gzip
import hashlib
import resource
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_files import idx, write
from fedveil.data import datasets, download, mnist
from fedveil.data.download import fetch_files
from fedveil.data.idx import IdxFile, IdxSet, read_idx
from fedveil.entropy import Seeded
from fedveil.errors import DataInvalid, DataUnavailable

SHAPES = {
    "train-images-idx3-ubyte": (20, 28, 28),
    "train-labels-idx1-ubyte": (20,),
    "t10k-images-idx3-ubyte": (10, 28, 28),
    "t10k-labels-idx1-ubyte": (10,),
}
IMAGES = "train-images-idx3-ubyte"


def idx_bytes(name):
    shape = SHAPES[name]
    high = 256 if len(shape) == 3 else 10
    values = Seeded(0, "download", name).integers(high, int(np.prod(shape)))
    # Half of it constant, so that the compressed file is shorter than its content.
    values[: len(values) // 2] = 0
    return idx(values.reshape(shape))


CONTENT = {name: idx_bytes(name) for name in SHAPES}
PUBLISHED = {f"{name}.gz": gzip.compress(CONTENT[name], mtime=0) for name in SHAPES}
FILES = tuple(
    IdxFile(name, shape, hashlib.md5(CONTENT[name]).hexdigest(), len(PUBLISHED[f"{name}.gz"]))
    for name, shape in SHAPES.items()
)
SIZE = len(PUBLISHED[f"{IMAGES}.gz"])


class Mirror:
    """A server on this machine whose faults are attributes; it notes what it was asked for."""

    def __init__(self):
        self.files = dict(PUBLISHED)
        self.ranges = True  # whether it honours a Range header
        self.cuts = []  # after how many bytes each next response breaks off; then none does
        self.status = None  # answers this instead
        self.redirect = None  # sends here instead
        self.chunked = False  # sends no Content-Length
        self.claims = None  # names this range instead of the one that it sends; "" names none
        self.stall = None  # an event to wait for before the body
        self.asked = []  # (file, first byte)
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                mirror.answer(self)
                self.close_connection = True

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self):
        if self.stall is not None:
            self.stall.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, request):
        name = urlsplit(request.path).path.lstrip("/")
        wanted = request.headers.get("Range")
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        self.asked.append((name, first))
        if self.redirect is not None:
            request.send_response(302)
            request.send_header("Location", self.redirect)
            request.end_headers()
            return
        body = self.files.get(name)
        if self.status is not None or body is None:
            request.send_error(self.status or 404)
            return
        first = first if self.ranges else 0
        if first >= len(body):
            request.send_error(416)
            return
        body = body[first:]
        request.send_response(206 if first else 200)
        if first:
            last = first + len(body) - 1
            sends = f"bytes {first}-{last}/{last + 1}"
            if claimed := sends if self.claims is None else self.claims:
                request.send_header("Content-Range", claimed)
        if self.chunked:
            request.send_header("Transfer-Encoding", "chunked")
        else:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if self.stall is not None:
            self.stall.wait(60)
        sent = body[: self.cuts.pop(0)] if self.cuts else body
        if self.chunked:
            request.wfile.write(b"%x\r\n%s\r\n" % (len(sent), sent) if sent else b"")
            request.wfile.write(b"0\r\n\r\n" if len(sent) == len(body) else b"ff\r\n")
        else:
            request.wfile.write(sent)


@pytest.fixture
def mirrors(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = [Mirror(), Mirror()]
    yield made
    for mirror in made:
        mirror.close()


def source_of(*mirrors):
    return IdxSet("tiny", FILES, tuple(m if isinstance(m, str) else m.url for m in mirrors))


def fetch_images(folder, *mirrors, progress=None):
    fetch_files(source_of(*mirrors), FILES[:1], folder, progress)


def assert_genuine(folder, files=FILES):
    for file in files:
        raw = CONTENT[file.name][4 + 4 * len(file.shape) :]
        assert read_idx(folder / f"{file.name}.gz", file).tobytes() == raw
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [".lock", *(f"{file.name}.gz" for file in files)]
    )


def assert_one_sentence(caught):
    assert "\n" not in str(caught.value)


def test_all_four_files_come_with_their_progress(tmp_path, mirrors):
    folder, told = tmp_path / "made" / "on the way", []
    fetch_files(
        source_of(mirrors[0]), FILES, folder, lambda done, total: told.append((done, total))
    )
    assert_genuine(folder)
    total = sum(map(len, PUBLISHED.values()))
    assert told == sorted(told)
    assert {line[1] for line in told} == {total}
    assert told[-1] == (total, total)


def test_files_that_are_there_are_not_asked_for(tmp_path, mirrors):
    fetch_images(tmp_path, mirrors[0])
    fetch_files(source_of(mirrors[0]), FILES, tmp_path)
    assert [name for name, _ in mirrors[0].asked] == list(PUBLISHED)


def test_a_damaged_file_is_replaced(tmp_path, mirrors):
    (tmp_path / f"{IMAGES}.gz").write_bytes(PUBLISHED[f"{IMAGES}.gz"][:-1])
    fetch_images(tmp_path, mirrors[0])
    assert_genuine(tmp_path, FILES[:1])


def test_a_cut_download_goes_on_where_it_was(tmp_path, mirrors):
    mirrors[0].cuts = [1000, 2000, 10]
    fetch_images(tmp_path, mirrors[0])
    assert_genuine(tmp_path, FILES[:1])
    assert [first for _, first in mirrors[0].asked] == [0, 1000, 3000, 3010]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.integers(0, SIZE), max_size=8),
    st.booleans(),
    st.booleans(),
    st.binary(max_size=SIZE + 5),
)
def test_whatever_is_cut_the_outcome_is_genuine(
    tmp_path_factory, mirrors, cuts, ranges, chunked, before
):
    """Also after another fetch left anything at all; the second mirror is a good one."""
    folder = tmp_path_factory.mktemp("cut")
    (folder / f"{IMAGES}.gz.part").write_bytes(before)
    mirrors[0].cuts, mirrors[0].ranges, mirrors[0].chunked = list(cuts), ranges, chunked
    fetch_images(folder, *mirrors)
    assert_genuine(folder, FILES[:1])


def test_a_mirror_that_cuts_and_knows_no_ranges_is_left(tmp_path, mirrors):
    mirrors[0].ranges, mirrors[0].cuts = False, [1000] * 100
    fetch_images(tmp_path, *mirrors)
    assert_genuine(tmp_path, FILES[:1])
    assert [first for _, first in mirrors[0].asked] == [0, 1000]
    assert [first for _, first in mirrors[1].asked] == [1000]


def test_a_mirror_that_cuts_for_ever_is_left(tmp_path, mirrors):
    mirrors[0].cuts = [1] * 100
    with pytest.raises(DataUnavailable, match="did not send the whole file in 10 attempts"):
        fetch_images(tmp_path, mirrors[0])
    assert len(mirrors[0].asked) == download.ATTEMPTS


def test_a_mirror_that_cuts_at_once_is_left(tmp_path, mirrors):
    mirrors[0].cuts = [0] * 100
    with pytest.raises(
        DataUnavailable, match=r"127\.0\.0\.1 cut the connection; you can also place"
    ):
        fetch_images(tmp_path, mirrors[0])
    assert len(mirrors[0].asked) == 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_cut_without_a_successor_is_kept_for_the_next_fetch(tmp_path, mirrors, chunked):
    mirrors[0].chunked, mirrors[0].cuts = chunked, [1500, 0]
    with pytest.raises(DataUnavailable, match="1,500 bytes are saved") as caught:
        fetch_images(tmp_path, mirrors[0])
    assert_one_sentence(caught)
    fetch_images(tmp_path, mirrors[0])
    assert_genuine(tmp_path, FILES[:1])
    assert [first for _, first in mirrors[0].asked] == [0, 1500, 1500]


def test_an_interrupted_download_goes_on_where_it_was(tmp_path, mirrors):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_images(tmp_path, mirrors[0], progress=interrupt)
    assert not (tmp_path / f"{IMAGES}.gz").exists()
    fetch_images(tmp_path, mirrors[0])
    assert_genuine(tmp_path, FILES[:1])


def test_a_download_that_was_killed_before_its_renaming_needs_no_server(tmp_path, mirrors):
    (tmp_path / f"{IMAGES}.gz.part").write_bytes(PUBLISHED[f"{IMAGES}.gz"])
    fetch_images(tmp_path, mirrors[0])
    assert_genuine(tmp_path, FILES[:1])
    assert mirrors[0].asked == []


@pytest.mark.parametrize("length", [100, SIZE, SIZE + 100])
def test_a_wrong_beginning_is_thrown_away(tmp_path, mirrors, length):
    (tmp_path / f"{IMAGES}.gz.part").write_bytes(bytes(length))
    fetch_images(tmp_path, mirrors[0])
    assert_genuine(tmp_path, FILES[:1])
    assert [first for _, first in mirrors[0].asked] == [length, 0]


def test_wrong_bytes_lead_to_the_next_mirror(tmp_path, mirrors):
    mirrors[0].files[f"{IMAGES}.gz"] = gzip.compress(bytes(1000))
    fetch_images(tmp_path, *mirrors)
    assert_genuine(tmp_path, FILES[:1])
    assert [first for _, first in mirrors[1].asked] == [0]


def test_wrong_bytes_everywhere_leave_nothing_behind(tmp_path, mirrors):
    for mirror in mirrors:
        mirror.files[f"{IMAGES}.gz"] = b"<html>please log in</html>"
    with pytest.raises(DataUnavailable, match="sent another file than the published one") as caught:
        fetch_images(tmp_path, *mirrors)
    assert_one_sentence(caught)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_mirror_may_send_the_content_unpacked(tmp_path, mirrors):
    mirrors[0].files[f"{IMAGES}.gz"] = CONTENT[IMAGES]
    told = []
    fetch_images(tmp_path, mirrors[0], progress=lambda *line: told.append(line))
    assert_genuine(tmp_path, FILES[:1])
    assert told[-1] == (len(CONTENT[IMAGES]), len(CONTENT[IMAGES])), "the size that it announces"


@pytest.mark.parametrize("at_once", [1 << 10, 1 << 16])
def test_a_mirror_cannot_fill_the_disk(tmp_path, mirrors, monkeypatch, at_once):
    monkeypatch.setattr(download, "_CHUNK_BYTES", at_once)
    mirrors[0].files[f"{IMAGES}.gz"] = bytes(10 * len(CONTENT[IMAGES]) + (1 << 20))
    with pytest.raises(DataUnavailable, match="sent more than the file can hold"):
        fetch_images(tmp_path, mirrors[0])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0


@pytest.mark.parametrize(
    "claims", ["bytes 501-899/900", "bytes 5000-5999/6000", "bytes 50-899/900", "bytes */900", ""]
)
def test_another_range_than_was_asked_for_is_refused(claims, tmp_path, mirrors):
    """Its first byte is 500. A number that begins with these digits is another byte."""
    (tmp_path / f"{IMAGES}.gz.part").write_bytes(PUBLISHED[f"{IMAGES}.gz"][:500])
    mirrors[0].claims = claims
    fetch_images(tmp_path, *mirrors)
    assert_genuine(tmp_path, FILES[:1])
    for mirror in mirrors:
        assert [first for _, first in mirror.asked] == [500]


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_a_refusal_leads_to_the_next_mirror_and_is_told(tmp_path, mirrors, status):
    mirrors[0].status = status
    fetch_images(tmp_path, *mirrors)
    assert_genuine(tmp_path, FILES[:1])
    mirrors[1].status = status
    with pytest.raises(DataUnavailable, match=f"answered {status} .*; .*answered {status} "):
        fetch_files(source_of(*mirrors), FILES[1:], tmp_path)


def test_a_mirror_that_does_not_speak_http_is_left(tmp_path, mirrors):
    mirrors[0].answer = lambda request: request.wfile.write(b"SSH-2.0-server\r\n")
    fetch_images(tmp_path, *mirrors)
    assert_genuine(tmp_path, FILES[:1])
    with pytest.raises(DataUnavailable, match=r"cannot be reached \(SSH-2.0-server"):
        fetch_files(source_of(mirrors[0]), FILES[1:], tmp_path)


def test_a_stalled_mirror_is_left(tmp_path, mirrors, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT_S", 2)
    mirrors[0].stall = threading.Event()
    fetch_images(tmp_path, *mirrors)
    assert_genuine(tmp_path, FILES[:1])
    assert len(mirrors[0].asked) == 1


def test_offline_says_what_was_tried_and_where_the_files_can_go(tmp_path, mirrors):
    closed = Mirror()
    closed.close()
    with pytest.raises(DataUnavailable) as caught:
        fetch_images(tmp_path, closed, closed)
    assert_one_sentence(caught)
    text = str(caught.value)
    assert text.count("127.0.0.1 cannot be reached") == 2
    assert f"{IMAGES}.gz" in text
    assert f"place the files in $FEDVEIL_DATA/tiny or in {tmp_path}" in text


@pytest.mark.parametrize("url", ["http://example.invalid/", "ftp://example.invalid/"])
def test_only_https_is_spoken(tmp_path, mirrors, url):
    mirrors[0].redirect = f"{url}{IMAGES}.gz"
    with pytest.raises(DataUnavailable, match=r"leads to \w+://example.invalid, which is not htt"):
        fetch_images(tmp_path, mirrors[0])
    with pytest.raises(DataUnavailable, match=r"leads to \w+://example.invalid, which is not htt"):
        fetch_images(tmp_path, url)


def test_a_redirect_is_followed_and_resumed(tmp_path, mirrors):
    mirrors[0].redirect = f"{mirrors[1].url}{IMAGES}.gz"
    mirrors[1].cuts = [700]
    fetch_images(tmp_path, mirrors[0])
    assert_genuine(tmp_path, FILES[:1])
    assert [first for _, first in mirrors[1].asked] == [0, 700]


def test_two_fetches_at_once_take_turns(tmp_path, mirrors):
    failures = []

    def fetch():
        try:
            fetch_files(source_of(mirrors[0]), FILES, tmp_path)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert_genuine(tmp_path)
    assert [name for name, _ in mirrors[0].asked] == list(PUBLISHED)


def test_a_folder_that_cannot_be_made_is_told(tmp_path, mirrors):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataUnavailable, match="file/tiny cannot be written: Not a directory") as e:
        fetch_images(tmp_path / "file" / "tiny", mirrors[0])
    assert_one_sentence(e)


def test_a_full_disk_is_told(tmp_path, mirrors):
    """Let a file have 8 bytes at most, as on a disk with no more room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
    try:
        with pytest.raises(DataUnavailable, match="cannot be written: File too large") as e:
            fetch_images(tmp_path, mirrors[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_one_sentence(e)


@pytest.mark.parametrize("left", [b"what is somebody else's", b""])
def test_a_download_is_not_written_through_a_link(tmp_path, mirrors, left):
    other = write(tmp_path / "other", left)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / f"{IMAGES}.gz.part").symlink_to(other)
    with pytest.raises(DataUnavailable, match="cannot be written: it is a link, and fedveil"):
        fetch_images(tmp_path / "tiny", mirrors[0])
    assert other.read_bytes() == left


# --- fetch(name) ---


@pytest.fixture
def tiny(tmp_path, mirrors, monkeypatch):
    """`mnist` is the tiny set, on the first mirror; the cache and FEDVEIL_DATA are empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "tiny").mkdir(parents=True)
    source = source_of(mirrors[0])
    monkeypatch.setitem(datasets._CATALOGUE, "mnist", datasets._idx(source, "digits"))
    return tmp_path


def test_a_fetched_set_loads(tiny):
    with pytest.raises(DataUnavailable, match="`fedveil data fetch tiny`, or place"):
        datasets.load("mnist")
    assert datasets.fetch("mnist") == tiny / "cache" / "fedveil" / "tiny"
    data = datasets.load("mnist")
    assert data.train.x.shape == (20, 1, 28, 28)
    assert len(data.test) == 10


def test_loading_never_downloads_and_fetching_does_once(tiny, mirrors):
    with pytest.raises(DataUnavailable):
        datasets.load("mnist")
    assert not mirrors[0].asked
    told = []
    datasets.fetch("mnist", lambda *line: told.append(line))
    assert told
    assert len(mirrors[0].asked) == 4
    datasets.fetch("mnist")
    assert len(datasets.load("mnist").test) > 0
    assert len(mirrors[0].asked) == 4


def test_the_writers_come_with_the_images(tiny, mirrors, monkeypatch):
    """From a mirror of their own, and verified like every other file."""
    rows = np.arange(160).reshape(20, 8) * 70_000
    content = idx(rows, 12)
    name = "qmnist-train-labels-idx2-int"
    mirrors[1].files = {f"{name}.gz": gzip.compress(content)}
    md5 = hashlib.md5(content).hexdigest()
    people = IdxSet("tiny", (IdxFile(name, rows.shape, md5, 0, 4),), (mirrors[1].url,))
    entry = datasets._idx(source_of(mirrors[0]), "digits", people)
    monkeypatch.setitem(datasets._CATALOGUE, "mnist", entry)
    folder = datasets.fetch("mnist")
    assert np.array_equal(read_idx(folder / f"{name}.gz", people.files[0]), rows)
    assert mirrors[1].asked == [(f"{name}.gz", 0)]


def test_mnist_has_the_published_writers():
    (entry,) = (found for found in datasets._SETS if found.name == "mnist")
    assert entry.downloads == (mnist.MNIST, mnist.WRITERS)
    assert mnist.WRITERS.mirrors[0].endswith("/facebookresearch/qmnist/master/")


def test_files_placed_by_hand_are_verified_and_left_alone(tiny, mirrors):
    placed = tiny / "data" / "tiny" / IMAGES
    placed.write_bytes(CONTENT[IMAGES])
    folder = datasets.fetch("mnist")
    assert not (folder / f"{IMAGES}.gz").exists()
    assert len(mirrors[0].asked) == 3
    placed.write_bytes(b"damaged")
    with pytest.raises(DataInvalid, match="is not the published train-images-idx3-ubyte: the MD5"):
        datasets.fetch("mnist")
    assert placed.read_bytes() == b"damaged"


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("digits", "it is included in scikit-learn"),
        ("femnist", "make it with LEAF and place"),
        ("purchase100", "place dataset_purchase or purchase100.npz in"),
        ("purchase100-synthetic", "it is generated"),
        ("location30", "place location30.npz in"),
    ],
)
def test_what_has_no_download_says_how_it_is_got(name, how):
    with pytest.raises(DataUnavailable, match=f"data.name = {name} has no download: {how}"):
        datasets.fetch(name)


def test_an_unknown_name_is_refused():
    with pytest.raises(DataInvalid, match=r"data\.name = 'mnits' is not one of digits, mnist, "):
        datasets.fetch("mnits")


@pytest.mark.parametrize("source", [mnist.MNIST, mnist.FASHION_MNIST], ids=lambda s: s.name)
def test_the_published_sets_have_several_https_mirrors(source):
    assert len(source.mirrors) >= 2
    assert all(url.startswith("https://") and url.endswith("/") for url in source.mirrors)
    assert [file.shape for file in source.files] == [
        (60_000, 28, 28),
        (60_000,),
        (10_000, 28, 28),
        (10_000,),
    ]
    assert all(len(bytes.fromhex(file.md5)) == 16 for file in source.files)


def test_a_damaged_download_is_replaced_and_nothing_else_is(tiny, mirrors):
    folder = datasets.fetch("mnist")
    assert len(mirrors[0].asked) == 4
    (folder / f"{IMAGES}.gz").write_bytes(b"damaged")
    assert datasets.fetch("mnist") == folder
    assert len(mirrors[0].asked) == 5
    assert (folder / f"{IMAGES}.gz").read_bytes() == PUBLISHED[f"{IMAGES}.gz"]
    assert len(datasets.load("mnist").train) == 20
