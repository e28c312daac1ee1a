"""Hostile apps, jobs and messages for a site: each is named, and says why a site refuses it."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedveil.base.message import encode
from fedveil.federated.job import Job
from fedveil.flower.records import ADDRESS, COMMON, MESSAGE, addressed_records, common_record
from fedveil.settings import yaml_file
from fedveil.settings.yaml_file import put
from site_parts import archive

#: Code that the apps of a hostile server bring. It leaves a mark if it is ever imported.
CODE = "import builtins\nbuiltins.hostile_code_ran = True\nnet = load = Rule = lambda *a: None\n"
OWN = ("evil:net", "evil.deep:net", "os:system", "builtins:eval", "job:main", "_x:_y")


class Hostile(NamedTuple):
    """An app that a site must refuse. `why` is a part of its reason."""

    name: str
    app: bytes
    why: str = ""


#: Changes of one key, each of which a strict site refuses by itself, and a part of the reason.
WEAKER: list[tuple[dict[str, Any], str]] = [
    *(({"protection": name}, "protection.name is") for name in
      ("not_encrypt", "central_gaussian", "dp_encrypt", "signds", "rr", "oue")),
    ({"protection.distributed_dp.active_security": False}, "active_security is False"),
    *(({"protection.distributed_dp.assume_honest": share}, "assume_honest is") for share in
      (0.91, 0.95, 1.0)),
    *(({"protection.distributed_dp.reconstruct_secrets_threshold": least}, "reconstruct") for least
      in (1, 2, 3, 4)),
    *(({"protection.distributed_dp.share_secrets_ratio": share}, "share_secrets_ratio") for share
      in (0.5, 0.7)),
    ({"protection.distributed_dp.neighbours": 3}, "not valid"),
    *(({"protection.distributed_dp.cipher_time_window": ms}, "the server waits 0.00") for ms in
      (1, 2)),
    ({"privacy.randomness": "seeded"}, "randomness is seeded"),
    ({"privacy.unit": "example", "training.sampling_rate": 0.3, "training.epochs": 1},
     "privacy.unit is example"),
    ({"server.weighting": "by_size", "protection": "pw_encrypt"}, "weighting is by_size"),
    ({"deployment.reveal": ["examples"]}, "deployment.reveal"),
    ({"evaluation.clients": 0.5}, "evaluation.clients"),
    ({"audit.canaries": 1}, "canaries"),
    ({"simulation.dropouts": {"masked": 0.3}}, "dropouts"),
    *(({"data.name": name}, "data.name is") for name in ("mnist", "femnist", "evil:load")),
    ({"data.name": "image_folder", "data.folder": "/etc"}, "data.name is image_folder"),
    ({"clients.number": None}, "clients.number"),
    *(({"clients.number": number}, "") for number in (0, 1, 2)),
    ({"clients.fraction": 0.4}, ""),
    *(({key: name}, "its own code") for key in ("model", "task", "training.lr_schedule")
      for name in OWN),
    *(({"protection": name}, "its own code") for name in OWN),
    *(({"record.callbacks": [name]}, "its own code") for name in OWN),
    ({"protection.own": {"path": "evil:net"}}, "its own code"),
    ({"protection.own": {"a": "b:c"}, "model": "logistic"}, "its own code"),
    *(({key: value}, "not valid") for key, value in
      (("metrics", ["loss"]), ("protection.epsilon", 1e9), ("privacy.off", True),
       ("protection.distributed_dp.clip", -1.0), ("protection.distributed_dp.noise_multiplier", 0),
       ("protection.distributed_dp.noise_multiplier", float("nan")), ("rounds", "all"),
       ("rounds", True), ("privacy", "none"), ("data", 7), ("protection", 7),
       ("protection", ["distributed_dp"]), ("privacy.delta", 1.0), ("protection.name", ""))),
]  # fmt: skip


def changed(job: Job, *changes: dict[str, Any]) -> bytes:
    """Return the app of a job with these keys changed, valid or not, and the code of the server."""
    data: dict[str, Any] = job.model_dump(exclude_unset=True)
    for path, value in itertools.chain(*(change.items() for change in changes)):
        place: Any = data
        *blocks, name = path.split(".")
        for block in blocks:
            held = place.get(block)
            if not isinstance(held, dict):
                held = {} if held is None else {"name": held}
            place[block] = place = held
        place[name] = value
    return with_code(yaml_file.write(data))  # in C, where the emitter is installed


def text_of(job: Job) -> str:
    """Return the job's file, short: without its defaults."""
    return yaml.safe_dump(job.model_dump(exclude_unset=True))


def with_code(job: str | bytes, **more: bytes | str) -> bytes:
    files = {"job.yaml": job, "client_app.py": CODE, "evil.py": CODE, "evil/deep.py": CODE}
    return archive({**files, **more})


def jobs(job: Job) -> Iterator[Hostile]:
    """Yield the job with each weakness alone, and with each pair of them."""
    for number, (change, why) in enumerate(WEAKER):
        yield Hostile(f"{number} {change}", changed(job, change), why)
    for (one, _), (other, _) in itertools.combinations(WEAKER[:26], 2):
        yield Hostile(f"{one} {other}", changed(job, one, other))


def own_code_jobs(job: Job) -> Iterator[Hostile]:
    """Yield jobs with code of their own that a site refuses, though it permits the code."""
    local = {"training.sampling_rate": 0.3, "training.epochs": 1}
    pw = {"protection": {"name": "pw_encrypt", "pw_encrypt": {"active_security": True}}}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"privacy.unit": "example", **local}, "privacy.unit is example, but a job"),
        (pw, "protection.name is pw_encrypt, but a job"),
        ({"deployment.reveal": ["examples"]}, "deployment.reveal is set"),
        ({"training.algorithm": "scaffold"}, "clients with states"),
        ({"clients.own_layers": ["weight"]}, "clients with states"),
        *(({"model": name}, "is not in code.modules") for name in
          (*OWN, "spleen:net", "heart_net_:net", "lungs.net:net", "fedveil:Job")),
        ({"model": "hf:net", "task": "next_token"}, "is not in code.modules"),
        *(({key: f"evil:{name}"}, "is not in code.modules") for key, name in
          (("task", "Task"), ("training.lr_schedule", "rate"))),
        *(({key: value}, "its own code") for key, value in
          (("protection", "heart_net:net"), ("record.callbacks", ["heart_net:net"]))),
        ({"model": "heart_net.../../x:net"}, ""),
        ({"model": "heart_net:net", "task": "lung.net:net", "training.lr_schedule": "evil:rate"},
         "is not in code.modules"),
    ]  # fmt: skip
    for change, why in cases:
        yield Hostile(f"own code, {change}", changed(job, change), why)


def archives(job: Job, signature: str) -> Iterator[Hostile]:
    """Yield archives that hold no readable job, or more than one."""
    good = text_of(job)
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as files:
        for text in (good, good.replace("distributed_dp", "not_encrypt")):
            files.writestr("job.yaml", text)
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as files:
        files.writestr("job.yaml", b"#" * (1 << 24))
    lying = bytearray(bomb.getvalue())
    at = lying.rindex(b"PK\x01\x02") + 24
    lying[at : at + 4] = (10).to_bytes(4, "little")
    whole = archive({"job.yaml": good})
    texts = {
        "a tag": "model: !!python/object/apply:os.system [id]",
        "a module": "model: !!python/module:evil",
        "a pickle": "model: !!binary gASVFAAAAA==\nname: !!python/name:os.system",
        "an alias bomb": "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n" * 3,
        "a text": "distributed_dp",
        "a list": "- distributed_dp",
        "a key twice": f"{good}\nprotection: not_encrypt",
        "a number of digits": f"rounds: {'9' * 5000}",
        "depth": "[" * 3000,
        "theirs": "encrypt:\n  encrypt_train_type: NOT_ENCRYPT\n  dp_encrypt: {}\n",
        "a question": "questions: {old: {ask: count}}\nprotection: oue\nepsilon: 1\n",
        "many keys": "".join(f"k{n}: {n}\n" for n in range(3000)),
    }
    yield from (Hostile(f"yaml: {name}", with_code(text)) for name, text in texts.items())
    yield Hostile("not UTF-8", with_code(b"name: \xff\xfe"), "UTF-8")
    yield Hostile("job twice", twice.getvalue(), "twice")
    yield Hostile("bomb", bomb.getvalue(), "bytes")
    yield Hostile("bomb with a false size", bytes(lying))
    yield Hostile("no job", with_code(good).replace(b"job.yaml", b"job.yam_"), "no job.yaml")
    yield Hostile("question app", archive({"question.yaml": "questions: {}"}), "no job.yaml")
    yield Hostile("elsewhere", archive({"../job.yaml": good, "x/job.yaml": good}), "no job.yaml")
    yield Hostile("not an archive", b"PK\x03\x04" + bytes(99), "archive")
    yield Hostile("a pickle", pickle.dumps({"job": good}), "archive")
    yield Hostile("nothing", b"", "archive")
    for cut in range(1, len(whole), len(whole) // 40):
        yield Hostile(f"cut at {cut}", whole[:cut], "archive")
    for text in ("signature: 7", "signature: zz", "{}", "[", "signature: ''", signature * 2):
        yield Hostile(f"signature {text[:20]}", with_code(good, **{"signature.yaml": text}))


def signatures(job: Job, signature: bytes) -> Iterator[Hostile]:
    """Yield the job with a signature that is not one of it."""
    good = text_of(job)
    yield Hostile("unsigned", with_code(good), "has signed the job")
    for bit in range(0, 512, 9):
        wrong = bytearray(signature)
        wrong[bit // 8] ^= 1 << bit % 8
        signed = {"signature.yaml": f"signature: '{wrong.hex()}'"}
        yield Hostile(f"signature, bit {bit}", with_code(good, **signed), "has signed the job")
    signed = {"signature.yaml": f"signature: '{signature.hex()}'"}
    for change in ({"rounds": 3}, {"name": "other"}, {"seed": 9}, {"training.lr": 0.5}):
        data, _ = put(
            job.model_dump(exclude_unset=True),
            [(tuple(k.split(".")), v) for k, v in change.items()],
            Job,
        )
        yield Hostile(
            f"signed, then {change}",
            with_code(yaml.safe_dump(data), **signed),
            "has signed the job",
        )


class Said(NamedTuple):
    """The parts of a training message: its kind, addressee, protection's words, engine's words."""

    kind: str
    client: int
    asked: dict[str, Any]
    common: dict[str, Any]

    def message(self, change: Callable[[RecordDict], None] = lambda records: None) -> Message:
        records = addressed_records(self.client, encode(self.asked), common_record(self.common))
        records = copy.deepcopy(records)
        change(records)
        return Message(records, 100, self.kind)


def messages(said: Said) -> Iterator[tuple[str, Message]]:
    """Yield messages that differ from `said`, which is one that a site answers."""
    common, asked = said.common, said.asked
    kinds = ["evaluate", "train", "query", "query.state", "query.examples", "train.evaluate",
             "train.unmask", "train.masked", "train.exec", "query.log", "query.forgets",
             "train.reports"]  # fmt: skip
    for kind in kinds:
        yield f"kind {kind}", said._replace(kind=kind).message()
    for client in (-1, 1, 3, 99, 1 << 62):
        yield f"client {client}", said._replace(client=client).message()
    wrong: list[Any] = [0, -1, 2.5, True, "1", b"1", np.ones(3), np.zeros(0), 1 << 60, "", False]
    for name, value in itertools.product(common, wrong):
        yield f"{name} = {value!r}", said._replace(common={**common, name: value}).message()
    for name, value in itertools.product(asked, wrong):
        yield f"asked {name} = {value!r}", said._replace(asked={**asked, name: value}).message()
    for name in common:
        left = {key: value for key, value in common.items() if key != name}
        yield f"without {name}", said._replace(common=left).message()
        yield f"renamed {name}", said._replace(common={**left, f"{name}_": common[name]}).message()
    for more in ("metrics", "loss", "evaluate", "return_data", "protection", "examples", "log"):
        yield f"common {more}", said._replace(common={**common, more: 1}).message()
        yield f"asked {more}", said._replace(asked={**asked, more: 1}).message()
    if "weights" in common:
        yield from _weights(said)
    yield from _records(said)


def _weights(said: Said) -> Iterator[tuple[str, Message]]:
    weights = said.common["weights"]
    strange: dict[str, Any] = {
        "longer": np.zeros(len(weights) + 1, np.float32),
        "shorter": weights[:-1],
        "empty": weights[:0],
        "doubles": weights.astype(np.float64),
        "a matrix": weights.reshape(1, -1),
        "whole numbers": weights.astype(np.int64),
    }
    for name, value in strange.items():
        for dimension in (len(weights), len(value), 1 << 40):
            common = {**said.common, "weights": value, "dimension": dimension}
            yield f"weights {name}, {dimension}", said._replace(common=common).message()
    for shape in ((1 << 40,), (0,), (-1,), (3, 1 << 30), (7,), ()):
        common = {**said.common, "example_shape": np.array(shape, np.int64)}
        yield f"shape {shape}", said._replace(common=common).message()


def _records(said: Said) -> Iterator[tuple[str, Message]]:
    extra: dict[str, Any] = {
        "metrics": MetricRecord({"loss": 0.5}),
        "arrays": ArrayRecord([np.ones(3, np.float32)]),
        "config": ConfigRecord({"evaluate": True}),
        "pickle": ConfigRecord({"encoded": pickle.dumps(print)}),
    }
    for name, record in extra.items():
        yield f"and {name}", said.message(lambda r, n=name, v=record: r.__setitem__(n, v))
        for place in (MESSAGE, ADDRESS, COMMON):
            yield (
                f"{place} is {name}",
                said.message(lambda r, p=place, v=record: r.__setitem__(p, v)),
            )
    pickled = pickle.dumps([print])
    object_array = Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=pickled)
    held = ArrayRecord({"weights": object_array})
    yield "an array of objects", said.message(lambda r: r.__setitem__(COMMON, held))
    for place in (MESSAGE, ADDRESS, COMMON):
        yield f"without {place}", said.message(lambda r, p=place: r.pop(p))
        whole = addressed_records(said.client, encode(said.asked), common_record(said.common))
        data = whole[place]["encoded"]
        for cut in {0, 1, len(data) // 2, len(data) - 1}:
            record = ConfigRecord({"encoded": data[:cut]})
            yield (
                f"{place} cut at {cut}",
                said.message(lambda r, p=place, v=record: r.__setitem__(p, v)),
            )
        for bit in range(0, min(8 * len(data), 1600), 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            record = ConfigRecord({"encoded": bytes(flipped)})
            yield (
                f"{place} bit {bit}",
                said.message(lambda r, p=place, v=record: r.__setitem__(p, v)),
            )
