"""Predictions over HTTP: answers, limits on what a client sends, and rights of certificates."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import itertools
import json
import re
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedveil.errors import (
    CertificateError,
    ExchangeError,
    InvalidValue,
    RightMissing,
    RunFolderError,
)
from fedveil.link.own_authority import write_certificates
from fedveil.link.rights import check_right
from fedveil.link.streams import Address
from fedveil.link.tls import Credentials
from fedveil.record.sealed_message import sealed
from fedveil.vertical.remote.sessions import Meeting, _check_purpose, _told_of
from fedveil.vertical.scoring import http_server
from fedveil.vertical.scoring import service as service_module
from fedveil.vertical.scoring.http_server import Answer, HttpServer, Request
from fedveil.vertical.scoring.service import PredictionService
from fedveil.vertical.scoring.service_metrics import ServiceMetrics
from fedveil.vertical.scoring.sources import Together
from scoring_parts import together, trained


class Served:
    """A service in a thread of its own."""

    def __init__(self, source: Any, own: Credentials | None = None, **limits: int) -> None:
        self.service = PredictionService(source, own, **limits)
        self.end: BaseException | None = None
        self._listening = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._listening.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._task is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        def listening(address: Address) -> None:
            self.port = address.port
            self._listening.set()

        run = self.service.run(Address("127.0.0.1", 0), listening)
        self._task = self._loop.create_task(run)
        try:
            self._loop.run_until_complete(self._task)
        except (asyncio.CancelledError, ExchangeError) as end:
            self.end = end
        self._loop.close()

    def ask(
        self, path: str, body: Any = None, tls: ssl.SSLContext | None = None, timeout: float = 30,
        **headers: str,
    ) -> tuple[int, Any]:  # fmt: skip
        connection: http.client.HTTPConnection
        if tls is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=30, context=tls
            )
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        is_json = answer.headers["content-type"] == http_server.JSON
        return answer.status, json.loads(text) if is_json else text

    def raw(self, data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as plain:
            plain.sendall(data)
            found = b""
            while piece := plain.recv(4096):
                found += piece
        return found


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Together]:
    with ExitStack() as stack:
        yield together(trained(tmp_path, eps=0.7), stack)


def test_one_id_or_a_batch_is_answered_and_a_repeated_one_costs_nothing(source: Together) -> None:
    ids = source.leader.ids[source.common].tolist()
    journal = source._all["bank"].state.path / "scored"
    with Served(source) as served:
        status, one = served.ask("/predict", {"id": ids[6]})
        assert status == 200
        assert one["prediction"] in ("yes", "no")
        assert one["probability of yes"] + one["probability of no"] == pytest.approx(1, abs=1e-5)
        status, batch = served.ask("/predict", {"ids": [ids[6], "nobody", ids[2], ids[6]]})
        assert status == 200
        assert batch["predictions"][0] == batch["predictions"][3] == one
        assert "error" in batch["predictions"][1]
        assert len(journal.read_bytes()) == 2 * 16
        assert served.ask("/predict", {"id": "nobody"})[0] == 404
        kept, sockets = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30), []
        for _ in range(2):
            kept.request("GET", "/health")
            assert kept.getresponse().read()
            sockets.append(kept.sock)
        assert sockets[0] is sockets[1] is not None
        kept.close()
        assert served.ask("/health") == (200, {"status": "ok", "rows": len(ids)})
        status, text = served.ask("/metrics")
    assert status == 200
    lines = text.splitlines()
    assert 'fedveil_requests_total{path="/predict",status="200"} 2' in lines
    assert "fedveil_predictions_total 3" in lines
    assert "fedveil_unknown_ids_total 2" in lines
    assert 'fedveil_answer_seconds_bucket{le="+Inf"} 3' in lines
    assert "answered loopback: 2 of 4 ids, 0 refused by a limit" in (
        source.leader.state.path / "events.log"
    ).read_text("utf-8")


def test_everything_that_a_client_sends_is_limited(
    source: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.2)
    with Served(source, guesses=3) as served:
        wrong = [b"{", b"[]", b'{"id": 5}', b'{"ids": []}', b'{"id": "a", "ids": ["b"]}', b"\xff"]
        wrong += [json.dumps({"ids": ["a"] * 1001}).encode(), b'{"id": "\\u0000"}']
        wrong += [json.dumps({"id": "x" * 257}).encode(), b"[" * 100_000]
        for body in wrong:
            assert served.ask("/predict", body)[0] == 400
        assert served.ask("/predict", bytes(http_server.MOST_BODY_BYTES + 1))[0] == 413
        assert served.ask("/predict")[0] == 405
        assert served.ask("/admin")[0] == 404
        assert b" 400 " in served.raw(b"NOT HTTP\r\n\r\n")
        head = b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * http_server.MOST_HEADER_BYTES
        assert b" 431 " in served.raw(head)
        assert b" 408 " in served.raw(b"POST /predict HTTP/1.1\r\nhost: localhost\r\n")
        assert served.ask("/predict", {"ids": ["g1", "g2", "g3"]})[0] == 200
        assert served.ask("/predict", {"ids": ["g4"]})[0] == 429
        assert not (source._all["bank"].state.path / "scored").read_bytes()


def test_a_full_queue_refuses_and_a_lost_party_ends_the_service(
    source: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, ids = threading.Event(), source.leader.ids[source.common].tolist()

    def scores(rows: Any) -> Any:
        going.wait(10)
        raise ExchangeError("bank sent nonsense")

    monkeypatch.setattr(source, "scores", scores)
    with Served(source, queue=1) as served:
        found: list[tuple[int, Any]] = []
        first = threading.Thread(
            target=lambda: found.append(served.ask("/predict", {"id": ids[0]}))
        )
        first.start()
        while not served.service._waiting:
            pass
        assert served.ask("/predict", {"id": ids[1]}, timeout=5)[0] == 503
        assert served.ask("/health")[0] == 200
        going.set()
        first.join(30)
        assert found == [(503, {"error": "a party is lost"})]
        served._thread.join(30)
    assert isinstance(served.end, ExchangeError)


def test_what_a_limit_refuses_is_said_and_counted(tmp_path: Path) -> None:
    with ExitStack() as stack:
        source = together(trained(tmp_path, eps=0.5, limit=13.0), stack)
        bank, ids = source._all["bank"], source.leader.ids[source.common].tolist()
        while bank.scored.allowed(bank._used[[3]]).all():
            bank.scored.charge(bank._used[[3]])
        with Served(source) as served:
            status, one = served.ask("/predict?again=1", {"id": ids[3]})
            assert (status, set(one), one["id"]) == (403, {"id", "error"}, ids[3])
            assert "privacy.max_epsilon" in one["error"]
            status, batch = served.ask("/predict", {"ids": [ids[8], ids[3], "no", ids[2], ids[5]]})
            assert (status, batch["predictions"][1]) == (200, one)
            told = ["prediction" in each for each in batch["predictions"]]
            assert told == [True, False, False, True, True]
        metrics = served.service.metrics
        assert (metrics.predictions, metrics.refused, metrics.unknown) == (3, 2, 1)
        assert "4 of 5 ids, 1 refused by a limit" in (
            source.leader.state.path / "events.log"
        ).read_text("utf-8")


def test_clients_beyond_those_that_are_counted_share_a_count(
    source: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_MOST_CLIENTS", 2)
    service = PredictionService(source, None, guesses=3)
    asked = [("a", 3), ("b", 1), ("c", 2), ("d", 1), ("e", 1), ("b", 2), ("a", 1)]
    assert [service._count_guesses(*each) for each in asked] == [True] * 4 + [False, True, False]
    assert len(service._guesses) == 3


def test_a_client_is_told_when_to_ask_again_and_connections_are_few(
    source: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 1)
    monkeypatch.setattr(http_server, "IDLE_S", 2.0)
    body = b'{"id": "nobody"}'
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    head += b"content-length: 16\r\n\r\n"
    with Served(source, guesses=0) as served:
        said = served.raw(head + body)
        assert b" 429 " in said
        assert b"\r\nretry-after: 3600\r\n" in said
        with socket.create_connection(("127.0.0.1", served.port)):
            said = served.raw(b"")
        assert b" 503 " in said
        assert b"too many connections" in said


def test_an_id_is_rewritten_as_the_ids_of_the_file_are(source: Together) -> None:
    first = source.leader.ids[source.common].tolist()[0]
    with Served(source, guesses=0) as served:
        _, plain = served.ask("/predict", {"id": first})
        assert served.ask("/predict", {"id": f" {first} "}) == (200, plain | {"id": f" {first} "})
        spelt = [f" {first}", first]
        _, both = served.ask("/predict", {"ids": spelt})
        assert both["predictions"] == [plain | {"id": one} for one in spelt]
    assert source.leader.new.normalised(["12.0", " 12 "]) == ["12", "12"]


def test_health_says_that_a_party_is_away(source: Together) -> None:
    service, asked = PredictionService(source, None), Request("GET", "/health", b"", None)
    assert service._health(asked).status == 200
    source.is_connected = False
    assert service._health(asked).status == 503


def test_a_complete_header_has_a_limit_too(source: Together) -> None:
    most = http_server.MOST_HEADER_BYTES
    with Served(source) as served:
        for count, status in ((most - 100, b"200"), (most, b"431")):
            head = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: "
            assert served.raw(head + b"y" * count + b"\r\n\r\n").split(b" ")[1] == status


def test_the_limits_of_a_request_are_allowed_and_what_is_refused_is_counted(
    source: Together,
) -> None:
    service = PredictionService(source, None, queue=7, guesses=1001)
    longest = "x" * service_module.MOST_ID_LETTERS

    def asked(path: str, **body: Any) -> Answer:
        method = "POST" if body else "GET"
        return asyncio.run(service.handle(Request(method, path, json.dumps(body).encode(), None)))

    assert asked("/predict", ids=[f"n{at}" for at in range(service_module.MOST_IDS)]).status == 200
    assert asked("/predict", id=longest).status == 404
    assert asked("/predict", ids=["y", "z", longest]).status == 429
    service._waiting = 5
    told = asked("/metrics").data.splitlines()
    assert {"fedveil_queue_waiting 5", "fedveil_queue_limit 7"} <= set(told)
    assert "fedveil_unknown_ids_total 1004" in told


def test_the_metrics_do_not_say_which_id_of_a_refused_request_is_unknown(source: Together) -> None:
    """A refused client would go on guessing: the metrics would answer in place of the service."""
    known = source.leader.ids[source.common].tolist()
    service = PredictionService(source, None, guesses=2)

    def metrics_after(*ids: str) -> tuple[int, set[str]]:
        request = Request("POST", "/predict", json.dumps({"ids": ids}).encode(), None)
        status = asyncio.run(service.handle(request)).status
        text: str = service.metrics.text(0)
        timeless = (line for line in text.splitlines() if "seconds" not in line)
        return status, {line for line in timeless if "requests_total" not in line}

    assert metrics_after(known[0], "n1")[0] == 200
    status, before = metrics_after("n2", "n3", "n4")
    assert (status, "fedveil_unknown_ids_total 4" in before) == (429, True)
    assert metrics_after(known[1]) == metrics_after("n5", "n6") == (429, before)


def test_a_web_page_cannot_ask_a_service_without_tls(source: Together) -> None:
    """A browser sends what a page asks of this machine: it would spend epsilon and guesses."""
    ids = source.leader.ids[source.common].tolist()
    body = json.dumps({"ids": [ids[0], "nobody"]}).encode()
    journal = source._all["bank"].state.path / "scored"
    with Served(source) as served:
        for origin, status in ((b"Origin: https://shop.example\r\n", b"403"), (b"", b"200")):
            head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + origin
            length = b"Content-Length: %d\r\nContent-Type: text/plain\r\n\r\n" % len(body)
            assert served.raw(head + length + body).split(b" ")[1] == status
            spent = len(journal.read_bytes()) // 16, served.service.metrics.unknown
            assert spent == ((0, 0) if origin else (1, 1))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, b"200") for host in ("LocalHost:8080", "127.0.0.1", "127.8.9.1:80", "[::1]:9")),
        *((host, b"421") for host in ("shop.example", "localhost.shop.example:8080", "10.0.0.7")),
        *((host, b"421") for host in ("127.0.0.1.shop.example", "[2001:db8::1]:8080", "", "[::1")),
        (None, b"200"),
    ],
)
def test_a_website_whose_name_points_to_this_machine_reads_nothing(
    host: str | None, status: bytes
) -> None:
    """A browser takes this page and the service for one website, so it adds no Origin."""
    said = b" HTTP/1.0\r\n" if host is None else b" HTTP/1.1\r\nHost: %s\r\n" % host.encode()
    found = asyncio.run(answered([b"GET /metrics" + said + b"Connection: close\r\n\r\n"]))
    assert found.split(b" ")[1] == status
    assert (b'"path": "/metrics"' in found) == (status == b"200")


def asked_again(source: Together, guesses: int, *requests: list[str]) -> list[int]:
    """Start the service again, and return the statuses of requests."""
    service = PredictionService(source, None, guesses=guesses)
    found = []
    for ids in requests:
        request = Request("POST", "/predict", json.dumps({"ids": ids}).encode(), None)
        found.append(asyncio.run(service.handle(request)).status)
    return found


def test_unknown_ids_are_counted_over_restarts(tmp_path: Path) -> None:
    """A client that waits for a restart, or causes one, would otherwise guess without end."""
    folder = trained(tmp_path)
    with ExitStack() as stack:
        source = together(folder, stack)
        known = source.leader.ids[source.common].tolist()[:3]
        assert asked_again(source, 5, ["n1", "n2"], known) == [200, 200]
        assert asked_again(source, 5, ["n3", known[0], "n4", "n5"]) == [200]
    with ExitStack() as stack:
        source = together(folder, stack)
        assert asked_again(source, 5, known, ["n6"], known) == [200, 429, 429]
        assert asked_again(source, 5, known[:1]) == [429]
        assert asked_again(source, 7, ["n7"], known, ["n8"]) == [200, 200, 429]
        service = PredictionService(source, None, guesses=7)
        other = service_module.Guesses(source.leader.state, "unknown", np.array(["z1", "z2"]))
        assert (len(service._guesses), len(other)) == (1, 0)


@pytest.mark.parametrize("counts", ["[]", '{"f": 3}', '{"f": {"c": -7}}', '{"f": {"c": "7"}}'])
def test_edited_counts_of_unknown_ids_are_one_sentence(source: Together, counts: str) -> None:
    path = source.leader.state.path / "unknown"
    path.write_bytes(sealed({"brought": counts}))
    with pytest.raises(RunFolderError, match="unknown is damaged: "):
        PredictionService(source, None)


def test_deleted_counts_of_unknown_ids_do_not_begin_anew(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    with ExitStack() as stack:
        path = together(folder, stack).leader.state.path / "unknown"
    path.unlink()
    with ExitStack() as stack:
        source = together(folder, stack)
        with pytest.raises(RunFolderError, match="unknown is missing: it counts the ids"):
            PredictionService(source, None)


def test_an_answer_under_way_is_sent_when_the_service_ends(
    source: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_END_S", 20.0)
    found: list[tuple[int, Any]] = []
    under_way = threading.Event()

    async def slow(request: Request) -> Answer:
        under_way.set()
        await asyncio.sleep(0.2)
        return Answer(200, {"status": "done"})

    with Served(source) as served:
        monkeypatch.setattr(served.service, "_answer", slow)
        client = threading.Thread(
            target=lambda: found.append(served.ask("/health", timeout=5)), daemon=True
        )
        client.start()
        assert under_way.wait(10)
    client.join(10)
    assert found == [(200, {"status": "done"})]


async def answered(pieces: Iterable[bytes], pause: float = 0.0) -> bytes:
    """Send `pieces` to a server that answers with what it got. Returns what it sends in all."""

    async def handle(request: Request) -> Answer:
        told = hashlib.sha256(request.body).hexdigest()
        return Answer(200, {"path": request.path, "body": told})

    server, here = await (http := HttpServer(Address("127.0.0.1", 0), handle, None)).start()
    reader, writer = await asyncio.open_connection(here.host, here.port)
    found = bytearray()

    async def read() -> None:
        with suppress(ConnectionError):  # the server has closed while a piece was on its way
            while some := await reader.read(4096):
                found.extend(some)

    reading = asyncio.create_task(read())
    for piece in pieces:
        if reading.done():
            break
        writer.write(piece)
        await asyncio.sleep(pause)
    await asyncio.wait_for(reading, 30)
    writer.close()
    server.close()
    await http.end()
    return bytes(found)


def posted(body: bytes) -> bytes:
    head = "POST /predict?a=1?b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def test_a_long_body_arrives_whole() -> None:
    body = bytes(range(251)) * 801  # several times as long as what is read at once
    status, _, told = asyncio.run(answered([posted(body)])).partition(b"\r\n")
    assert status.startswith(b"HTTP/1.1 200")
    assert json.loads(told.partition(b"\r\n\r\n")[2]) == {
        "path": "/predict", "body": hashlib.sha256(body).hexdigest()
    }  # fmt: skip


def test_a_head_request_is_answered_without_data() -> None:
    request = b"HEAD / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    found = asyncio.run(answered([request]))
    head, _, data = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-length: " in head
    assert not data


def test_a_client_that_waits_before_it_sends_a_body_is_told_to_send_it() -> None:
    """Curl waits a second, and a stricter client until the request is refused as too slow."""
    head, data = posted(b"abc").split(b"\r\n\r\n")
    waiting = head + b"\r\nexpect: 100-continue\r\n\r\n"
    found = asyncio.run(answered([waiting, data], pause=0.02))
    assert re.match(rb"HTTP/1.1 100 \r\n\r\nHTTP/1.1 200", found)


@pytest.mark.parametrize("slow", ["head", "body"])
def test_a_client_that_sends_a_byte_now_and_then_is_ended(
    monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """Otherwise a few such clients keep all connections, and nobody else gets an answer."""
    monkeypatch.setattr(http_server, "REQUEST_S", 0.2)
    sent = posted(bytes(997)) if slow == "body" else b"GET / HTTP/1.1\r\nx: " + b"y" * 997
    rest = iter(range(len(sent) - 990, len(sent) - 840))
    pieces = itertools.chain([sent[:-990]], (sent[at : at + 1] for at in rest))
    assert b" 408 " in asyncio.run(answered(pieces, pause=0.02))
    assert next(rest, None) is not None


def test_an_idle_connection_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_END_S", 0.05)

    async def ended() -> bytes:
        server, here = await (http := HttpServer(Address("127.0.0.1", 0), print, None)).start()  # type: ignore[arg-type]
        reader, writer = await asyncio.open_connection(here.host, here.port)
        while not http._tasks:
            await asyncio.sleep(0.01)
        server.close()
        await asyncio.wait_for(http.end(), 5)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        return b"ended"

    assert asyncio.run(ended()) == b"ended"


@pytest.mark.parametrize("long", ["target", "name", "value"])
def test_every_byte_of_a_header_counts(long: str) -> None:
    most = http_server.MOST_HEADER_BYTES
    for size, status in ((most, b"200"), (most + 1, b"431")):
        form = {"target": "/{}", "name": "/", "value": "/"}[long]
        head = f"GET {form} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        head += {"target": "", "name": "x{}: y\r\n", "value": "x: y{}\r\n"}[long] + "\r\n"
        sent = head.format("z" * (size - len(head) + 2)).encode()
        assert len(sent) == size
        assert asyncio.run(answered([sent])).split(b" ")[1] == status


def test_plaintext_is_for_loopback_alone(source: Together) -> None:
    service = PredictionService(source, None)
    with pytest.raises(InvalidValue, match="not a loopback address"):
        asyncio.run(service.run(Address("0.0.0.0", 0), print))


def credentials(folder: Path, party: str, roles: dict[str, list[str]] | None) -> Credentials:
    if roles is not None:
        (folder / party / "tls.yaml").write_text(yaml.safe_dump({"roles": roles}), "utf-8")
    return Credentials.read(folder, party, ["lead", "bank"])


def test_certificates_have_rights(source: Together, tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    write_certificates(folder, ["lead", "bank", "desk", "ops"])
    write_certificates(tmp_path / "others", ["desk"])
    roles = {"desk": ["predict"], "ops": ["metrics"], "bank": ["predict", "probabilities"]}
    own, one = credentials(folder, "lead", roles), source.leader.ids[source.common][0].item()

    def client(who: str, where: Path = folder) -> ssl.SSLContext:
        context = Credentials.read(where, who).client_context()
        context.load_verify_locations(folder / "authority.pem")
        return context

    with Served(source, own) as served:
        asked = {
            who: (
                served.ask("/predict", {"id": one}, tls=client(who)),
                served.ask("/metrics", tls=client(who))[0],
                served.ask("/health", tls=client(who), host="scoring.lead.example:8443"),
            )
            for who in ("desk", "ops", "bank", "lead")
        }
        # Under TLS 1.3 a client learns only when it reads that its certificate was refused.
        for broken in (client("desk", tmp_path / "others"), ssl._create_unverified_context()):
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
                served.ask("/health", tls=broken)
    assert asked["desk"][0][0] == 200
    assert set(asked["desk"][0][1]) == {"id", "prediction"}
    assert "probability of yes" in asked["bank"][0][1]
    assert [asked[who][0][0] for who in ("ops", "lead")] == [403, 403]
    assert [asked[who][1] for who in ("desk", "ops", "bank", "lead")] == [403, 200, 403, 403]
    assert {asked[who][2][0] for who in asked} == {200}
    # Only a client with the right to metrics reads how many rows the parties have in common.
    assert [set(asked[who][2][1]) - {"status"} for who in asked] == [set(), {"rows"}, set(), set()]


def test_a_silent_client_neither_delays_nor_disturbs_the_end(
    source: Together, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "certificates"
    write_certificates(folder, ["lead", "bank"])
    own, context = (
        credentials(folder, "lead", None),
        Credentials.read(folder, "bank").client_context(),
    )
    context.check_hostname = False
    with Served(source, own) as served:
        waiting = context.wrap_socket(socket.create_connection(("127.0.0.1", served.port)))
        assert served.ask("/health", tls=context)[0] == 200
        served._loop.call_soon_threadsafe(  # as asyncio does with all tasks after a signal
            lambda: [task.cancel() for task in asyncio.all_tasks(served._loop)]
        )
        served._thread.join(20)
        assert not served._thread.is_alive()
    waiting.close()
    assert not caplog.records


def test_a_session_needs_the_right_of_its_purpose(tmp_path: Path) -> None:
    write_certificates(tmp_path, ["lead", "bank"])
    check_right(credentials(tmp_path, "bank", None), "lead", "train")
    own = credentials(tmp_path, "bank", {"lead": ["predict"]})
    check_right(own, "lead", "predict")
    for right in ("train", "evaluate", "generate"):
        with pytest.raises(
            RightMissing, match=f"lead may not {right} with bank: roles in"
        ) as caught:
            check_right(own, "lead", right)
        # The other party learns the reason, and not where this party's files are.
        assert _told_of(caught.value) == f"its roles do not let lead {right}"
    meeting = Meeting(Address("127.0.0.1", 0), own)
    _check_purpose(meeting, "lead", "score")
    with pytest.raises(RightMissing, match="lead may not evaluate"):
        _check_purpose(meeting, "lead", "evaluate")
    for roles, why in (
        ({"lead": ["predicts"]}, "a right that is not known, predicts \\(did you mean predict"),
        ({"lead": "train"}, "not a list of rights"),
        (["train"], "not a block"),
    ):
        with pytest.raises(CertificateError, match=why):
            credentials(tmp_path, "bank", roles)  # type: ignore[arg-type]


def test_each_figure_of_a_service_is_counted_under_its_name() -> None:
    metrics = ServiceMetrics(7)
    metrics.predictions, metrics.unknown, metrics.refused = 11, 13, 17
    for path, status, seconds in (
        ("/predict", 200, 0.025), ("/predict", 503, 0.3), ("/health", 200, 9.0), ("/x", 404, 8.0),
        ("/y", 404, 8.0),
    ):  # fmt: skip
        metrics.answered(path, status, seconds)
    lines = [line for line in metrics.text(5).splitlines() if not line.startswith("#")]
    said = dict(line.removeprefix("fedveil_").rsplit(" ", 1) for line in lines)
    buckets = [value for name, value in said.items() if "bucket" in name]
    assert buckets == ["0", "0", "1", "1", "1", "1", "2", "2", "2", "2", "2"]
    assert {name: value for name, value in said.items() if "bucket" not in name} == {
        'requests_total{path="/health",status="200"}': "1",
        'requests_total{path="/predict",status="200"}': "1",
        'requests_total{path="/predict",status="503"}': "1",
        'requests_total{path="other",status="404"}': "2",
        "predictions_total": "11", "unknown_ids_total": "13", "refused_ids_total": "17",
        "queue_waiting": "5", "queue_limit": "7",
        "answer_seconds_sum": "0.325000", "answer_seconds_count": "2",
    }  # fmt: skip


def test_each_request_is_in_the_queue_until_its_own_end(
    source: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, honest = source.leader.ids[source.common].tolist(), source.scores
    gate = threading.Semaphore(0)

    def scores(rows: Any) -> Any:
        assert gate.acquire(timeout=20)
        return honest(rows)

    monkeypatch.setattr(source, "scores", scores)

    async def play() -> list[int]:
        service = PredictionService(source, None, queue=3)

        def asked(at: int) -> asyncio.Task[Answer]:
            body = json.dumps({"id": ids[at]}).encode()
            return asyncio.create_task(service.handle(Request("POST", "/predict", body, None)))

        waiting = [asked(at) for at in range(3)]
        found = [(await asked(3)).status]
        gate.release()
        found.append((await waiting[0]).status)
        told = (await service.handle(Request("GET", "/metrics", b"", None))).data.splitlines()
        assert "fedveil_queue_waiting 2" in told
        waiting.append(asked(4))
        found.append((await asked(5)).status)
        gate.release(3)
        found += [(await one).status for one in waiting[1:]]
        service._worker.shutdown()
        return found

    assert asyncio.run(play()) == [503, 200, 503, 200, 200, 200]


def test_a_row_without_a_finite_output_has_no_prediction(source: Together) -> None:
    service = PredictionService(source, None)
    ids, rows = source.leader.ids[source.common].tolist(), source.common.tolist()
    service._answers._known[rows[:2]] = True
    service._answers._outputs[rows[0], 1] = float("nan")

    def asked(**body: Any) -> tuple[int, Any]:
        request = Request("POST", "/predict", json.dumps(body).encode(), None)
        answer = asyncio.run(service.handle(request))
        return answer.status, json.loads(answer.encoded()[1])

    status, one = asked(id=ids[0])
    assert (status, one) == (422, {"id": ids[0], "error": "the model's output for it is NaN or "
                                   "infinite"})  # fmt: skip
    status, both = asked(ids=ids[:2])
    assert (status, both["predictions"][0]) == (200, one)
    assert both["predictions"][1]["prediction"] in ("no", "yes")
    assert service.metrics.predictions == 1


def test_each_client_has_unknown_ids_of_its_own(
    source: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "may", lambda *given: True)
    own: Any = object()
    service = PredictionService(source, own, guesses=2)

    def asked(ids: list[str], *names: str) -> int:
        request = Request("POST", "/predict", json.dumps({"ids": ids}).encode(), names)
        return asyncio.run(service.handle(request)).status

    assert [asked(["n1", "n2"], "desk"), asked(["n3"], "desk")] == [200, 429]
    known = source.leader.ids[source.common].tolist()[:1]
    assert [asked(known, who) for who in ("desk", "shop")] == [429, 200], "an answer says who is in"
    assert [asked(["n1", "n2"], "ops", "tower"), asked(["n1"], "tower", "ops")] == [200, 429]


def test_a_body_of_the_largest_size_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_BODY_BYTES", 1000)
    for size, status in ((1000, b"200"), (1001, b"413")):
        assert asyncio.run(answered([posted(bytes(size))])).split(b" ")[1] == status


def test_a_client_may_be_idle_longer_than_a_request_takes_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.1)
    monkeypatch.setattr(http_server, "IDLE_S", 5.0)
    assert b" 200 " in asyncio.run(answered([b"", posted(b"abc")], pause=0.3))
    monkeypatch.setattr(http_server, "IDLE_S", 0.1)
    assert b" 408 " in asyncio.run(answered([b""], pause=0.3))


def test_a_request_that_the_parties_answer_too_late_stays_in_the_queue(
    source: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are charged, and the answer is there when the client asks again."""
    monkeypatch.setattr(service_module, "ANSWER_S", 0.05)
    going, honest, ids = threading.Event(), source.scores, source.leader.ids[source.common].tolist()

    def scores(rows: Any) -> Any:
        assert going.wait(20)
        return honest(rows)

    monkeypatch.setattr(source, "scores", scores)

    async def play() -> None:
        service = PredictionService(source, None)
        request = Request("POST", "/predict", json.dumps({"id": ids[4]}).encode(), None)
        late = await service.handle(request)
        assert (late.status, late.retry_s, service._waiting) == (503, 10, 1)
        going.set()
        while service._waiting:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(service_module, "ANSWER_S", 20.0)
        assert (await service.handle(request)).status == 200
        service._worker.shutdown()

    asyncio.run(play())


def test_a_service_without_an_address_or_a_party_says_so(source: Together) -> None:
    service = PredictionService(source, None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(InvalidValue, match=f"^nobody can listen on {here}: "):
            asyncio.run(service.run(here, print))
    service.failure = ExchangeError("bank lies")
    failed = service._health(Request("GET", "/health", b"", None))
    assert (failed.status, failed.data) == (503, {"status": "failed"})
