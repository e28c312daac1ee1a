"""The state that a client saves between messages, its protection, and the client's refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from torch import nn

from fedveil.base.message import decode, encode
from fedveil.engine import job_model
from fedveil.engine.assembly import ModelShape, check_weights
from fedveil.entropy import Seeded
from fedveil.errors import DeploymentError, MessageInvalid, ModelInvalid, RunFailed, RunStopped
from fedveil.flower.job import client_app, client_training
from fedveil.flower.job.app_folder import read_roster
from fedveil.flower.job.example_shape import (
    form_fields,
    shape_field,
    told_classes,
    told_form,
    told_shape,
)
from fedveil.flower.job.flower_engine import run_path
from fedveil.flower.job.member import Member, members_of
from fedveil.flower.job.signing_key_file import make_identity, read_identity
from fedveil.flower.own_file import OwnFile
from fedveil.flower.records import COMMON, MESSAGE, common_record, from_records, to_records
from fedveil.flower.sealed_state import SealedState, StateFolder
from fedveil.secagg.keys import Identity
from flower_parts import CLIENTS, LocalGrid, app_of, job, serve
from folders import records_of
from parts import plain

PW = {
    "name": "pw_encrypt",
    "pw_encrypt": {"reconstruct_secrets_threshold": 4, "cipher_time_window": 1000},
}
#: Entries of an update of `parts:plain`.
DIMENSION = sum(weights.numel() for weights in plain().parameters())
SECRET = {"seed": b"0123456789abcdef" * 2}


def sealed(path: Path, records: RecordDict, client: int = 0) -> SealedState:
    return SealedState(StateFolder(path), b"a job", client, records)


# --- the sealed state ---------------------------------------------------------------------------


def test_a_state_is_given_out_once(tmp_path: Path):
    records = RecordDict()
    sealed(tmp_path / "s", records).put(3, SECRET)
    stolen = copy.deepcopy(records)
    (key,) = (tmp_path / "s").iterdir()
    (tmp_path / "same bytes").hardlink_to(key)
    assert sealed(tmp_path / "s", records).take(3) == SECRET
    assert (tmp_path / "same bytes").read_bytes() == bytes(32)
    assert not records
    assert not list((tmp_path / "s").iterdir())
    for context in (records, stolen):
        assert sealed(tmp_path / "s", context).take(3) is None


def test_what_lies_in_the_context_is_noise_without_the_key(tmp_path: Path):
    records = RecordDict()
    sealed(tmp_path / "s", records).put(3, SECRET)
    (record,) = records.values()
    blob = record["sealed"]
    (key_file,) = (tmp_path / "s").iterdir()
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    for secret in (SECRET["seed"], key_file.read_bytes(), b"seed"):
        assert secret not in blob
    again = RecordDict()
    sealed(tmp_path / "t", again).put(3, SECRET)
    assert again["fedveil.state.0"]["sealed"] != blob


def test_a_newer_state_takes_the_place_of_an_older_one(tmp_path: Path):
    records = RecordDict()
    state = sealed(tmp_path / "s", records)
    state.put(3, SECRET)
    old = copy.deepcopy(records)
    state.put(3, {"seed": b"new"})
    assert sealed(tmp_path / "s", old).take(3) is None
    state = sealed(tmp_path / "s", records)
    assert state.take(3) is None  # trying the old state destroys the key


@pytest.mark.parametrize("other", ["round", "client", "job", "bytes"])
def test_a_state_opens_for_its_own_round_client_and_job_alone(tmp_path: Path, other: str):
    records = RecordDict()
    sealed(tmp_path / "s", records).put(3, SECRET)
    (key,) = (tmp_path / "s").iterdir()
    folder, name, client = StateFolder(tmp_path / "s"), b"a job", 0
    if other == "client":
        client = 1
        key.rename(key.with_name(key.name.replace("-0.key", "-1.key")))
        records["fedveil.state.1"] = records.pop("fedveil.state.0")
    if other == "job":
        name = b"another"
        SealedState(folder, name, 0, RecordDict()).put(3, {})
    if other == "bytes":
        records["fedveil.state.0"]["sealed"] = b"x" + records["fedveil.state.0"]["sealed"][1:]
    state = SealedState(folder, name, client, records)
    assert state.take(4 if other == "round" else 3) is None


def test_nothing_is_left_of_what_a_dead_process_was_reading(tmp_path: Path):
    records = RecordDict()
    state = sealed(tmp_path / "s", records)
    state.put(3, SECRET)
    (key,) = (tmp_path / "s").iterdir()
    key.rename(
        key.with_name(key.name + ".0123456789abcdef")
    )  # claimed, and killed before the state was erased
    state.erase()
    assert not list((tmp_path / "s").iterdir())
    assert not records


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o720, 0o710, 0o704, 0o702, 0o701])
def test_a_state_folder_that_others_can_read_is_refused(tmp_path: Path, mode: int):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(DeploymentError, match=rf"is open to other users: its mode is {mode:o}"):
        StateFolder(tmp_path / "open")
    (tmp_path / "file").write_text("")
    with pytest.raises(DeploymentError, match="cannot be made"):
        StateFolder(tmp_path / "file" / "s")


def test_keys_lie_in_memory_where_they_can_and_accounts_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A restart of the machine may lose a key, but must not reset an account."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    assert StateFolder.for_keys().path == tmp_path / "fedveil"
    assert StateFolder.for_accounts().path == tmp_path / "home" / "fedveil"
    assert StateFolder.for_keys(str(tmp_path / "named")).path == tmp_path / "named"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    assert StateFolder.for_keys().path == tmp_path / "home" / "fedveil"
    for folder in (StateFolder.for_keys, StateFolder.for_accounts):
        assert folder(str(tmp_path / "named")).path == tmp_path / "named"
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for unset in ("", None):
        monkeypatch.delenv("XDG_STATE_HOME")
        if unset is not None:
            monkeypatch.setenv("XDG_STATE_HOME", unset)
        assert StateFolder.for_accounts().path == tmp_path / "user/.local/state/fedveil"
        monkeypatch.setenv("XDG_STATE_HOME", "")


# --- a lying server -----------------------------------------------------------------------------


def captured(tmp_path: Path, kind: str, **changes: Any) -> tuple[LocalGrid, Any, Any]:
    """Run up to a `kind` message to client 0. Return the grid, the message and the client's
    context."""
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=PW, **changes))
    grid = LocalGrid(app, tmp_path / "state")
    found: list[Any] = []

    def tamper(message: Any) -> Any:
        metadata = message.metadata
        asked = not metadata.reply_to_message_id and metadata.dst_node_id == 100
        if asked and metadata.message_type == kind:
            found.append((copy.deepcopy(message), copy.deepcopy(grid.contexts[100])))
        return message

    grid.tamper = tamper
    serve(app, grid, tmp_path / "run")
    ((message, context),) = found
    return grid, message, context


@pytest.mark.parametrize("kind", ["train.share", "train.masked", "train.unmask"])
def test_no_phase_is_answered_twice_not_even_with_an_old_context(tmp_path: Path, kind: str):
    """Two answers to one phase would reveal both kinds of share of one peer, or two masked sums."""
    grid, message, old = captured(tmp_path, kind)
    for context in (old, grid.contexts[100]):
        reply = grid.app(copy.deepcopy(message), context)
        assert reply.error.reason == ("answered before" if kind == "train.masked" else "withheld")
        assert not context.state


def test_secrets_of_a_round_are_in_no_record(tmp_path: Path):
    """Everything that Flower stores for a client between two phases is one sealed record."""
    _, _, context = captured(tmp_path, "train.unmask")
    assert list(context.state) == ["fedveil.state.0"]
    assert list(context.state["fedveil.state.0"]) == ["sealed"]
    assert b"mask" not in context.state["fedveil.state.0"]["sealed"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"round": 9}, "withheld"),
        ({"round": 0}, "withheld"),
        ({"dimension": 0}, "withheld"),
        ({"more": 1}, "withheld"),
        ({"opening": 1}, "withheld"),
    ],
)
def test_what_a_server_says_wrongly_is_withheld(tmp_path: Path, change: dict[str, Any], word: str):
    grid, message, context = captured(tmp_path, "train.advertise")
    common = {"opening": True, "round": 1, "dimension": 83, **change}
    message.content["fedveil.common"]["encoded"] = encode(common)
    assert grid.app(message, context).error.reason == word


@pytest.mark.parametrize(
    "said",
    [
        np.ones((2, 2), np.int64),
        np.ones(2),
        b"5",
        "[" * 9999,
        "{}}",
        '{"a": 3}',
        "[[4]]",
        '{"a": [1e999]}',
        '{"a": [Infinity]}',
        '{"a": [NaN]}',
        np.array([5, -7]),
        np.ones(33, np.int64),
        '{"a": [' + "1," * 32 + "1]}",
        '{"a": ' + " " * (1 << 16) + "[1]}",
        '{"a": [-2]}',
    ],
)
def test_a_shape_that_is_none_is_one_sentence(said: Any) -> None:
    with pytest.raises(MessageInvalid, match=r"^field example_shape (is|has) "):
        told_shape({"example_shape": said})


@pytest.mark.parametrize(("targets", "examples"), [(True, False), (False, True)])
def test_the_form_of_an_example_arrives_as_it_was_sent(targets: bool, examples: bool) -> None:
    form: Any = SimpleNamespace(target_shape=(3, 2), whole_targets=targets, whole_examples=examples)
    assert told_form(form_fields(form)) == ((3, 2), targets, examples)
    assert told_form({"classes": 4}) == ((), False, False)
    for shape in ((4,), (-1, 7), {"a": (2, -1), "b": ()}):
        assert told_shape({"example_shape": shape_field(shape)}) == shape  # type: ignore[arg-type]
    assert told_classes({"classes": 0}) == 0
    for classes in (-1, 2.0):
        with pytest.raises(MessageInvalid, match="field classes"):
            told_classes({"classes": classes})


def test_a_run_lies_in_a_folder_of_its_job_or_in_one_that_is_named() -> None:
    """Two jobs of one name that differ in anything have two folders."""
    one, other = run_path(job(seed=3)), run_path(job(seed=4))
    assert one != other
    assert one == run_path(job(seed=3), "")
    assert {one.parent, other.parent} == {Path("runs")}
    assert run_path(job(seed=3), "mine/here") == Path("mine/here")


HEAD = {"train": "head"}
SCAFFOLD = {"algorithm": "scaffold"}


@pytest.mark.parametrize(
    "records",
    [
        {f"{n} \x1b[2J" + "x" * 9999: ConfigRecord({}) for n in range(9999)},
        {MESSAGE: ConfigRecord({f"{n}\n" + "x" * 9999: 1 for n in range(9999)})},
    ],
)
def test_names_of_a_strangers_records_are_quoted_in_short(records: Any) -> None:
    with pytest.raises(MessageInvalid, match=r"9,994 more, a message of fedveil holds") as raised:
        from_records(RecordDict(records))
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 800


def dense(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes)


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 200), nn.Linear(200, classes))


@cache
def public_part() -> nn.Module:
    return nn.Linear(7, 6).requires_grad_(requires_grad=False)


def fixed_part(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model with a fixed part, which the function makes once."""
    return nn.Sequential(public_part(), nn.Linear(6, classes))


def valued(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model whose function needs values, which no tensor on the device meta has."""
    layer = nn.Linear(1, classes)
    assert layer.weight.abs().max().item() < 100
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(1), layer)


@pytest.mark.parametrize(
    ("settings", "told", "sent", "why"),
    [
        ({"model": "mlp"}, {"example_shape": [1 << 33]}, 199_210, "has at least 1,717,986,"),
        ({"model": "mlp"}, {"classes": 1 << 33}, 199_210, "has at least 1,726,577,"),
        (
            {"model": f"{__name__}:dense"},
            {"example_shape": [1 << 33]},
            44,
            "at least 85,899,345,930",
        ),
        ({"model": "mlp"}, {}, 199_209, "has at least 199,210 weights, but the server sends 199,"),
        ({"model": "logistic", "training": HEAD}, {"classes": 1 << 33}, 7850, "has at least"),
        ({"model": "logistic", "training": SCAFFOLD}, {}, 2 * 7849, "server sends 7,849"),
        (
            {"model": "mlp", "clients": {"number": 3, "own_layers": ["5.*"]}},
            {"classes": 1 << 33},
            197_200,
            # 201 · 2^33 weights of 4 bytes, twice
            r"8,589,934,592 outputs needs 13812\.6 GB for weights that are fixed or stay with this",
        ),
        (
            {"model": "mlp", "training": HEAD},
            {"example_shape": [1 << 33]},
            2010,
            r"and 10 outputs needs 13743\.9 GB for weights that are fixed .* of memory is free$",
        ),
    ],
)
def test_a_lying_server_cannot_make_a_client_build_a_huge_model(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    told: dict[str, Any],
    sent: int,
    why: str,
) -> None:
    built: list[Any] = []
    monkeypatch.setattr(client_training, "make_model", lambda *a: built.append(a))
    common = {
        "round": 1, "dimension": sent, "weights": np.zeros(sent, np.float32), "classes": 10,
        "fingerprint": "", **told, "example_shape": np.array(told.get("example_shape", [28, 28])),
    }  # fmt: skip
    with pytest.raises(ModelInvalid, match=why):
        client_training.Training(job(**settings), common, lambda c: c, lambda: 1)  # type: ignore[arg-type, return-value]
    assert not built


@pytest.mark.parametrize(("free", "fits"), [(1_256_000, True), (1_255_999, False), (None, True)])
def test_fixed_weights_and_their_copy_must_fit_into_the_free_memory(
    free: int | None, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 · (784 + 1) weights of 4 bytes are fixed, and so is no other tensor of the two layers."""
    monkeypatch.setattr(job_model, "free_bytes", lambda device: free)
    own = job(model=f"{__name__}:wide", training=HEAD)
    with nullcontext() if fits else pytest.raises(ModelInvalid, match=r"but 1.3 MB of memory"):
        check_weights(own, ModelShape((784,), 1), 201)


def test_the_last_layer_of_a_language_model_is_not_made_for_more_classes_than_weights(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_embd": 16}')
    (tmp_path / "model.safetensors").touch()
    task = {"task": "sequence_classification", "data": {"name": "text:x"}}
    own = job(model=f"hf:{tmp_path}", **task)
    check_weights(own, ModelShape((8,), 27), 27 * 16)
    with pytest.raises(ModelInvalid, match="has at least 448 weights, but the server sends 447"):
        check_weights(own, ModelShape((8,), 28), 28 * 16 - 1)


@pytest.mark.parametrize(
    ("model", "example_shape", "sent"),
    [(valued, [17], 8), (fixed_part, [7], 28)],
    ids=["needs values", "keeps a part"],
)
def test_a_model_whose_shapes_alone_cannot_be_made_is_built_all_the_same(
    model: Callable[..., nn.Module], example_shape: list[int], sent: int
) -> None:
    common = {
        "round": 1, "dimension": sent, "weights": np.zeros(sent, np.float32), "classes": 4,
        "fingerprint": "", "example_shape": np.array(example_shape),
    }  # fmt: skip
    public_part.cache_clear()
    own = job(model=f"{__name__}:{model.__name__}")
    made = client_training.Training(own, common, lambda c: c, lambda: 1)  # type: ignore[arg-type, return-value]
    assert len(made.model) == sent
    assert not any(value.is_meta for value in public_part().parameters())


def test_a_model_that_is_not_the_jobs_is_not_trained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    app, _ = app_of(tmp_path / "app", job(rounds=1))
    other, _ = app_of(tmp_path / "other", job(rounds=1, seed=5))
    grid = LocalGrid(other, tmp_path / "state")
    with pytest.raises(Exception, match="every client of round 1 failed"):
        serve(app, grid, tmp_path / "run")
    assert "returned another model" in caplog.text


def test_active_security_needs_each_clients_identity_and_the_roster(tmp_path: Path):
    active = {**PW, "pw_encrypt": {**PW["pw_encrypt"], "active_security": True}}  # type: ignore[dict-item]
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=active))
    keys = [tmp_path / f"client-{n}.pem" for n in range(CLIENTS)]
    publics = [make_identity(key) for key in keys]
    roster = "".join(f'client-{n}: "{public}"\n' for n, public in enumerate(publics))
    (app / "roster.yaml").write_text(roster)
    grid = LocalGrid(app, tmp_path / "state")
    (tmp_path / "own.yaml").write_text(roster)
    for n, key in enumerate(keys):
        own = {"identity": str(key), "roster": str(tmp_path / "own.yaml")}
        grid.contexts[100 + n].node_config.update(own)
    record = serve(app, grid, tmp_path / "run").metrics[0]
    assert (record["reports"], record["void"]) == (CLIENTS, None)

    # A client with another roster from its own operator does not trust the app's.
    false = roster.replace(publics[1], make_identity(tmp_path / "other.pem"))
    (tmp_path / "false.yaml").write_text(false)
    grid = LocalGrid(app, tmp_path / "another state")
    for n, key in enumerate(keys):
        own = {"identity": str(key), "roster": str(tmp_path / "own.yaml")}
        grid.contexts[100 + n].node_config.update(own)
    grid.contexts[100].node_config["roster"] = str(tmp_path / "false.yaml")
    record = serve(app, grid, tmp_path / "another").metrics[0]
    assert (record["reports"], record["withheld"]) == (
        CLIENTS - 1,
        {"the client's own log says why": 1},
    )


def signed(tmp_path: Path, **settings: Any) -> tuple[Path, LocalGrid]:
    """Return an app of signed rounds, and nodes with an identity and the roster of everybody."""
    active = {**PW, "pw_encrypt": {**PW["pw_encrypt"], "active_security": True}}  # type: ignore[dict-item]
    app, _ = app_of(tmp_path / "app", job(protection=active, **settings))
    keys = [tmp_path / f"client-{n}.pem" for n in range(CLIENTS)]
    lines = [f'client-{n}: "{make_identity(key)}"\n' for n, key in enumerate(keys)]
    for roster in (app / "roster.yaml", tmp_path / "own.yaml"):
        roster.write_text("".join(lines))
    grid = LocalGrid(app, tmp_path / "state")
    for n, key in enumerate(keys):
        named = {"identity": str(key), "roster": str(tmp_path / "own.yaml")}
        grid.contexts[100 + n].node_config.update(named)
    return app, grid


@pytest.mark.parametrize("algorithm", ["fedcm", "scaffold"])
def test_a_signed_round_covers_all_that_an_algorithm_sends(tmp_path: Path, algorithm: str):
    """Clients sign a digest of the weights and of the vector that FedCM or SCAFFOLD adds."""
    own: dict[str, Any] = {"own_direction": 0.3} if algorithm == "fedcm" else {}
    training = {"algorithm": algorithm, "batch_size": 10, **own}
    app, grid = signed(tmp_path, rounds=2, model="parts:linear", training=training)
    records = serve(app, grid, tmp_path / "run").metrics
    assert [(each["reports"], each["void"]) for each in records] == [(CLIENTS, None)] * 2


@pytest.mark.parametrize("field", ["classes", "fingerprint", "example_shape"])
def test_a_sum_of_clients_that_were_told_different_things_stays_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
):
    """A server could make all trainings but one fail: a site's client then reports zeros."""
    app, grid = signed(tmp_path, rounds=1)

    class Lenient(client_training.Training):
        """Trains as it was told to in truth, so that only the digest can tell the clients apart."""

        def __init__(self, job: Any, common: Any, *rest: Any) -> None:
            super().__init__(job, {**common, field: truth[field]}, *rest)

    truth: dict[str, Any] = {}
    wrong: dict[str, Any] = {"classes": 77, "fingerprint": "another", "example_shape": "[7]"}

    def tamper(message: Message) -> Message:
        if message.metadata.dst_node_id >= 100 and COMMON in message.content:
            common = decode(message.content[COMMON]["encoded"])
            if "weights" in common:
                truth.update(common)
                if message.metadata.dst_node_id != 100:
                    told = {**common, field: wrong[field]}
                    message.content[COMMON] = common_record(told)
        return message

    monkeypatch.setattr("fedveil.flower.job.client_training.Training", Lenient)
    grid.tamper = tamper
    with pytest.raises(RunFailed, match="the list of survivors is not signed by this client"):
        serve(app, grid, tmp_path / "run")


def test_a_client_without_a_roster_of_its_own_does_not_take_the_servers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The app's roster has keys of the server's own, which would let it unmask every update."""
    active = {**PW, "pw_encrypt": {**PW["pw_encrypt"], "active_security": True}}  # type: ignore[dict-item]
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=active))
    keys = [tmp_path / f"client-{n}.pem" for n in range(CLIENTS)]
    publics = [make_identity(key) for key in keys]
    (app / "roster.yaml").write_text(
        "".join(f'client-{n}: "{public}"\n' for n, public in enumerate(publics))
    )
    grid = LocalGrid(app, tmp_path / "state")
    for n, key in enumerate(keys):
        grid.contexts[100 + n].node_config["identity"] = str(key)
    with pytest.raises(RunStopped):
        serve(app, grid, tmp_path / "run")
    assert not any(reply.has_content() and "masked" in str(reply) for reply in grid.replies)
    assert "names no file with them: add roster=" in caplog.text


@pytest.mark.parametrize("named", ["roster", "identity"])
def test_a_client_with_keys_for_signed_rounds_answers_no_job_without_them(
    tmp_path: Path, named: str, caplog: pytest.LogCaptureFixture
):
    """The job comes from the server, which leaves `active_security` out."""
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=PW))
    grid = LocalGrid(app, tmp_path / "state")
    key = tmp_path / "client.pem"
    (tmp_path / "own.yaml").write_text(f'client-0: "{make_identity(key)}"\n')
    own = {"roster": str(tmp_path / "own.yaml"), "identity": str(key)}
    for node in grid.contexts.values():
        node.node_config[named] = own[named]
    with pytest.raises(RunStopped):
        serve(app, grid, tmp_path / "run")
    assert not any(reply.has_content() and "fedveil" in reply.content for reply in grid.replies[6:])
    assert "the app has protection.name = pw_encrypt without active_security" in caplog.text


def test_a_roster_that_is_not_there_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    active = {**PW, "pw_encrypt": {**PW["pw_encrypt"], "active_security": True}}  # type: ignore[dict-item]
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=active))
    grid = LocalGrid(app, tmp_path / "state")
    key = tmp_path / "client.pem"
    (app / "roster.yaml").write_text(f'client-0: "{make_identity(key)}"\n')
    for node in grid.contexts.values():
        node.node_config.update({"identity": str(key), "roster": str(tmp_path / "none.yaml")})
    with pytest.raises(RunStopped):
        serve(app, grid, tmp_path / "run")
    assert f"there is no roster {tmp_path / 'none.yaml'}" in caplog.text


@pytest.mark.parametrize("text", [None, "# client-0: KEY\n"])
def test_an_empty_roster_of_the_server_is_named_before_anybody_is_asked(
    tmp_path: Path, text: str | None
):
    """Every round would be void, after the clients have sent their keys."""
    active = {**PW, "pw_encrypt": {**PW["pw_encrypt"], "active_security": True}}  # type: ignore[dict-item]
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=active))
    (app / "roster.yaml").unlink() if text is None else (app / "roster.yaml").write_text(text)
    grid = LocalGrid(app, tmp_path / "state")
    with pytest.raises(DeploymentError, match=r"roster\.yaml names no keys, which active_security"):
        serve(app, grid, tmp_path / "run")
    assert grid.replies == []


def test_a_client_with_its_own_copy_of_the_job_answers_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The app's job comes from the server: another threshold opens a client's update."""
    waiting = {"wait_s": 0.2}
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=PW, deployment=waiting))
    own = tmp_path / "own.yaml"
    own.write_bytes((app / "job.yaml").read_bytes())
    weaker = {**PW, "pw_encrypt": {**PW["pw_encrypt"], "reconstruct_secrets_threshold": 2}}  # type: ignore[dict-item]
    other, _ = app_of(tmp_path / "other", job(rounds=1, protection=weaker, deployment=waiting))

    def grid(app: Path, run: str) -> LocalGrid:
        grid = LocalGrid(app, tmp_path / f"state of {run}")
        for node in grid.contexts.values():
            node.node_config["job"] = str(own)
        return grid

    assert serve(app, grid(app, "run"), tmp_path / "run").metrics[0]["reports"] == CLIENTS
    with pytest.raises(RunStopped):
        serve(other, grid(other, "another"), tmp_path / "another")
    # The server knows the nodes from a run of the right app.
    known = grid(app, "known")

    def exchanged(message: Message) -> Message:
        if message.metadata.message_type.startswith("train"):
            known.app = client_app(other)
        return message

    known.tamper = exchanged
    with pytest.raises(RunStopped):
        serve(other, known, tmp_path / "known")
    assert len(known.replies) > CLIENTS
    assert not any(reply.has_content() for reply in known.replies[CLIENTS:])
    key = "protection.pw_encrypt.reconstruct_secrets_threshold"
    assert f"{key} is 2, and 4 in the own copy" in caplog.text


def test_a_job_that_is_only_written_otherwise_is_not_the_own_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has another digest, so the client's limit and its reports would count from zero."""
    agreed = job(rounds=1, protection=NOISED, deployment={"wait_s": 0.2})
    other = agreed.with_({"training.weight_decay": -0.0})
    assert other == agreed
    app, _ = app_of(tmp_path / "app", other)
    own = tmp_path / "own.yaml"
    own.write_text(agreed.with_({"privacy.randomness": "secure"}).to_yaml())
    grid = LocalGrid(app, tmp_path / "state")
    for node in grid.contexts.values():
        node.node_config["job"] = str(own)
    with pytest.raises(RunStopped):
        serve(app, grid, tmp_path / "run")
    assert "training.weight_decay is -0.0, and 0.0 in the own copy" in caplog.text


@pytest.mark.parametrize("position", ["signds", "not_encrypt"])
def test_a_client_counts_its_private_reports_and_gives_no_more(
    tmp_path: Path, position: str, caplog: pytest.LogCaptureFixture
):
    """A server that restarts a round again and again gets `rounds + repeats` reports in total."""
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=position, deployment={"repeats": 1}))
    counts = []
    for number in range(4):
        grid = LocalGrid(app, tmp_path / "state")
        with suppress(RunFailed):  # a run without a report
            serve(app, grid, tmp_path / f"run-{number}")
        (record,) = records_of(tmp_path / f"run-{number}")
        counts.append((record["reports"], sum(record["withheld"].values())))
    if position == "not_encrypt":
        assert counts == [(CLIENTS, 0)] * 4
        assert not list((tmp_path / "state").iterdir())
    else:
        assert counts == [(CLIENTS, 0)] * 2 + [(0, CLIENTS)] * 2
        assert "this client has given 2 reports of this job" in caplog.text


@pytest.mark.parametrize(
    ("protection", "privacy"),
    [
        (
            {"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 1.0, "dp_delta": 1e-6}},
            {"max_epsilon": 1.6},
        ),
        ({"name": "rr", "unary": {"eps": 1.0, "total_eps": 5.0 * DIMENSION}}, {}),
        (
            {
                "name": "distributed_dp",
                "distributed_dp": {"noise_multiplier": 2.0, "reconstruct_secrets_threshold": 4},
            },
            {"max_epsilon": 4, "delta": 1e-9},
        ),
    ],
)
def test_a_client_holds_the_server_to_the_limit_of_the_job(
    tmp_path: Path, protection: Any, privacy: Any, caplog: pytest.LogCaptureFixture
):
    """A server that lies begins its ledger anew, or goes on beyond the limit."""
    settings = job(
        rounds=4, protection=protection, privacy=privacy, deployment={"repeats": 8},
        clients={"number": CLIENTS, "fraction": 1.0},
    )  # fmt: skip
    app, _ = app_of(tmp_path / "app", settings)
    grid = LocalGrid(app, tmp_path / "state")
    first = serve(app, grid, tmp_path / "run").metrics
    assert 1 <= len(first) < 4, "the server ends it by itself"
    assert all(record["reports"] == CLIENTS for record in first)
    for answered in (tmp_path / "state").glob("*.answered"):
        OwnFile(answered).remove()  # nothing but the account stops it
    with suppress(RunFailed, RunStopped):
        serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "another")
    later = records_of(tmp_path / "another")
    assert [record["reports"] for record in later] == [0] * len(later)
    assert "one more report would bring this client to" in caplog.text


def test_an_adaptive_epsilon_of_a_server_that_lies_ends_at_the_total(tmp_path: Path):
    """Each round's epsilon is within the total by itself. Together they are not."""
    unary = {"eps": 0.5, "adaptive": True, "total_eps": 5.0 * DIMENSION}
    app, _ = app_of(
        tmp_path / "app", job(rounds=4, protection={"name": "rr", "unary": unary}),
    )  # fmt: skip
    grid = LocalGrid(app, tmp_path / "state")

    def raised(message: Message) -> Message:
        if message.has_content() and "fedveil.common" in message.content:
            record = message.content[MESSAGE]
            record["encoded"] = encode({**decode(record["encoded"]), "eps": 2.0})
        return message

    grid.tamper = raised
    with suppress(RunFailed, RunStopped):
        serve(app, grid, tmp_path / "run")
    trained = [r for r in grid.replies if r.metadata.message_type.startswith("train")]
    assert len(trained) > CLIENTS
    assert sum(reply.has_content() for reply in trained) == CLIENTS


#: A report costs almost as much at delta 1e-5 as a client's operator allows in the tests below.
NOISED = {"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 1.0, "dp_delta": 1e-6}}


def limited(app: Path, state: Path, **keys: Any) -> LocalGrid:
    """Return a grid on which the operator of client 2 has added `keys` to its configuration."""
    grid = LocalGrid(app, state)
    config = grid.contexts[102].node_config
    del config["seeded"]
    config.update({key.replace("_", "-"): value for key, value in keys.items()})
    return grid


def test_a_client_keeps_to_the_limit_of_its_own_operator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, _ = app_of(tmp_path / "app", job(rounds=4, protection=NOISED))
    serve(app, limited(app, tmp_path / "state", max_epsilon=1.6), tmp_path / "run")
    counts = [record["reports"] for record in records_of(tmp_path / "run")]
    full = counts.count(CLIENTS)
    assert 1 <= full < 4
    assert counts == [CLIENTS] * full + [CLIENTS - 1] * (4 - full)
    assert "above its max_epsilon = 1.6" in caplog.text


@pytest.mark.parametrize(
    ("protection", "privacy", "keys"),
    [
        # At the delta of this job, 4,000 times the client's, a report costs next to nothing.
        (NOISED, {"delta": 0.04}, {"max_epsilon": 0.5}),
        (NOISED, {"delta": 0.04}, {"max_epsilon": 0.9, "delta": 1e-9}),
        ({"name": "not_encrypt"}, {}, {"max_epsilon": 1e6}),
        ({"name": "central_gaussian"}, {}, {"max_epsilon": 1e6}),
    ],
)
def test_a_limit_of_a_clients_operator_holds_against_the_server(
    protection: Any, privacy: Any, keys: Any, tmp_path: Path
) -> None:
    settings = job(rounds=1, protection=protection, privacy=privacy)
    app, _ = app_of(tmp_path / "app", settings)
    serve(app, limited(app, tmp_path / "state", **keys), tmp_path / "run")
    (record,) = records_of(tmp_path / "run")
    assert record["reports"] == CLIENTS - 1


def test_noise_of_the_server_counts_for_an_operator_who_has_agreed_to_the_job(
    tmp_path: Path,
) -> None:
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection={"name": "central_gaussian"}))
    keys = {"max_epsilon": 1e6, "job": str(app / "job.yaml")}
    serve(app, limited(app, tmp_path / "state", **keys), tmp_path / "run")
    (record,) = records_of(tmp_path / "run")
    assert record["reports"] == CLIENTS


def test_a_server_cannot_turn_a_clients_limit_into_a_limit_for_each_example(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The job states epsilon 1 for one example, and almost nothing for a client of many."""
    own = {"unit": "example", "delta": 1e-6}
    step = {"sampling_rate": 1.0, "epochs": 1, "optimizer": "sgd", "batch_size": 7}
    settings = job(rounds=1, protection=NOISED, privacy=own, training=step)
    app, _ = app_of(tmp_path / "app", settings)
    serve(app, limited(app, tmp_path / "state", max_epsilon=1.5), tmp_path / "run")
    (record,) = records_of(tmp_path / "run")
    assert record["reports"] == CLIENTS - 1
    assert "its epsilon is for one of them" in caplog.text
    agreed = {"max_epsilon": 1.5, "job": str(app / "job.yaml")}
    serve(app, limited(app, tmp_path / "other-state", **agreed), tmp_path / "other-run")
    (record,) = records_of(tmp_path / "other-run")
    assert record["reports"] == CLIENTS


def test_a_limit_that_comes_after_reports_does_not_count_from_zero(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = job(rounds=1, protection=NOISED, deployment={"repeats": 9})
    app, _ = app_of(tmp_path / "app", settings)
    serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    grid = limited(app, tmp_path / "state", max_epsilon=1e6)
    serve(app, grid, tmp_path / "again")
    (record,) = records_of(tmp_path / "again")
    assert record["reports"] == CLIENTS - 1
    assert "has given 1 report of this job without a limit" in caplog.text
    assert "set max-epsilon before the job starts" in caplog.text


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"max_epsilon": 2.0}, r"has max_epsilon, .* \(did you mean max-epsilon\?\)"),
        ({"max-epsilon": "2.0"}, "max-epsilon = '2.0', a number above 0 is needed"),
        ({"max-epsilon": 0}, "max-epsilon = 0, a number above 0 is needed"),
        ({"delta": 1e-6}, "delta = 1e-06 without max-epsilon"),
        ({"max-epsilon": 2.0, "delta": 1.0}, "delta = 1.0, a number above 0 and below 1 is"),
        ({"max-epsilon": 2.0, "seeded": True}, "both seeded = True and max-epsilon"),
    ],
)
def test_a_limit_that_cannot_hold_is_refused(keys: Any, sentence: str) -> None:
    with pytest.raises(DeploymentError, match=sentence):
        members_of({"client": 3, **keys}, job())
    (member,) = members_of({"client": 3, "max-epsilon": 2}, job()).values()
    assert member.limit == (2.0, 1e-5)


def test_seeded_reports_leave_only_where_the_node_itself_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Two such reports under other weights have equal noise: their difference is that of the
    updates."""
    from fedveil.flower.job import client_training

    app, _ = app_of(tmp_path / "app", job(rounds=1, protection="dp_encrypt"), seeded=True)
    grid = LocalGrid(app, tmp_path / "state")
    for n in (0, 1):
        del grid.contexts[100 + n].node_config["seeded"]
    read: list[int] = []
    own_data = client_training.client_data
    monkeypatch.setattr(
        client_training, "client_data", lambda *a: (read.append(a[1]), own_data(*a))[1]
    )
    record = serve(app, grid, tmp_path / "run").metrics[0]
    assert sorted(read) == [2, 3, 4, 5]
    assert (record["reports"], sum(record["withheld"].values())) == (4, 2)
    assert "only if its own node configuration says seeded=true" in caplog.text
    with pytest.raises(DeploymentError, match="seeded = 'yes', true or false is needed"):
        members_of({"client": 0, "seeded": "yes"}, job())
    assert not list((tmp_path / "state").glob("*.reports"))


def test_a_client_that_errs_after_its_vector_went_in_stays_charged(
    tmp_path: Path, charges: dict[int, set[int]]
):
    """A later error message refunds nothing, neither in the ledger nor in the client's own
    account."""
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=PW))
    grid = LocalGrid(app, tmp_path / "state")

    def tamper(message: Any) -> Any:
        metadata = message.metadata
        asked = not metadata.reply_to_message_id and metadata.dst_node_id == 100
        if asked and metadata.message_type == "train.unmask":
            message.content = to_records({"round": 1, "phase": "unmask", "survivors": 3})
        return message

    grid.tamper = tamper
    record = serve(app, grid, tmp_path / "run").metrics[0]
    assert (record["reports"], record["withheld"]) == (6, {"the client's own log says why": 1})
    assert charges[1] == set(range(CLIENTS))


# --- who a node is ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "0", -1, CLIENTS, True, 1.0])
def test_a_node_says_which_client_it_is(value: Any):
    with pytest.raises(DeploymentError, match=r"a whole number in \[0, 6\) is needed"):
        members_of({"client": value}, job())


def test_a_member_is_what_its_node_s_operator_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    own = {"data": "of{client}:read", "identity": "{client}.pem", "roster": "r.yaml",
           "job": "j.yaml", "seeded": True}  # fmt: skip
    shared = job(deployment={"clients_per_node": 2})
    first, second = members_of({"clients": "5,3", **own}, shared).values()
    assert (first.client, second.client) == (3, 5)
    keys, accounts = first.keys, first.accounts
    assert (keys.path, accounts.path) == (tmp_path / "fedveil", tmp_path / "home" / "fedveil")
    due = Member(3, "of3:read", True, keys, accounts, Path("3.pem"), Path("r.yaml"), Path("j.yaml"))
    assert first == due
    for key in ("data", "identity"):
        with pytest.raises(DeploymentError, match=f"{key} = 'all:read' for 2 clients, and each"):
            members_of({"clients": "3,5", key: "all:read"}, shared)


def test_partition_id_is_a_name_of_client(tmp_path: Path):
    (member,) = members_of({"partition-id": 3, "state-folder": str(tmp_path / "s")}, job())
    assert member == 3
    (named,) = members_of({"partition-id": 3, "client": 5}, job())
    assert named == 5
    for value in (1, 0, False):
        with pytest.raises(DeploymentError, match=f"data = {value}, text is needed"):
            members_of({"client": 0, "data": value}, job())


@pytest.mark.parametrize(
    "key", ["jobs", "rooster", "identiy", "state_folder", "Client", "Job", "MAX-EPSILON", "DATA"]
)
def test_a_misspelt_key_of_a_node_does_not_count_as_missing(key: str) -> None:
    """With `jobs` for `job`, the client would otherwise answer any job of the server."""
    with pytest.raises(DeploymentError, match=rf"has {key}, which is not a known key \(did you"):
        members_of({"client": 3, key: "agreed.yaml"}, job())


def test_keys_of_other_apps_on_a_node_are_ignored(tmp_path: Path) -> None:
    others = {"num-partitions": 10, "fedveil.max_epsilon": 1.0, "dataset": "x", "num-clients": 3}
    mine = {"client": 3, "state-folder": str(tmp_path / "s")}
    assert list(members_of({**mine, **others}, job())) == [3]


def test_a_client_with_data_of_its_own(tmp_path: Path):
    """The node's operator names the data, instead of the job's part."""
    app, _ = app_of(tmp_path / "app", job(rounds=1, server={"weighting": "by_size"}))
    grid = LocalGrid(app, tmp_path / "state")
    grid.contexts[100].node_config["data"] = "parts:data"
    serve(app, grid, tmp_path / "run")
    sizes = [from_records(r.content)["examples"] for r in grid.replies[CLIENTS:]]
    assert sizes == [240, 40, 40, 40, 40, 40]


def test_identities(tmp_path: Path):
    path = tmp_path / "me.pem"
    public = make_identity(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Identity(read_identity(path)).public.hex() == public
    with pytest.raises(DeploymentError, match="never overwritten"):
        make_identity(path)
    for mode in (0o640, 0o620, 0o604):
        path.chmod(mode)
        with pytest.raises(DeploymentError, match=f"open to other users: its mode is {mode:o}"):
            read_identity(path)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    locked = serialization.BestAvailableEncryption(b"a password")
    for number, text in enumerate(
        (
            b"no key",
            Ed25519PrivateKey.generate().private_bytes(pem, pkcs8, locked),
            X25519PrivateKey.generate().private_bytes(pem, pkcs8, serialization.NoEncryption()),
        )
    ):
        other = tmp_path / f"other-{number}"
        other.write_bytes(text)
        other.chmod(0o600)
        with pytest.raises(DeploymentError, match="does not hold an Ed25519 key"):
            read_identity(other)
    with pytest.raises(DeploymentError, match="cannot be read"):
        read_identity(tmp_path / "none")


@pytest.mark.parametrize(
    "line",
    [
        "client-1: '00'", "1.5: x", "client-1: [1]",
        *(f"{name}: '{'ab' * 32}'" for name in ("client-x", "client-01", "'1'", "client-\u0663")),
    ],
)  # fmt: skip
def test_a_line_of_a_roster_that_is_none(tmp_path: Path, line: str):
    (tmp_path / "roster.yaml").write_text(line)
    with pytest.raises(DeploymentError):
        read_roster(tmp_path / "roster.yaml")
    assert read_roster(tmp_path / "none.yaml") == {}


def test_a_roster_gives_no_key_to_two_clients(tmp_path: Path):
    """One operator would sign as both, and a sum over two clients would be that of one."""
    keys = {"client-4": "ab" * 32, "client-0": "cd" * 32, "client-7": "ab" * 32}
    roster = tmp_path / "roster.yaml"
    roster.write_text("".join(f"{client}: '{key}'\n" for client, key in keys.items()))
    with pytest.raises(DeploymentError, match=r"client-4 and client-7 have the same key$"):
        read_roster(roster)
    roster.write_text(roster.read_text().replace("client-7: 'ab", "client-7: '0b"))
    assert sorted(read_roster(roster)) == [0, 4, 7]


# --- records ------------------------------------------------------------------------------------


def test_a_message_comes_back_from_records():
    message = {"round": 3, "vector": Seeded(0, "x").words(9)}
    back = from_records(to_records(message))
    assert back["round"] == 3
    assert (back["vector"] == message["vector"]).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"other": ConfigRecord({"encoded": b""})}),
        RecordDict({MESSAGE: ConfigRecord()}),
        RecordDict({MESSAGE: ConfigRecord({"encoded": "text"})}),
        RecordDict({MESSAGE: ConfigRecord({"encoded": b"", "loss": 1.0})}),
        RecordDict({MESSAGE: ConfigRecord({"encoded": b"junk"})}),
        RecordDict({MESSAGE: ConfigRecord({"encoded": encode({})}), "more": ConfigRecord()}),
    ],
)
def test_records_that_are_no_message_are_refused(records: RecordDict):
    with pytest.raises(MessageInvalid) as caught:
        from_records(records)
    assert "\n" not in str(caught.value)
