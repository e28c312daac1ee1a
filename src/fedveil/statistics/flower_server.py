"""The ServerApp of a question: runs its rounds over Flower's grid, and saves the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fedveil.base.message import Message, encode
from fedveil.base.plain_text import say
from fedveil.errors import RunStopped
from fedveil.federated.job import Job
from fedveil.flower.exchange import exchange, may_have_reported, reported
from fedveil.flower.job.app_folder import server_roster
from fedveil.flower.job.node_mapping import Members
from fedveil.flower.records import addressed_records, check_report, common_record
from fedveil.rounds import outcomes
from fedveil.rounds.loop import Carrier
from fedveil.rounds.outcomes import Answer, ClientId
from fedveil.statistics.answer_folder import QUESTION, create, keep
from fedveil.statistics.answers import Answers
from fedveil.statistics.asking import Asking, Engine
from fedveil.statistics.carriage import Carriage, Participants
from fedveil.statistics.plan import Layout
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.schedule import Step

FOLDER = "folder"
#: Seconds for which a message stays available after the server has stopped waiting.
_GRACE_S = 300.0


def serve(folder: Path, grid: Grid, context: Context) -> Answers:
    """Run the question of the app in `folder`, and save and return the answers."""
    file = QuestionFile.load(folder / QUESTION)
    named = context.run_config.get(FOLDER)
    asking = Asking(file, FlowerEngine(grid, file, server_roster(folder, file.protection)))
    kept = create(Path(str(named)) if named else None, file.name)
    try:
        answers = asking.run(say)
        keep(answers, kept)
    finally:
        kept.close()
    say(f"answers in {kept.path}")
    return answers


class FlowerEngine(Engine):
    """Carries messages to SuperNodes, the clients' machines. Each one answers from its own rows."""

    reports_leave = True

    def __init__(self, grid: Grid, file: QuestionFile, roster: Mapping[ClientId, bytes]) -> None:
        assert file.clients is not None, "`deployable` has counted them"
        self._grid, self._file = grid, file
        self._members = Members(grid, Job(clients={"number": file.clients}), say)
        self.who = Participants(file.clients, simulated=False, roster=roster)

    def carrier(self, step: Step, layout: Layout, carriage: Carriage) -> Carrier:
        """Wait until enough clients are connected. Returns the object that carries the messages.

        The messages are those of round `step`. `layout` is the layout of a client's vector, and
        `carriage` encodes it as an update. Raises `RunStopped` if too few clients connect in time.
        """
        check_report(carriage.protection)
        everybody, limit_s = range(self.who.clients), self._file.answer_s
        least = self.who.clients if step.round == 1 else carriage.protection.least_clients
        here = self._members.wait_for(everybody, self.who.clients, limit_s)
        if here < least:
            raise RunStopped(
                f"{here} of {self.who.clients} clients were connected within answer_s = "
                f"{limit_s:g} s"
            )
        return GridCarrier(self._grid, self._members, step, limit_s)


class GridCarrier(Carrier):
    """Sends the messages of one round over Flower's grid."""

    def __init__(self, grid: Grid, members: Members, step: Step, window_s: float) -> None:
        self._grid, self._members, self._step = grid, members, step
        self._window_s = window_s
        self._opening = True

    def ask(self, phase: str, messages: Mapping[int, Message]) -> Iterator[Answer]:
        node_of = self._members.node_of
        reached = [client for client in messages if client in node_of]
        yield from map(outcomes.Unreached, messages.keys() - set(reached))
        common = common_record({"opening": self._opening, **self._step.message()})
        self._opening = False
        outgoing = [
            FlowerMessage(
                addressed_records(client, encode(messages[client]), common),
                node_of[client],
                f"train.{phase}",
                ttl=self._window_s + _GRACE_S,
                group_id=str(self._step.round),
            )
            for client in reached
        ]
        for at, reply in exchange(self._grid, outgoing, self._window_s):
            client = reached[at]
            answer = outcomes.Unreached(client) if reply is None else _read(client, reply)
            if answer is not None:
                yield answer


def _read(client: int, reply: FlowerMessage) -> Answer | None:
    if reply.has_error():
        from fedveil.statistics.flower_client import ERROR_CODE

        if reply.error.code == ERROR_CODE:
            return outcomes.Withheld(client, "the client's own log says why")
        return None if may_have_reported(reply) else outcomes.Unreached(client)
    return reported(client, reply)
