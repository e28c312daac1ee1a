"""An NVFlare workflow that runs the server's side of a protection that the sites' filters apply.

The message that asks for training is an ordinary training task with the model. Every other message
of a round is a task named `fedveil_phase`, for which no site reads data.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.model_controller import ModelController

from fedveil.base.message import Message, encode
from fedveil.base.quantity import quantity
from fedveil.base.validate import integer
from fedveil.errors import InvalidValue, MessageInvalid
from fedveil.flower.app.arrays import Arrays
from fedveil.nvflare.components import DIMENSION, MESSAGE, PHASE_TASK, report_of
from fedveil.protections.base import RoundContext
from fedveil.rounds import outcomes
from fedveil.rounds.loop import Carrier, drive, shared
from fedveil.rounds.outcomes import Answer, ClientId
from fedveil.secagg.keys import KEY_BYTES
from fedveil.site.task_terms import Terms, number_of, shaped

_LOOK_S = 0.05
_KEY = re.compile(f"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")


class ProtectedController(ModelController):  # type: ignore[misc]
    """Trains for `rounds` rounds under `protection`, which must equal that of the sites' filters.

    Secure aggregation needs `sites`, the sites' names. A site's index in this list is its client
    number. With active security it also needs `keys`, the sites' public keys in the same order. A
    round with too few answers does not change the model. The controller waits at most `timeout_s`
    seconds for the answers to each message.
    """

    def __init__(
        self,
        protection: Mapping[str, Any],
        rounds: int,
        sites: list[str] | None = None,
        keys: list[str] | None = None,
        timeout_s: int = 600,
        persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID,
    ) -> None:
        super().__init__(persistor_id=persistor_id)
        self._terms = Terms.read(protection)
        self._rounds = integer("rounds", rounds, 1)
        # NVFlare takes 0 for no limit.
        self._timeout_s = integer("timeout_s", timeout_s, 1)
        if self._terms.summed and not sites:
            raise InvalidValue("sites is missing: list the sites' names in the order of a sum")
        options, names, named = self._terms.options, sites or [], keys or []
        if self._terms.summed and not len(set(names)) == len(names) <= (options.clients or 0):
            raise InvalidValue(
                f"sites = {names} has a name twice, or more than clients = {options.clients} names"
            )
        signed = getattr(options.parameters, "active_security", False)
        right = [bool(_KEY.fullmatch(str(key))) for key in named]
        if signed and right != [True] * len(names):
            raise InvalidValue(
                f"active_security needs keys, a public key of {2 * KEY_BYTES} hexadecimal digits "
                f"for each of the {len(names)} sites"
            )
        self._sites = sites
        self._roster = {n: bytes.fromhex(key) for n, key in enumerate(named)}

    def run(self) -> None:
        """Run all rounds. Saves the model after each round, unless the round is void."""
        model = self.load_model()
        layout = self._terms.layout(model.params)
        job = self._terms.job(str(self.fl_ctx.get_job_id()), layout.dimension)
        protection = self._terms.protection(layout.dimension, job, self._roster)
        state = protection.initial_state()
        for number in range(1, self._rounds + 1):
            if self.abort_signal.triggered:
                return
            names = self._names()
            vector = layout.vector(model.params)
            server = protection.server_round(RoundContext(sorted(names), number, vector, state))
            opening = server.opening()
            sent = _Round(number, layout.dimension, protection.trains, model.params, names)
            carrier = _TaskCarrier(self, sent, self._timeout_s)
            outcome = drive(server, carrier, dict.fromkeys(sorted(names), opening), sent.trains)
            aggregate = outcome.result(server.aggregate)
            if aggregate is None:
                self.warning(f"round {number} is void: {outcome.void}")
                continue
            state = aggregate.state
            for name, change in shaped(layout, aggregate.update).items():
                model.params[name] = model.params[name] + change
            self.info(f"round {number}: {quantity(aggregate.reports, 'report')}")
            self.save_model(model)

    def _names(self) -> dict[ClientId, str]:
        here = [client.name for client in self.engine.get_clients()]
        if self._sites is None:
            return {number_of(name): name for name in here}
        return {n: name for n, name in enumerate(self._sites) if name in here}


@dataclass(frozen=True)
class _Round:
    number: int
    dimension: int
    trains: str
    arrays: Arrays
    names: Mapping[ClientId, str]


class _TaskCarrier(Carrier):
    def __init__(self, controller: ProtectedController, of: _Round, timeout_s: int) -> None:
        self._controller, self._of, self._timeout_s = controller, of, timeout_s
        self._numbers = {name: number for number, name in of.names.items()}
        self._results: SimpleQueue[tuple[str, Shareable]] = SimpleQueue()

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        tasks = [self._sent(phase, words, clients) for words, clients in shared(messages)]
        while not self._controller.abort_signal.triggered:
            over = all(task.completion_status is not None for task in tasks)
            try:
                while True:
                    yield self._read(*self._results.get_nowait())
            except Empty:
                if over:
                    return
                time.sleep(_LOOK_S)

    def _sent(self, phase: str, words: Message, clients: list[ClientId]) -> Task:
        training = phase == self._of.trains
        data = DXO(DataKind.WEIGHTS, self._of.arrays).to_shareable() if training else Shareable()
        data[MESSAGE] = encode(words)
        data.set_header(AppConstants.CURRENT_ROUND, self._of.number)
        data.set_header(DIMENSION, self._of.dimension)
        name = AppConstants.TASK_TRAIN if training else PHASE_TASK
        task = Task(name, data, timeout=self._timeout_s, result_received_cb=self._received)
        targets = [self._of.names[client] for client in clients]
        self._controller.broadcast(task, self._controller.fl_ctx, targets, len(targets))
        return task

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        self._results.put((client_task.client.name, client_task.result))
        client_task.result = None

    def _read(self, site: str, result: Shareable) -> Answer:
        client, code = self._numbers[site], result.get_return_code()
        if code != ReturnCode.OK:
            return outcomes.Withheld(client, outcomes.short(str(code)))
        try:
            return outcomes.Report(client, report_of(result))
        except MessageInvalid as error:
            return outcomes.Refused(client, 0, str(error))
