"""Predictions over HTTP: the leader answers for ids of its file of new rows.

    POST /predict   {"id": "u7"} or {"ids": ["u7", "u9"]}
    GET /health     200 while predictions can be answered, else 503
    GET /metrics    figures in Prometheus' text format

Requests wait in a bounded queue, and the answer is 503 if the queue is full. A row is sent between
the parties only once. Each client has a limit on unknown ids, because an unknown id may be a guess
at who is in the file. The counts survive a restart.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fedveil.base.untrusted import MALFORMED, escaped
from fedveil.errors import FedveilError, InvalidValue
from fedveil.link.rights import may
from fedveil.link.roles import METRICS, PREDICT, PROBABILITIES
from fedveil.link.streams import Address, check_plaintext
from fedveil.link.tls import Credentials
from fedveil.vertical.calibration import usable
from fedveil.vertical.scoring.guesses import UNKNOWN, Guesses
from fedveil.vertical.scoring.http_server import Answer, HttpServer, Request
from fedveil.vertical.scoring.predicted import Answers, Decision
from fedveil.vertical.scoring.service_metrics import ServiceMetrics
from fedveil.vertical.scoring.sources import Source

#: The largest number of ids in a request.
MOST_IDS = 1000
MOST_ID_LETTERS = 256
#: The number of clients with a count of their own. Further clients share one.
_MOST_CLIENTS = 10_000
#: Seconds after which a waiting client is told to ask again.
ANSWER_S = 30.0


class PredictionService:
    """Answers HTTP requests with scores, which it gets from `source`.

    At most `queue` requests wait at a time. A client may ask for at most `guesses` unknown ids. If
    it has asked for more, all its further requests are refused. If only its requests with unknown
    ids were refused, a refusal would reveal that an id is unknown. `report` gets the reasons why
    certificates are refused.
    """

    def __init__(
        self,
        source: Source,
        own: Credentials | None,
        *,
        queue: int = 64,
        guesses: int = 100,
        report: Callable[[str], None] = print,
    ) -> None:
        self._source, self._own, self._report = source, own, report
        self._answers, self._decision = Answers(source), Decision(source.leader)
        ids = source.leader.ids
        self._row = {ids[row].item(): row for row in source.common.tolist()}
        self._queue, self._most_guesses = queue, guesses
        self._guesses = Guesses(source.leader.state, UNKNOWN, ids)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="scoring")
        self._waiting = 0
        self.metrics = ServiceMetrics(queue)
        self.failure: FedveilError | None = None
        self._failed = asyncio.Event()

    @property
    def note(self) -> str | None:
        return self._decision.note

    async def run(self, address: Address, listening: Callable[[Address], None]) -> None:
        """Answer requests until cancelled. Raises an error if the link to a party is lost.

        `listening` is called with the address once the service listens.
        """
        if self._own is None:
            check_plaintext("--http", address)
        try:
            http = HttpServer(address, self.handle, self._own, self._report)
            server, here = await http.start()
        except OSError as error:
            raise InvalidValue(
                f"nobody can listen on {address}: {error.strerror or error}"
            ) from None
        try:
            listening(here)
            await self._failed.wait()
        finally:
            server.close()
            await http.end()
            self._worker.shutdown(cancel_futures=True)
        assert self.failure is not None, "the event says so"
        raise self.failure

    async def handle(self, request: Request) -> Answer:
        began = time.perf_counter()
        answer = await self._answer(request)
        self.metrics.answered(request.path, answer.status, time.perf_counter() - began)
        return answer

    async def _answer(self, request: Request) -> Answer:
        method, right = _PATHS.get(request.path, ("", None))
        if not method:
            return Answer(404, {"error": f"the paths are {', '.join(_PATHS)}"})
        if request.method != method:
            return Answer(405, {"error": f"{request.path} needs {method}"})
        if right is not None and not self._may(request, right):
            return Answer(403, {"error": f"this certificate has no right to {right}"})
        if request.path == "/health":
            return self._health(request)
        if request.path == "/metrics":
            return Answer(200, self.metrics.text(self._waiting))
        return await self._predict(request)

    def _health(self, request: Request) -> Answer:
        if self.failure is not None:
            return Answer(503, {"status": "failed"})
        if not self._source.is_connected:
            return Answer(503, {"status": "a party is not connected"})
        rows = {"rows": len(self._row)} if self._may(request, METRICS) else {}
        return Answer(200, {"status": "ok", **rows})

    async def _predict(self, request: Request) -> Answer:
        try:
            ids, is_one = _ids_in(request.body)
        except InvalidValue as error:
            return Answer(400, {"error": str(error)})
        who = "loopback" if request.client is None else ",".join(sorted(request.client))
        own = dict(zip(ids, self._source.leader.new.normalised(ids), strict=True))
        missing = sum(own[one] not in self._row for one in ids)
        try:
            if not self._count_guesses(who, missing):
                return Answer(429, {"error": "too many ids that are not there"}, 3600)
        except FedveilError as error:  # even a closed connection would reveal an unknown id
            return self._failing(error, "the service cannot count requests")
        if self._waiting >= self._queue:
            return Answer(503, {"error": "the queue is full"}, 1)
        probabilities = self._may(request, PROBABILITIES)
        loop = asyncio.get_running_loop()
        self._waiting += 1
        work = loop.run_in_executor(self._worker, self._predicted, ids, own, who, probabilities)
        work.add_done_callback(self._ended)
        try:
            found = await asyncio.wait_for(asyncio.shield(work), ANSWER_S)
        except TimeoutError:
            return Answer(503, {"error": "the other parties did not answer in time"}, 10)
        except FedveilError as error:
            return self._failing(error, "a party is lost")
        why = found[0].get("error")
        if is_one and why is not None:
            return Answer(_STATUS[why], found[0])
        return Answer(200, found[0] if is_one else {"predictions": found})

    def _failing(self, error: FedveilError, told: str) -> Answer:
        """End the service with `error`. Returns the last client's answer, which says `told`."""
        self.failure = error
        self._failed.set()
        return Answer(503, {"error": told})

    def _ended(self, work: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not work.cancelled():
            work.exception()  # retrieves an error that nobody waits for any more

    def _predicted(
        self, ids: Sequence[str], own: Mapping[str, str], who: str, probabilities: bool
    ) -> list[dict[str, Any]]:
        """Return an answer for each of `ids`: its prediction, or an error.

        `own` maps an id to its form in the leader's file. `who` names the client in the log. If
        `probabilities` is True, an answer also has the classes' probabilities.
        """
        known = [one for one in dict.fromkeys(own.values()) if one in self._row]
        rows = np.array([self._row[one] for one in known], np.int64)
        outputs, refused = self._answers.of_rows(rows)
        good = usable(outputs)
        outputs[~good] = 0
        columns = self._decision.columns(outputs) if len(known) else {}
        found: dict[str, dict[str, Any]] = {}
        for at, one in enumerate(known):
            if refused[at]:
                found[one] = {"error": _REFUSED}
                continue
            if not good[at]:
                found[one] = {"error": _UNUSABLE}
                continue
            told = {name: column[at] for name, column in columns.items()}
            found[one] = {"prediction": told.pop("prediction")}
            if probabilities:
                found[one] |= {name: float(value) for name, value in told.items()}
        self.metrics.refused += int(refused.sum())
        self.metrics.predictions += int((good & ~refused).sum())
        self._source.leader.log.event(
            f"answered {who}: {len(known):,} of {len(ids):,} ids, {int(refused.sum()):,} refused "
            f"by a limit"
        )
        return [{"id": one, **found.get(own[one], {"error": _UNKNOWN})} for one in ids]

    def _count_guesses(self, who: str, missing: int) -> bool:
        """Add `missing` to the unknown ids that the client `who` has asked for so far.

        Returns False if the sum is too large. It is saved before the client gets an answer. Once
        the sum is too large, neither it nor the service's metrics count further ids: otherwise the
        client could read in the metrics whether an id of a refused request is unknown.
        """
        who = hashlib.sha256(who.encode()).hexdigest()  # a certificate may have long names
        if not self._guesses.of(who) and len(self._guesses) >= _MOST_CLIENTS:
            who = "all others"
        if missing and self._guesses.of(who) <= self._most_guesses:
            self._guesses.add(who, missing)
            self.metrics.unknown += missing
        return self._guesses.of(who) <= self._most_guesses

    def _may(self, request: Request, right: str) -> bool:
        """Return True if the client has the right `right`. Without TLS, it has all rights."""
        if request.client is None or self._own is None:
            return self._own is None
        return may(self._own, request.client, right)


_UNKNOWN = "not an id of this file, or not at all parties"
_REFUSED = "a party's privacy.max_epsilon allows no further answer for it"
_UNUSABLE = "the model's output for it is NaN or infinite"
#: The status of a request for a single id, by its error.
_STATUS = {_UNKNOWN: 404, _REFUSED: 403, _UNUSABLE: 422}
#: The method and the right that each path needs.
_PATHS = {"/predict": ("POST", PREDICT), "/health": ("GET", None), "/metrics": ("GET", METRICS)}


def _ids_in(body: bytes) -> tuple[list[str], bool]:
    """Return the ids in a request's body, and True if the body asks for a single id.

    Raises InvalidValue if the body has another form.
    """
    try:
        asked = json.loads(body)
    except MALFORMED:
        raise InvalidValue("the body is not JSON") from None
    if not isinstance(asked, dict) or set(asked) not in ({"id"}, {"ids"}):
        raise InvalidValue('the body is not {"id": "..."} or {"ids": ["...", ...]}')
    ids = asked.get("ids", [asked.get("id")])
    if not isinstance(ids, list) or not 1 <= len(ids) <= MOST_IDS:
        raise InvalidValue(f"a request has 1 to {MOST_IDS:,} ids")
    for one in ids:
        if not isinstance(one, str) or not 1 <= len(one) <= MOST_ID_LETTERS or escaped(one) != one:
            raise InvalidValue(f"an id is text of 1 to {MOST_ID_LETTERS} letters")
    return ids, "id" in asked
