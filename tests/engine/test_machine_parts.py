"""The parts of a simulation on a cluster: machines' names, examples, modules and expected times."""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedveil
import parts
from fedveil.base.message import encode
from fedveil.engine.assembly import ModelShape
from fedveil.engine.cluster import machine, machine_check, membership
from fedveil.engine.cluster.cluster import Place
from fedveil.engine.cluster.machine import Machine, Request, Work, _columns
from fedveil.engine.cluster.many_machines import ManyMachines, _Used
from fedveil.engine.cluster.own_sources import packed_sources, unpack_sources
from fedveil.engine.cluster.placement import Expected, groups, placed
from fedveil.engine.cluster.ray_cluster import _reason
from fedveil.engine.cluster.shards import Piece, Shards, pieces
from fedveil.engine.cluster.start import _leave_proof
from fedveil.engine.executors.client_side import ClientsData
from fedveil.engine.executors.pool import WorkerPool
from fedveil.entropy import Seeded
from fedveil.errors import MachineDiffers
from fedveil.protections.base import RoundContext
from fedveil.rounds.outcomes import Answer, Effort, Folded, Report, Withheld


def test_machines_of_one_address_are_numbered() -> None:
    members = membership.Membership.__new__(membership.Membership)
    members._names = {}
    places = [Place(key, name, 2) for key, name in zip("abcdb", "hhghh", strict=True)]
    assert [members._name(place) for place in places] == ["h", "h (2)", "g", "h (3)", "h (2)"]


def test_a_client_that_was_slow_once_is_not_expected_to_stay_so() -> None:
    expected: Expected[str] = Expected(lambda client: 10)
    expected.learn("m", {0: 1.0, 1: 1.0, 2: 1.0})
    expected.learn("m", {0: 1.0, 1: 1.0, 2: 9.0})
    assert [expected.length(client) for client in range(3)] == pytest.approx([10, 10, 10.5])
    expected.learn("m", {0: 1.0, 1: 0.5, 2: 1.0})
    assert [expected.length(client) for client in range(3)] == pytest.approx([10, 5, 10])


@pytest.mark.parametrize(
    ("kind", "said", "reason"),
    [
        ("ActorDiedError", "(1) the process was killed by the OOM killer due to high", "it died"),
        ("ActorDiedError", "Worker exit type: NODE_OUT_OF_MEMORY", "it ran out of memory"),
        ("ActorDiedError", "killed by the OOM killer: NODE_OUT_OF_MEMORY", "it ran out of memory"),
        ("ActorDiedError", "The actor on node 7 has exited.", "it died"),
        ("OutOfMemoryError", "", "it ran out of memory"),
        ("ActorDiedError", "The actor died because its node has died.", "its node is gone"),
    ],
)
def test_a_loss_has_memory_as_its_reason_only_if_ray_is_sure(
    kind: str, said: str, reason: str
) -> None:
    assert _reason(type(kind, (Exception,), {})(said)) == reason


def test_each_machine_holds_its_own_clients_examples_only() -> None:
    data = ClientsData(
        np.arange(22.0, dtype=np.float32).reshape(11, 2),
        np.arange(11),
        np.array([10, 0, 3, 4, 5, 9, 1, 2, 6, 7, 8]),
        np.array([0, 2, 2, 6, 11]),
    )
    sent = list(pieces(data, [3, 0], most=1))
    assert [piece.clients.tolist() for piece in sent] == [[3], [0]]
    shards = Shards()
    for piece in sent:
        shards.add(piece)
    assert sum(piece.nbytes for piece in sent) == 7 * (8 + 8)
    for client in (3, 0):
        mine, theirs = (d.of(client, Seeded(1, "x")) for d in (shards, data))
        assert (mine.x.numpy() == theirs.x.numpy()).all()
        assert (mine.y.numpy() == theirs.y.numpy()).all()
    arrays = shards.as_arrays(4)
    assert [arrays.examples(client) for client in range(4)] == [2, 0, 0, 5]
    shards.drop([2, 3])  # the machine may never have had the first one
    assert shards.clients() == [0]


def test_a_machine_knows_which_of_its_clients_examples_are_usable() -> None:
    usable = np.array([0, 1, 1, 1, 0, 1, 1, 0, 1], bool)
    data = ClientsData(
        np.arange(18.0, dtype=np.float32).reshape(9, 2), np.arange(9),
        np.array([8, 0, 3, 4, 5, 1, 2, 6, 7]), np.array([0, 2, 5, 9]), usable,
    )  # fmt: skip
    example = 2 * 4 + 8
    sent = list(pieces(data, [2, 0, 1], most=6 * example))
    assert [piece.clients.tolist() for piece in sent] == [[2, 0], [1]]
    shards = Shards()
    for piece in sent:
        shards.add(piece)
    arrays = shards.as_arrays(3)
    for client, rows in ((0, [8, 0]), (1, [3, 4, 5]), (2, [1, 2, 6, 7])):
        for held in (shards, arrays):
            found = held.of(client, Seeded(1, "x"))
            assert found.usable is not None
            assert found.usable.tolist() == usable[rows].tolist()
            assert found.y.tolist() == rows


def test_the_longest_clients_are_placed_first_and_stay_where_that_is_fair() -> None:
    times = {0: 5.0, 1: 4.0, 2: 3.0, 3: 3.0, 4: 1.0}
    work = groups(range(5), 1)
    shares = placed(work, times.__getitem__, {"a": 1, "b": 1}, lambda group: None)
    assert sorted(sum(times[c] for (c,) in share) for share in shares.values()) == [8.0, 8.0]
    stay = placed(work, times.__getitem__, {"a": 1, "b": 1}, {(0,): "b", (4,): "b"}.get)
    assert (0,) in stay["b"]
    crowded = placed(work, times.__getitem__, {"a": 1, "b": 3}, lambda group: "a")
    assert sum(times[c] for (c,) in crowded["a"]) <= 1.05 * 5.0
    kept = placed(work, times.__getitem__, {"a": 1, "b": 3}, lambda group: "a", float("inf"))
    assert kept == {"a": work, "b": []}
    long = placed([(1,), (0,)], {0: 9.0, 1: 1.0}.__getitem__, {"a": 1, "b": 1}, {(0,): "b"}.get)
    assert long == {"a": [(1,)], "b": [(0,)]}
    two = placed(groups(range(3), 1), {0: 5.0, 1: 5.0, 2: 4.0}.__getitem__,
                 {"a": 1, "b": 1, "c": 1}, {(0,): "a", (1,): "b"}.get)  # fmt: skip
    assert two == {"a": [(0,)], "b": [(1,)], "c": [(2,)]}
    assert groups([7, 5, 9, 1], 3) == [(7, 5, 9), (1,)]


def test_modules_travel_as_files_without_their_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    (home / "package" / "inner").mkdir(parents=True)
    away.mkdir()
    for name, text in {
        "carried.py": "from package import helper\nmade = helper.made",
        "package/__init__.py": "",
        "package/inner/__init__.py": "",
        "package/inner/deep.py": "made = 7",
        "package/helper.py": "from package.inner.deep import made",
        "secret.csv": "1,2",
    }.items():
        (home / name).write_text(text)
        os.utime(home / name, (0, 0))  # 1970: zip knows no year before 1980
    monkeypatch.setattr(sys, "path", [str(home), *sys.path])
    importlib.import_module("carried")
    archive = packed_sources(["carried:made", "lenet", "test_machine_parts:members"])
    with zipfile.ZipFile(io.BytesIO(archive)) as held:
        assert "0/carried.py" in held.namelist()
        assert "1/test_machine_parts.py" in held.namelist()
    names = ("carried", "package", "package.helper", "package.inner", "package.inner.deep")
    for name in names:
        del sys.modules[name]
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(home)])
    unpack_sources(archive, away)
    assert importlib.import_module("carried").made == 7
    assert not list(away.rglob("*.csv"))
    for name in names:
        del sys.modules[name]


def test_folders_of_own_modules_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as held:
        for number in range(11):
            held.writestr(f"{number}/own.py", "")
    monkeypatch.setattr(sys, "path", ["first"])
    unpack_sources(archive.getvalue(), tmp_path)
    assert sys.path == ["first", *(str(tmp_path / str(number)) for number in range(11))]


def test_a_machine_that_is_given_up_takes_its_folder_along() -> None:
    @dataclass
    class Packed:
        sources: bytes
        folders: list[Path]

        def unpacked(self, folder: Path) -> None:
            self.folders.append(folder)
            (folder / "own.py").write_text("made = 7")

    folders: list[Path] = []
    for _ in ("is closed", "is given up"):
        machine = Machine(Packed(b"an archive", folders), "one", 2)  # type: ignore[arg-type]
        assert (folders[-1] / "own.py").exists()
        if len(folders) == 1:
            machine.close()
            assert not folders[0].exists()
    del machine
    gc.collect()
    assert [folder for folder in folders if folder.exists()] == []


def test_summed_reports_travel_as_numbers_and_all_others_as_they_are() -> None:
    plain = [
        Folded(3, 40, effort=Effort(1.0, 2.0, 3.0)),
        Folded(1, 7, effort=Effort(4.0, 5.0, 6.0)),
    ]
    others: list[Answer] = [
        Folded(4, 41, effort=Effort(0.5, warnings=["mind"])),
        Folded(6, 42, effort=Effort(unusable="why")),
        Withheld(5, "a reason"),
    ]
    report = Report(8, memoryview(bytearray(b"abc")))
    half: Any = "the sum"
    played = _columns([plain[0], *others, report, plain[1]], half)
    assert (played.clients, played.half) == ([3, 1], "the sum")
    assert played.columns.tolist() == [[40, 1, 2, 3], [7, 4, 5, 6]]
    *answers, last = played.answers()
    assert answers == [*plain, *others]
    assert isinstance(last, Report)
    assert type(last.data) is bytes  # it outlives the memory that it lay in
    nothing = _columns([], half)
    assert (nothing.columns.shape, list(nothing.answers())) == ((0, 4), [])


def test_sources_differ_by_their_text_and_by_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fedveil, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "room").mkdir()
    found = []
    for name, text in (("room/a.py", "1"), ("room/b.py", "1"), ("room/b.py", "2"), ("c.txt", "3")):
        for path in tmp_path.rglob("*.py" if name.endswith("py") else "*.txt"):
            path.unlink()
        (tmp_path / name).write_text(text)
        found.append(machine_check._sources.__wrapped__())
    assert len(set(found)) == 3
    assert found[2] == found[3]  # only Python files count


def test_only_the_user_may_read_the_proof_of_a_shared_folder(tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    proofs = [_leave_proof(tmp_path) for _ in range(2)]
    assert proofs[0] != proofs[1]
    assert (tmp_path / machine.PROOF).read_text() == proofs[1]
    assert (tmp_path / machine.PROOF).stat().st_mode & 0o777 == 0o600


def test_sources_are_the_same_in_whatever_order_a_file_system_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.py", "b.py", "z.py"):
        (tmp_path / name).write_text(f"{name} = 1")
    monkeypatch.setattr(fedveil, "__file__", str(tmp_path / "__init__.py"))
    listed, found = sorted(tmp_path.rglob("*.py")), set[str]()
    for order in (listed, listed[::-1], [listed[1], listed[2], listed[0]]):
        monkeypatch.setattr(Path, "rglob", lambda folder, pattern, order=order: iter(order))
        found.add(machine_check._sources.__wrapped__())
    assert len(found) == 1


def members(ready: int, joining: int, lost: int = 0) -> Any:
    """Return members of which only the numbers are known."""
    made: Any = membership.Membership.__new__(membership.Membership)
    made.ended = []

    def member(name: str) -> Any:
        remote = SimpleNamespace(end=lambda: made.ended.append(name))
        return SimpleNamespace(name=name, remote=remote, call=lambda method: (name, method))

    made.ready = [member(f"r{i}") for i in range(ready)]
    made._joining = {f"call {i}": member(f"j{i}") for i in range(joining)}
    made._lost = Counter({"h": lost} if lost else {})
    return made


def test_every_machine_is_ended_also_one_that_is_starting() -> None:
    made, closed = members(2, 1), list[str]()
    made._cluster = SimpleNamespace(
        wait=lambda calls, seconds: calls[:1], close=lambda: closed.append("cluster")
    )
    made.close()
    assert (made.ended, closed) == (["r0", "r1", "j0"], ["cluster"])


def test_what_a_cluster_lacks_is_said() -> None:
    assert members(2, 3)._missing().startswith("2 of 5 machines are ready; the others start, or ")
    assert members(0, 0)._missing().startswith("no node has the processor cores")
    assert members(0, 0, lost=2)._missing() == "all its machines were lost"


def test_a_round_s_record_has_each_machines_clients_seconds_and_idle_share() -> None:
    made: Any = ManyMachines.__new__(ManyMachines)
    made._wall_s, made._retrained = 4.0, 0
    made._used = {"b": _Used(2, 3.0), "a": _Used(5, 6.0)}
    machines = {"a": [5, 6.0, 0.0], "b": [2, 3.0, 0.25]}
    assert made.shown() == {"machines": machines}
    assert list(made.shown()["machines"]) == ["a", "b"]
    made._retrained = 3
    assert made.shown() == {"machines": machines, "retrained": 3}


def test_a_machine_of_unknown_pace_counts_as_a_usual_one() -> None:
    expected: Expected[str] = Expected(lambda client: 10)
    assert expected.speeds({"a": 2, "c": 3}) == {"a": 2, "c": 3}
    expected.learn("a", {0: 1.0, 1: 1.0})
    expected.learn("b", {2: 2.0})
    assert expected.speeds({"a": 2, "b": 5, "c": 3}) == pytest.approx({"a": 2, "b": 2.5, "c": 2})


class Pool(WorkerPool):
    """Stands for a machine's workers: records what they are asked, and when they are closed."""

    def __init__(self, said: list[Any]) -> None:
        self.said = said

    def open(self, context: RoundContext) -> None:
        assert context.whole is not None
        self.said.append(("open", context.round, len(context.model), len(context.whole)))

    def ask(self, phase: str, messages: Any) -> Any:
        self.said.append((phase, list(messages)))
        return iter([Withheld(client, "no") for client in messages])

    def close(self) -> None:
        self.said.append("close")


def test_workers_that_were_closed_in_a_round_are_asked_again_from_its_first_phase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[Any] = []

    def start(*_: object, cores: int | None = None, **__: object) -> Pool:
        said.append(("start", cores))
        return Pool(said)

    monkeypatch.setattr(machine, "start_locally", start)
    monkeypatch.setattr(machine, "make_protection", lambda job, dimension: None)
    held: Any = Machine.__new__(Machine)
    held._setup = SimpleNamespace(job=None, shape=None, dimension=3, run=None, own=b"")
    held._shards, held._executor, held._cores, held._round, held._done = Shards(), None, 5, 0, []

    def play(round: int, phase: str, clients: list[int], before: str = "", leaving: int = 0) -> Any:
        context = RoundContext([4, 6], round, np.zeros(0, np.float32))
        requests = [Request(name, [(encode({}), [6])]) for name in before.split()]
        sent = Request(phase, [(encode({}), clients)])
        gone = [leaving] if leaving else []
        work = Work(context, sent, False, requests, leaving=gone)
        played = held.play(work, np.zeros(7, np.float32))
        assert [answer.client for answer in played.others] == clients
        assert played.fixed
        assert played.took_s > 0
        return [said.pop(0) for _ in list(said)]

    assert play(1, "keys", [4]) == [("start", 5), ("open", 1, 3, 7), ("keys", [4])]
    again = ["close", ("start", 5), ("open", 1, 3, 7), ("keys", [4])]
    more = [("hello", [6]), ("share", [6])]
    assert play(1, "share", [6], "hello", leaving=9) == [*again, *more]
    assert play(1, "report", [4, 6], leaving=8) == [*again, *more, ("report", [4, 6])]
    assert play(2, "keys", [6]) == [("open", 2, 3, 7), ("keys", [6])]
    assert play(2, "share", [4], leaving=4) == [
        "close", ("start", 5), ("open", 2, 3, 7), ("keys", [6]), ("share", [4]),
    ]  # fmt: skip


def test_a_package_that_only_the_other_machine_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "scipy":
            raise machine_check.metadata.PackageNotFoundError(package)
        return "1.5"

    with monkeypatch.context() as without:
        without.setattr(machine_check.metadata, "version", version)
        mine = machine_check.Facts(machine_check._versions.__wrapped__(), "s", "t")
    theirs = machine_check.Facts({**mine.versions, "scipy": "1.7"}, "s", "t")
    mine.check(mine, "a")
    with pytest.raises(MachineDiffers, match=r"^machine b has scipy 1\.7, but this one has none"):
        mine.check(theirs, "b")
    with pytest.raises(MachineDiffers, match=r"^machine a has scipy none, but this one has 1\.7"):
        theirs.check(mine, "a")


@pytest.mark.parametrize(
    ("protection", "other"),
    [
        ({"name": "parts:TwoPhases"}, {"training": {"lr": 0.25}}),
        ({"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 2.0}},
         {"protection": {"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 3.0}}}),
    ],
)  # fmt: skip
def test_machines_differ_if_their_updates_or_reports_do(protection: Any, other: Any) -> None:
    job = fedveil.Job(
        rounds=2, clients={"number": 4, "fraction": 1.0}, data={"name": "parts:data"},
        model="parts:linear", training={"lr": 0.5, "epochs": 1}, protection=protection,
    )  # fmt: skip
    dimension = parts.FEATURES * parts.CLASSES + parts.CLASSES
    shape = ModelShape((parts.FEATURES,), parts.CLASSES)
    data = parts.one_clients_data()
    batch = ClientsData.of_one(0, data["x_train"][:7], data["y_train"][:7])

    def trained(job: fedveil.Job) -> str:
        return machine_check._trained(job, shape, batch, dimension)

    changed = fedveil.Job(**{**job.model_dump(exclude_unset=True), **other})
    assert trained(job) == trained(job) != trained(changed)


def test_a_machine_that_was_disturbed_once_is_not_expected_to_stay_slow() -> None:
    expected: Expected[str] = Expected(lambda client: 10)
    expected.learn("a", {0: 2.0, 1: 2.0})
    expected.learn("b", {2: 2.0, 3: 2.0})
    expected.learn("b", {2: 18.0, 3: 18.0})
    assert expected.speeds({"a": 4, "b": 2}) == pytest.approx({"a": 4, "b": 2 / 1.05})
    expected.learn("b", {2: 1.0, 3: 1.0})
    assert expected.speeds({"a": 4, "b": 2}) == pytest.approx({"a": 2, "b": 2})


def test_examples_that_training_may_change_are_copies() -> None:
    x, y = np.arange(6.0, dtype=np.float32).reshape(3, 2), np.arange(3)
    shards = Shards()
    shards.add(Piece.of(ClientsData.of_one(4, x, y), [4]))
    shards.of(4, Seeded(1)).x.add_(1)
    assert np.array_equal(shards.of(4, Seeded(1)).x.numpy(), x)
    shards.of(4, Seeded(1), unchanged=True).x.add_(1)
    assert np.array_equal(shards.of(4, Seeded(1)).x.numpy(), x + 1), "a promise saves the copy"
