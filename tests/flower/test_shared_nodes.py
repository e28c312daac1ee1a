"""Nodes with several clients: the simulation's bytes, and neither side mixes the clients up."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message

import fedveil
import parts
from fedveil.base.message import decode, encode
from fedveil.errors import DeploymentError, RunFailed
from fedveil.federated.job import Job
from fedveil.flower.job import client_training, grid_executor
from fedveil.flower.job.member import members_of
from fedveil.flower.records import ADDRESS, COMMON, MESSAGE, common_record, to_records
from fedveil.protections import origin
from flower_parts import (
    MOVING,
    POSITIONS,
    PW,
    SHARES,
    LocalGrid,
    app_of,
    context,
    job,
    kinds,
    named,
    same,
    serve,
)

#: Seven clients on three nodes: several, several with a gap, and one alone.
NODES: dict[int, dict[str, Any]] = {
    201: {"clients": "0,2,5"},
    202: {"clients": "3-4, 1"},
    203: {"client": 6},
}
HELD = {201: {0, 2, 5}, 202: {1, 3, 4}, 203: {6}}


def shared(**changes: Any) -> Job:
    """Return a job of seven clients, of whom a node may hold three."""
    deployment = {"clients_per_node": 3, **changes.pop("deployment", {})}
    clients = {"number": 7, "fraction": 1.0, **changes.pop("clients", {})}
    return job(clients=clients, deployment=deployment, **changes)


class Nodes(LocalGrid):
    """A grid in this process of the nodes in `NODES`."""

    def __init__(self, app: Path, state: Path, **more: Any) -> None:
        super().__init__(app, state, [])
        for node, config in NODES.items():
            own = {"state-folder": str(state / str(node)), "seeded": True, **config, **more}
            self.contexts[node] = context(node, {}, own)


def run(
    folder: Path,
    settings: Job,
    tamper: Callable[[Message], Message | None] = lambda message: message,
    *,
    seeded: bool = True,
    **more: Any,
) -> tuple[Any, Nodes]:
    app, _ = app_of(folder / "app", settings, seeded=seeded)
    grid = Nodes(app, folder / "state", **more)
    grid.tamper = tamper
    return serve(app, grid, folder / "run"), grid


def words(message: Message, record: str = MESSAGE) -> dict[str, Any]:
    return decode(message.content[record]["encoded"])  # type: ignore[arg-type, index]


def asked(message: Message, kind: str, node: int) -> bool:
    """Return True for the server's message of this kind to this node."""
    metadata = message.metadata
    return (metadata.message_type, metadata.dst_node_id) == (kind, node)


def answers(message: Message, kind: str, node: int) -> bool:
    """Return True for this node's reply to a message of this kind."""
    metadata = message.metadata
    return (metadata.message_type, metadata.src_node_id) == (kind, node) and message.has_content()


def events(result: Any) -> str:
    return str((result.folder / "events.log").read_text())


@pytest.mark.parametrize("position", POSITIONS, ids=named)
def test_three_nodes_with_seven_clients_give_the_simulators_bytes(
    tmp_path: Path, position: Any
) -> None:
    settings = shared(rounds=1, protection=position)
    deployed, grid = run(tmp_path, settings)
    simulated = fedveil.simulate(settings, tmp_path / "simulated")
    assert same(deployed, simulated)
    (mine,), (theirs,) = deployed.metrics, simulated.metrics
    for key in ("reports", "bytes_up", "accuracy", "epsilon_run_most_drawn", "dropped", "void"):
        assert mine[key] == theirs[key]
    assert mine["reports"] == 7
    phases = len(kinds(grid.sent)) - 1
    assert len(grid.replies) == 3 * (1 + phases)  # one message to a node, whatever it holds
    for reply in grid.replies[3:]:
        held = HELD[reply.metadata.src_node_id]
        if len(held) > 1:
            assert words(reply).keys() == set(map(str, held))
            assert all(type(answer) is bytes for answer in words(reply).values())
    assert all(not context.state for context in grid.contexts.values())


def test_each_client_keeps_its_own_state(tmp_path: Path) -> None:
    """SCAFFOLD's variates, a client with its own rounds, in the folder of its node."""
    training = {"algorithm": "scaffold", "epochs": 1, "batch_size": 10}
    settings = shared(rounds=3, training=training, clients={"fraction": 0.58})
    deployed, _ = run(tmp_path, settings)
    assert same(deployed, fedveil.simulate(settings, tmp_path / "simulated"))
    for node, held in HELD.items():
        kept = {int(p.stem.rpartition("-")[2]) for p in (tmp_path / f"state/{node}").glob("*.kept")}
        assert kept <= held


def test_messages_to_a_node_are_limited_by_the_bytes_of_its_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = shared(rounds=1)
    whole, _ = run(tmp_path / "whole", settings)
    length = whole.metrics[0]["bytes_up"] // 7
    monkeypatch.setattr(grid_executor, "_REPLY_BYTES", 2 * length + 9)
    split, grid = run(tmp_path / "split", settings)
    assert same(whole, split)
    trained = [reply for reply in grid.replies if "train" in reply.metadata.message_type]
    sizes = [len(words(r)) for r in trained if r.metadata.src_node_id != 203]
    assert sizes == [2, 1, 2, 1]


def test_a_node_introduces_its_clients_with_what_the_job_reveals(tmp_path: Path) -> None:
    settings = shared(rounds=1, deployment={"reveal": ["examples"]})
    result, grid = run(tmp_path, settings)
    introduced = [words(reply) for reply in grid.replies[:3]]
    assert introduced[0]["client"].tolist() == [0, 2, 5]
    assert introduced[0]["examples"].tolist() == [35, 34, 34]
    assert introduced[2] == {"client": 6, "examples": 34}
    assert "clients 0, 2 and 5 are here, with 103 examples" in events(result)
    assert "clients 1 and 3-4 are here, with 103 examples" in events(result)
    assert "up to 3 clients share a node: its operator has the data" in events(result)


def own_rows(client: int) -> dict[str, Any]:
    """Return a client's own examples: only those that it owns. Client 4's cannot be read."""
    if client == 4:
        raise OSError("this client's disk has failed")
    made = parts.data()
    mine = made.pop("client_ids") == client
    return {**made, "x_train": made["x_train"][mine], "y_train": made["y_train"][mine]}


@pytest.fixture
def _own_functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for client in range(7):
        name = f"rows_of_{client}"
        monkeypatch.setattr(parts, name, lambda c=client: own_rows(c), raising=False)
    yield
    sys.modules.pop("rows", None)


@pytest.mark.usefixtures("_own_functions")
def test_a_client_whose_data_fails_leaves_the_nodes_others(tmp_path: Path) -> None:
    """Each client has examples of its own, and only its own failure is its own."""
    by_client = {"name": "parts:data", "split": "by_client"}
    most = {"number": 8}
    settings = shared(rounds=1, data=by_client, clients=most, deployment={"start_clients": 7})
    result, grid = run(tmp_path, settings, data="parts:rows_of_{client}")
    record = result.metrics[0]
    assert (record["reports"], record["dropped"]) == (6, 1)  # client 7 is on no node
    assert record["failed"] == {"the client's own log says why": 1}
    (reply,) = [reply for reply in grid.replies if answers(reply, "train.report", 202)]
    told = words(reply)
    assert told["4"] == "failed"
    assert decode(told["3"])["update"].tobytes() != decode(told["1"])["update"].tobytes()


def test_each_client_counts_its_own_reports(tmp_path: Path) -> None:
    """A client that has given all its reports withholds. Its neighbours on the node answer."""
    settings = shared(rounds=2, protection="signds", deployment={"repeats": 0})
    counted: list[set[str]] = []

    def tamper(message: Message) -> Message:
        if asked(message, "train.report", 202):
            folder = tmp_path / "state" / "202"
            counted.append({path.name.rpartition("-")[2] for path in folder.glob("*.reports")})
            if len(counted) == 2:
                again = words(message, ADDRESS)
                message.content[ADDRESS] = ConfigRecord({"encoded": encode({"3": again["3"]})})
                grid = tampered[0]
                grid.app(message, grid.contexts[202])  # the server asks client 3 once more
                message.content[ADDRESS] = ConfigRecord({"encoded": encode(again)})
        return message

    app, _ = app_of(tmp_path / "app", settings)
    tampered = [Nodes(app, tmp_path / "state")]
    tampered[0].tamper = tamper
    result = serve(app, tampered[0], tmp_path / "run")
    assert counted == [set(), {"1.reports", "3.reports", "4.reports"}]
    first, second = result.metrics
    assert (first["reports"], second["reports"]) == (7, 6)
    assert second["withheld"] == {"the client's own log says why": 1}


# --- a server that lies -------------------------------------------------------------------------


def test_a_client_of_another_node_is_not_answered_for(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def tamper(message: Message) -> Message:
        if asked(message, "train.report", 201):
            parts_of = words(message, ADDRESS)
            stolen = {**parts_of, "6": parts_of["0"]}
            message.content[ADDRESS] = ConfigRecord({"encoded": encode(stolen)})
        elif answers(message, "train.report", 201):
            seen.append(words(message))
        return message

    result, _ = run(tmp_path, shared(rounds=1), tamper)
    assert seen[0]["6"] == "another client"
    assert not list((tmp_path / "state" / "201").glob("*-6.*"))
    # The server did not ask for client 6 there, so it refuses the reply as a whole.
    assert result.metrics[0]["rejected"] == {"a node answers for clients that were not asked": 3}
    assert result.metrics[0]["reports"] == 4


@pytest.mark.parametrize("position", [PW, SHARES, MOVING], ids=named)
def test_two_clients_messages_that_are_mixed_open_nothing(tmp_path: Path, position: Any) -> None:
    """Each client of the node gets the shares meant for its neighbour on the node."""
    mixed: list[int] = []

    def tamper(message: Message) -> Message:
        if asked(message, "train.masked", 201) and not mixed:
            said = {c: decode(own) for c, own in words(message, ADDRESS).items()}
            mixed.extend(said[c]["message"] for c in ("2", "5", "0"))
            moved = {c: {**said[c], "message": at} for c, at in zip("025", mixed, strict=True)}
            encoded = encode({c: encode(own) for c, own in moved.items()})
            message.content[ADDRESS] = ConfigRecord({"encoded": encoded})
        return message

    result, grid = run(tmp_path, shared(protection=position), tamper, seeded=False)
    assert len(set(mixed)) == 3
    reply = next(reply for reply in grid.replies if answers(reply, "train.masked", 201))
    assert words(reply) == dict.fromkeys("025", "withheld")
    first, second = result.metrics
    assert first["withheld"] == {"the client's own log says why": 3}
    assert second["reports"] == 7


@pytest.mark.parametrize(("position", "times"), [("rr", 0), ("central_gaussian", 0), (PW, 4)])
def test_a_node_digests_the_weights_once_for_all_its_clients_if_their_protection_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: Any, times: int
) -> None:
    """The three nodes have seven clients. The server digests the weights too."""
    lengths: list[int] = []

    def counted(data: Any) -> Any:
        lengths.append(len(bytes(data)))
        return hashlib.sha256(data)

    monkeypatch.setattr(origin, "hashlib", SimpleNamespace(sha256=counted))
    result, grid = run(tmp_path, shared(rounds=1, protection=position))
    told = [words(message, COMMON) for message in grid.sent if COMMON in message.content]
    (sent,) = {len(each["weights"]) for each in told if "weights" in each}
    assert lengths.count(4 * sent) == times
    assert result.metrics[0]["reports"] == 7


@pytest.mark.parametrize("field", ["classes", "weights"])
def test_a_node_whose_clients_are_told_different_things_gives_no_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """A server could make the training of all clients of a node fail, except for one."""
    told: list[Any] = []

    class Lenient(client_training.Training):
        """Trains as it was told to in truth, so that only the digests differ."""

        def __init__(self, job: Any, common: Any, *rest: Any) -> None:
            told.append(common[field])
            super().__init__(job, {**common, field: told[0]}, *rest)

    def tamper(message: Message) -> Message:
        if asked(message, "train.masked", 201):
            common = words(message, COMMON)
            true = common.pop(field)
            own = {c: {**decode(said), field: true} for c, said in words(message, ADDRESS).items()}
            own["5"][field] = true + 1
            message.content[COMMON] = common_record(common)
            encoded = encode({c: encode(fields) for c, fields in own.items()})
            message.content[ADDRESS] = ConfigRecord({"encoded": encoded})
        return message

    monkeypatch.setattr(client_training, "Training", Lenient)
    with pytest.raises(RunFailed, match="7 clients cannot have the sum"):
        run(tmp_path, shared(rounds=1, protection=PW), tamper)
    assert len(told) == 7


BROKEN: dict[str, Callable[[dict[str, bytes]], Any]] = {
    "twice": lambda own: {**own, "00": own["0"]},
    "no number": lambda own: {**own, "me": own["0"]},
    "no message": lambda own: {**own, "5": encode({"message": 7})},
    "no place": lambda own: {**own, "5": encode({})},
    "another round": lambda own: {**own, "5": encode({"message": 0, "round": 1})},
    "bytes": lambda own: {**own, "5": b"pickle"},
    "a word": lambda own: {**own, "5": "0"},
    "one client": lambda own: {"client": 0},
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_message_with_one_broken_part_is_refused_before_anybody_is_charged(
    tmp_path: Path, broken: str
) -> None:
    def tamper(message: Message) -> Message:
        if asked(message, "train.report", 201):
            changed = BROKEN[broken](words(message, ADDRESS))
            message.content[ADDRESS] = ConfigRecord({"encoded": encode(changed)})
        return message

    result, grid = run(tmp_path, shared(rounds=1, protection="rr"), tamper, seeded=False)
    (refused,) = [reply for reply in grid.replies if reply.has_error()]
    assert (refused.error.code, refused.error.reason) == (200, "withheld")
    assert result.metrics[0]["reports"] == 4
    assert not list((tmp_path / "state" / "201").glob("*.reports"))
    assert len(list((tmp_path / "state" / "202").glob("*.reports"))) == 3


def test_a_client_forgets_a_round_only_if_it_is_named(tmp_path: Path) -> None:
    """A farewell to one client leaves the keys of its neighbours in the next round."""
    kept: list[set[str]] = []
    grid_of: list[Nodes] = []

    def tamper(message: Message) -> Message | None:
        grid = grid_of[0]
        if asked(message, "train.masked", 201):
            farewell = to_records({"clients": np.array([2, 6], np.int64)})
            grid.app(Message(farewell, 201, "query.forget"), grid.contexts[201])
            kept.append(set(grid.contexts[201].state))
        return message

    app, _ = app_of(tmp_path / "app", shared(rounds=1, protection=PW))
    grid_of.append(Nodes(app, tmp_path / "state"))
    grid_of[0].tamper = tamper
    result = serve(app, grid_of[0], tmp_path / "run")
    assert kept == [{"fedveil.state.0", "fedveil.state.5"}]
    assert result.metrics[0]["reports"] == 6


# --- a node that lies ---------------------------------------------------------------------------

LIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "for another": lambda said: {**said, "3": said["0"]},
    "in another's name": lambda said: {"2": said["2"], "3": said["0"], "5": said["5"]},
    "with a number": lambda said: {**said, "0": 1},
    "with numbers": lambda said: {**said, "0": np.array([1, 2])},
    "with another word": lambda said: {**said, "0": "gone"},
    "without a word": lambda said: {k: v for k, v in said.items() if k != "0"},
    "without a report": lambda said: {**said, "0": b"pickle"},
}
FOREIGN = (4, 0, {"a node answers for clients that were not asked": 3})
REFUSED = {
    "for another": FOREIGN,
    "in another's name": FOREIGN,
    "with a number": (6, 0, {"an answer that is neither report nor word": 1}),
    "with numbers": (6, 0, {"an answer that is neither report nor word": 1}),
    "with another word": (6, 0, {"an answer that is neither report nor word": 1}),
    "without a word": (6, 1, {}),
    "without a report": (6, 0, {"the bytes do not start like a message of this version": 1}),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_node_answers_for_its_own_clients_alone(tmp_path: Path, lie: str) -> None:
    def tamper(message: Message) -> Message:
        if answers(message, "train.report", 201):
            lied = encode(LIES[lie](words(message)))
            message.content[MESSAGE] = ConfigRecord({"encoded": lied})
        return message

    record = run(tmp_path, shared(rounds=1), tamper)[0].metrics[0]
    assert (record["reports"], record["dropped"], record["rejected"]) == REFUSED[lie]


@pytest.mark.parametrize(
    ("claimed", "sentence"),
    [
        ([0, 1, 2, 3], "it names 4 clients, and deployment.clients_per_node = 3"),
        ([3, 3], "it names 2 clients, and deployment.clients_per_node = 3"),
        ([], "it names 0 clients, and deployment.clients_per_node = 3"),
        ([0, 7], r"client = 7 is outside [0, 7)"),
        ([-1, 0], r"client = -1 is outside [0, 7)"),
    ],
)
def test_a_node_claims_no_more_clients_than_the_job_allows(
    tmp_path: Path, claimed: list[int], sentence: str
) -> None:
    def tamper(message: Message) -> Message:
        if answers(message, "query.introduce", 201):
            message.content[MESSAGE] = to_records({"client": np.array(claimed, np.int64)})[MESSAGE]
        return message

    settings = shared(rounds=1, deployment={"start_clients": 4, "wait_s": 0.1})
    result, _ = run(tmp_path, settings, tamper)
    assert result.metrics[0]["reports"] == 4
    assert f"node 201 does not say which client it is: {sentence}" in events(result)


def test_a_client_that_two_nodes_claim_is_with_the_later_one(tmp_path: Path) -> None:
    app, _ = app_of(tmp_path / "app", shared(rounds=1), seeded=True)
    grid = Nodes(app, tmp_path / "state")
    grid.contexts[203].node_config["clients"] = "5-6"
    del grid.contexts[203].node_config["client"]
    result = serve(app, grid, tmp_path / "run")
    assert "node 203 says that it is client 5, as node 201 has said" in events(result)
    trained = [r for r in grid.replies if r.metadata.message_type == "train.report"]
    clients = {r.metadata.src_node_id: set(words(r)) for r in trained}
    assert clients == {201: {"0", "2"}, 202: {"1", "3", "4"}, 203: {"5", "6"}}
    assert result.metrics[0]["reports"] == 7


# --- a node's configuration ---------------------------------------------------------------------


@pytest.mark.parametrize("named_clients", ["7", "0-7", "2-1", "", "a", "0;1", "-1", "0.5", "0-1-2"])
def test_a_node_names_clients_of_the_job(named_clients: str) -> None:
    with pytest.raises(DeploymentError, match=r"numbers and ranges in \[0, 7\) are needed"):
        members_of({"clients": named_clients}, shared())


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"clients": "0-3"}, "which are 4, and the job allows deployment.clients_per_node = 3"),
        ({"clients": "0-1", "client": 0}, "says both client and clients: remove one"),
        ({"clients": "0-1", "data": "own:rows"}, "each needs its own: write {client} where"),
        ({"clients": "0-1", "identity": "key.pem"}, "says identity = 'key.pem' for 2 clients"),
    ],
)
def test_a_configuration_that_mixes_clients_up_is_refused(
    config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DeploymentError) as refused:
        members_of(config, shared())
    assert sentence in str(refused.value)


def test_each_member_has_its_own_files(tmp_path: Path) -> None:
    config = {
        "clients": "4, 0-1",
        "data": "own:rows_{client}",
        "identity": "keys/{client}.pem",
        "job": "agreed.yaml",
        "state-folder": str(tmp_path / "{client}"),
    }
    members = members_of(config, shared())
    assert [(c, m.client, m.data, m.identity) for c, m in members.items()] == [
        (c, c, f"own:rows_{c}", Path(f"keys/{c}.pem")) for c in (0, 1, 4)
    ]
    assert {m.job for m in members.values()} == {Path("agreed.yaml")}
    # One folder, whose files have the clients' numbers: a client that moves between the two kinds
    # of configuration finds its account.
    for of in ("accounts", "keys"):
        assert {getattr(m, of).path for m in members.values()} == {tmp_path / "{client}"}
