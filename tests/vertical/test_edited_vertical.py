"""Edited files of a party: resuming gives a one-sentence error and changes nothing."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edits import damaged, on_copies, sealed_edits, sentence_of
from fedveil.record.sealed_message import sealed, unsealed
from fedveil.vertical import VerticalJob, resume, train
from fedveil.vertical.tensor_fields import fields_of, taken

LAST = "000000010"
#: Edits that nothing can detect: a digest without a key can be recomputed.
LIES = {
    "window/loss.negative", "window/loss.huge", "window/loss.nan", "window/loss.infinite",
    "window/losses.huge", "window/steps.huge", "window/sent.huge", "window/received.huge",
    "window/losses.other", "labels.other",
}  # fmt: skip
PRIVACY = {"embedding_dp": {"eps": 0.5}, "label_dp": {"eps": 1.0}, "randomness": "secure"}


def interrupted(folder: Path, task: str, **changes: Any) -> Path:
    """Make a run that was interrupted after 11 of 12 steps, with 10 of them saved."""

    def stop(record: dict[str, Any]) -> None:
        if record.get("epoch") == 1 and record.get("step") == 5:
            raise KeyboardInterrupt

    settings = VerticalJob(
        name="small", epochs=2, batch_size=9, task=f"vertical_parts:{task}",
        record={"every_steps": 1}, **{"checkpoint": {"every_steps": 5}, **changes},
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        train(settings, folder, progress=stop)
    return folder


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with every protection, which no test changes."""
    return interrupted(tmp_path_factory.mktemp("secure") / "run", "bottoms", privacy=PRIVACY)


@pytest.fixture(scope="module")
def adam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with Adam and running statistics."""
    return interrupted(tmp_path_factory.mktemp("adam") / "run", "u_shape")


def tensors_edited(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the checkpoint with one of the party's tensors edited and the digest recomputed."""
    message, held = taken(unsealed(path.read_bytes()))
    tensors = dict(held)

    def holding(others: dict[str, torch.Tensor], **layout: Any) -> bytes:
        fields = fields_of(others)
        told = json.loads(str(fields["layout"])) | layout
        return sealed({**message, **fields, "layout": json.dumps(told)})

    name, tensor = next(iter(tensors.items()))
    kind, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
    wrong = [3, [], ["floats", shape], [kind, [-1, -tensor.numel()]], ["nn", shape], [kind, "x"],
             [kind, [*shape, 2]], ["float16", shape]]  # fmt: skip
    for number, entry in enumerate(wrong):
        yield f"layout {number}", holding(tensors, **{name: entry})
    yield "layout more", holding(tensors, more=[kind, shape])
    yield "layout list", sealed({**message, **fields_of(tensors), "layout": "[]"})
    yield "layout gone", sealed({**message, **fields_of(tensors), "layout": "{"})
    yield "more", holding({**tensors, "more/weight": torch.zeros(2)})
    yield "more of a part", holding({**tensors, f"{next(iter(tensors))}.more": torch.zeros(2)})
    for number, (name, tensor) in enumerate(tensors.items()):
        rest = {key: kept for key, kept in tensors.items() if key != name}
        if tensor.is_floating_point():
            yield f"{name} nan", holding({**rest, name: torch.full_like(tensor, float("nan"))})
            yield f"{name} negative", holding({**rest, name: torch.full_like(tensor, -1.0)})
        if number % 3:  # the others are similar, and each edit costs a resumed run
            continue
        yield f"{name} gone", holding(rest)
        yield f"{name} elsewhere", holding({**rest, f"{name.partition('/')[0]}//99/x": tensor})
        yield f"{name} unnumbered", holding({**rest, f"{name.partition('/')[0]}//x/x": tensor})
        yield f"{name} longer", holding({**rest, name: torch.cat([tensor.reshape(-1)] * 2)})
        yield f"{name} whole", holding({**rest, name: tensor.to(torch.int32)})


@pytest.mark.parametrize("party", ["lead", "bank"])
def test_an_edited_step_is_one_sentence(party: str, secure: Path, adam: Path) -> None:
    """Edit a checkpoint and recompute its digest, as anyone can."""
    name = f"{party}/checkpoint/{LAST}"
    every = sealed_edits(secure / name, ("window",))
    # Any finite weight is valid, and training may then overflow.
    edits = (edit for edit in every if not re.fullmatch(r"tensor/.*\.huge", edit[0]))
    taken = {how for how, said in on_copies(secure, name, edits, resume) if said is None}
    assert taken <= LIES
    assert "window/loss.negative" in taken, "a task's loss may be below 0"
    for run in (secure, adam):
        said = dict(on_copies(run, name, tensors_edited(run / name), resume))
        for how, sentence in said.items():
            # Any finite weight is valid, and a missing moment starts again from zero.
            lie = how.endswith("negative") or ("//" in how and how.endswith("gone"))
            assert sentence is not None or lie, how
        variances = [how for how in said if how.endswith("running_var negative")]
        assert all("is a variance below 0" in str(said[how]) for how in variances)
        assert bool(variances) == (run == adam and party == "bank")
        moments = [how for how in said if how.endswith(("step negative", "avg_sq negative"))]
        assert all(said[how] is not None for how in moments)
        assert bool(moments) == (run == adam)


@pytest.mark.parametrize("name", ["lead/labels", "bank/releases"])
def test_an_edited_account_is_one_sentence(name: str, secure: Path) -> None:
    taken = {
        how
        for how, said in on_copies(secure, name, sealed_edits(secure / name), resume)
        if said is None
    }
    assert taken <= LIES


def noted(step: int, looks: int) -> bytes:
    data = np.array([step, looks], "<i8").tobytes()
    return data + hashlib.sha256(data).digest()[:8]


def test_edited_notes_of_what_was_begun_are_one_sentence(secure: Path) -> None:
    beginnings = [(-1, 0), (13, 0), (1 << 62, 0), (11, -1), (11, 1 << 62)]
    edits = ((str(at), noted(*at)) for at in beginnings)
    for how, said in on_copies(secure, "bank/begun", edits, resume):
        assert said is not None, how
        assert "bank/begun is damaged: " in said
    assert (secure / "bank" / "begun").read_bytes() == noted(11, 1)


@pytest.mark.parametrize(
    "name",
    [
        "job.yaml", "checkpoint/job.yaml", f"bank/checkpoint/{LAST}", "lead/labels",
        "bank/releases", "bank/begun", "lead/metrics.jsonl",
    ],
)  # fmt: skip
def test_a_file_that_was_damaged_or_taken_away_is_one_sentence(name: str, secure: Path) -> None:
    raw = (secure / name).read_bytes()
    harmless = {"shorter"} if "yaml" in name else set()
    if "metrics" in name:  # its last line is of a step that was not saved
        harmless = {"shorter", "longer", f"byte {len(raw) - 1}"}
    for how, said in on_copies(secure, name, damaged(raw), resume):
        assert (said is None) == (how in harmless), how
    if "checkpoint/0" not in name:  # all parties have the previous checkpoint
        copy = secure.parent / "without"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(secure, copy)
        (copy / name).unlink()
        assert name in str(sentence_of(copy, resume))


@pytest.mark.parametrize("parties", [["lead", "bank", "shop"], ["bank"]])
def test_a_run_without_its_steps_does_not_start_over(parties: list[str], secure: Path) -> None:
    """Its records say that it has trained, so that a party would send everything again."""
    copy = secure.parent / "no steps"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(secure, copy)
    for party in parties:
        shutil.rmtree(copy / party / "checkpoint")
    said = str(sentence_of(copy, resume))
    assert "checkpoint holds no step, but metrics.jsonl holds records of some" in said


def test_edited_metrics_are_one_sentence(secure: Path) -> None:
    """Write invalid lines, with the checkpoint's digests recomputed."""
    file, name = secure / "lead" / "metrics.jsonl", f"lead/checkpoint/{LAST}"
    record = json.loads(file.read_text().splitlines()[0])
    lines = ["3", "[]", "{", json.dumps({**record, "loss": "much"})]
    lines += [json.dumps({k: v for k, v in record.items() if k != key}) for key in ("step", "unit")]
    for line in lines:
        metrics = f"{line}\n".encode()
        copy = secure.parent / "metrics"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(secure, copy)
        (copy / "lead" / "metrics.jsonl").write_bytes(metrics)
        digest = hashlib.sha256(metrics).hexdigest()
        about = {"metrics_bytes": len(metrics), "metrics_digest": digest}
        message = {**unsealed((copy / name).read_bytes()), **about}
        (copy / name).write_bytes(sealed(message))
        assert "lead/metrics.jsonl is damaged: " in str(sentence_of(copy, resume))


def test_an_edited_job_is_refused_by_its_keys(secure: Path) -> None:
    """Keys that parties need not agree on must not change in a run either."""
    copy = secure.parent / "job"
    shutil.copytree(secure, copy)
    text = (copy / "job.yaml").read_text()
    (copy / "job.yaml").write_text(text.replace("epochs: 2", "epochs: 4").replace("small", "big"))
    sentence = str(sentence_of(copy, resume))
    assert "name = 'big' where the run has 'small'; epochs = 4 where the run has 2" in sentence


@pytest.mark.parametrize("randomness", ["seeded", "secure"])
def test_reports_that_were_lost_are_not_drawn_anew(randomness: str, tmp_path: Path) -> None:
    """Lost reports cannot be sent again, and drawing new ones would cost an example twice."""
    embedding = {"eps": 0.5, "reuse": True, "gradient": "none"}
    privacy = {"embedding_dp": embedding, "randomness": randomness}
    run = interrupted(tmp_path / "run", "bottoms", privacy=privacy)
    kept = run / "bank" / "reports-left-train"
    raw = kept.read_bytes()
    kept.write_bytes(raw[: 49 * (8 + 1)])  # all 50 were sent in the first epoch
    assert "reports-left-train is missing or cut short" in str(sentence_of(run, resume))
    kept.unlink()
    assert "reports-left-train is missing or cut short" in str(sentence_of(run, resume))
    kept.write_bytes(raw)
    looked = run / "bank" / "reports-left-test"  # an evaluation has sent them too
    raw = looked.read_bytes()
    looked.write_bytes(raw[:-9])
    assert "reports-left-test is missing or cut short" in str(sentence_of(run, resume))
    looked.write_bytes(raw)
    assert sentence_of(run, resume) is None


def test_what_is_lost_before_the_first_saved_step_is_not_made_anew(tmp_path: Path) -> None:
    """The only checkpoint is that of step 0, but 11 steps were sent."""
    embedding = {"eps": 0.5, "reuse": True, "gradient": "none"}
    every = {"label_dp": {"eps": 1.0}, "randomness": "secure", "embedding_dp": embedding}
    noise = {"label_protection": {"name": "max_norm"}, "randomness": "secure"}
    never = {"checkpoint": {"every_steps": 50}}
    for privacy, names in (
        (every, ["lead/labels", "bank/releases", "bank/begun", "bank/reports-left-train"]),
        (noise, ["lead/label-noise-key"]),
    ):
        run = interrupted(
            tmp_path / names[0].replace("/", "-"), "bottoms", privacy=privacy, **never
        )
        assert [path.name for path in (run / "bank/checkpoint").iterdir()] == ["0" * 9]
        for name in names:
            raw = (run / name).read_bytes()
            (run / name).unlink()
            assert f"{name} is missing" in str(sentence_of(run, resume))
            assert not (run / name).exists()
            (run / name).write_bytes(raw)
        assert sentence_of(run, resume) is None


@pytest.mark.parametrize("lost", ["lead/labels", "lead/label-noise-key"])
def test_what_is_lost_with_the_checkpoints_is_not_made_anew(lost: str, tmp_path: Path) -> None:
    """A refused run would otherwise leave other labels behind for the restored checkpoints."""
    privacy = {
        "lead/labels": {"label_dp": {"eps": 1.0}},
        "lead/label-noise-key": {"label_protection": {"name": "max_norm"}},
    }[lost]
    run = interrupted(tmp_path / "run", "bottoms", privacy=privacy | {"randomness": "secure"})
    kept = {path: path.read_bytes() for path in (run / "lead/checkpoint").iterdir()}
    shutil.rmtree(run / "lead/checkpoint")
    (run / lost).unlink()
    assert "checkpoint holds no step, but metrics.jsonl" in str(sentence_of(run, resume))
    (run / "lead/metrics.jsonl").unlink()  # as if it had been killed before its first record
    assert "checkpoint holds no step, but a step has begun" in str(sentence_of(run, resume))
    assert not (run / lost).exists()
    (run / "lead/checkpoint").mkdir()
    for path, data in kept.items():
        path.write_bytes(data)
    assert f"{lost} is missing" in str(sentence_of(run, resume))
