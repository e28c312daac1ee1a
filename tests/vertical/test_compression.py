"""Compressed tensors: an error of half a level at most, fewer bytes, and error feedback."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vertical_parts
from fedveil.base.array_types import Float32s
from fedveil.entropy import Seeded
from fedveil.errors import ExchangeError, InvalidValue, JobError
from fedveil.language import generation
from fedveil.vertical import Batch, Party, SplitModel, VerticalJob, drive_together, resume, train
from fedveil.vertical.compression import Compression, Errors, compressed, restored
from fedveil.vertical.crossing import fields_of, from_wire, tensor_message
from fedveil.vertical.schedule import Transfer


def values(rows: int = 6, width: int = 33) -> Float32s:
    drawn = Seeded(1, "values").generator().standard_normal((rows, width)).astype(np.float32)
    return drawn * np.logspace(-3, 3, rows, dtype=np.float32)[:, np.newaxis]


@pytest.mark.parametrize("bits", range(1, 9))
def test_every_value_is_off_by_half_a_level_at_most(bits: int) -> None:
    sent = values()
    data, ranges = compressed(sent, bits)
    assert len(data) == (sent.size * bits + 7) // 8
    told = restored(data, ranges, sent.shape, bits)
    level = (sent.max(axis=1) - sent.min(axis=1)) / (2**bits - 1)
    assert (np.abs(told - sent) <= level[:, np.newaxis] * 0.5001).all()
    assert (told.min(axis=1) == sent.min(axis=1)).all()
    assert (told.max(axis=1) == sent.max(axis=1)).all()
    assert max(len(np.unique(row)) for row in told) <= 2**bits


def test_values_that_are_one_number_or_the_largest_come_through() -> None:
    edge = np.float32(3.4e38)
    for row in ([2.5, 2.5], [-edge, edge], [0.0, 0.0]):
        sent = np.array([row], np.float32)
        assert (restored(*compressed(sent, 1), (1, 2), 1) == sent).all()


def test_an_example_that_is_not_finite_leaves_the_others_their_values() -> None:
    sent = values(3, 5)
    sent[0, 2], sent[1, 3] = np.nan, -np.inf
    data, ranges = compressed(sent, 8)
    told = restored(data, ranges, sent.shape, 8, finite=False)
    assert np.isnan(told[:2]).all()
    assert (told[2] == restored(*compressed(sent[2:], 8), (1, 5), 8)).all()
    with pytest.raises(InvalidValue, match="not minima"):
        restored(data, ranges, sent.shape, 8)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data": np.zeros(3, np.uint8)}, "of shape"),
        ({"data": np.zeros(4, np.float32)}, "as float32 where uint8 was due"),
        (
            {"data": np.array([255, 255, 255, 255], np.uint8)},
            "its codes are not 5 numbers of 6 bits",
        ),
        ({"ranges": np.array([[1, 0]], np.float32)}, "its ranges are not minima"),
        ({"ranges": np.array([[0, np.inf]], np.float32)}, "its ranges are not minima"),
        ({"ranges": np.zeros((2, 2), np.float32)}, "of shape"),
        ({"ranges": 3}, "with int as ranges"),
        ({"ranges": np.zeros((1, 2), np.int64)}, "as int64 where float32 was due"),
    ],
)
def test_what_is_no_compressed_tensor_is_refused(change: Any, sentence: str) -> None:
    split = vertical_parts.Bottoms().split_model()
    split = split.replace("left", output=(5,), compression=Compression(6))
    transfer = Transfer(split.crossings[0], 0, gradient=False)
    data, ranges = compressed(values(1, 5), 6)
    message = {"kind": "tensor", "name": "left", "step": 1, "micro": 0,
               "data": data, "ranges": ranges}  # fmt: skip
    assert from_wire(message, transfer, training=True, step=1, rows=1).shape == (1, 5)
    short = Transfer(split.replace("left", dtype="bfloat16").crossings[0], 0, gradient=False)
    assert from_wire(message, short, training=True, step=1, rows=1).dtype == torch.bfloat16
    with pytest.raises(ExchangeError, match=sentence):
        from_wire({**message, **change}, transfer, training=True, step=1, rows=1)


def test_what_was_left_out_is_added_the_next_time() -> None:
    """Check that an example's values, sent repeatedly, are right on average."""
    sent, errors, told = values(3, 20), Errors(), []
    for _ in range(200):
        whole = sent + errors.of(("left", False), np.arange(3), sent)
        told.append(restored(*compressed(whole, 1), sent.shape, 1))
        errors.keep({("left", False): [(np.arange(3), whole - told[-1])]})
    spread = (sent.max(axis=1) - sent.min(axis=1))[:, np.newaxis]
    assert (np.abs(np.mean(told, axis=0) - sent) < 0.05 * spread).all()
    assert not (np.abs(told[0] - sent) < 0.05 * spread).all()


def test_errors_of_later_examples_leave_those_of_earlier_ones() -> None:
    errors, place = Errors(), ("left", True)
    for positions, value in (([0, 2], 3.0), ([5], 7.0), ([2], 4.0)):
        errors.keep({place: [(np.array(positions), np.full((len(positions), 2), value, "f4"))]})
    found = errors.of(place, np.array([5, 2, 0, 1, 6, 9]), np.zeros((6, 2), np.float32))
    assert found[:, 1].tolist() == [7, 4, 3, 0, 0, 0]


def test_the_errors_of_each_micro_batch_part_and_direction_are_saved() -> None:
    errors = Errors()
    pieces = {
        ("left", False): [([4], 1.0), ([0, 6], 2.0)],
        ("right", False): [([1], 3.0), ([2], 5.0)],
        ("right", True): [([3, 1], 7.0)],
    }
    errors.keep({
        place: [(np.array(at), np.full((len(at), 2), value, "f4")) for at, value in some]
        for place, some in pieces.items()
    })  # fmt: skip
    again = Errors()
    again.restore({
        "left": {"forward": errors.state()["left///forward"]},
        "right": {way: errors.state()[f"right///{way}"] for way in ("forward", "backward")},
    })  # fmt: skip
    for held in (errors, again):
        for place, found in (
            (("left", False), [2, 0, 0, 0, 1, 0, 2]), (("left", True), [0] * 7),
            (("right", False), [0, 3, 5, 0, 0, 0, 0]), (("right", True), [0, 7, 0, 7, 0, 0, 0]),
        ):  # fmt: skip
            like = np.zeros((7, 2), np.float32)
            assert held.of(place, np.arange(7), like)[:, 1].tolist() == found, place


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("row", [0, 2])
def test_no_example_has_a_lowest_level_above_its_highest(row: int, finite: bool) -> None:
    data, ranges = compressed(values(3, 5), 6)
    assert restored(data, ranges, (3, 5), 6, finite=finite).shape == (3, 5)
    ranges[row] = ranges[row, ::-1].copy()
    with pytest.raises(InvalidValue, match="not minima and maxima"):
        restored(data, ranges, (3, 5), 6, finite=finite)


def parties_of(split: SplitModel) -> dict[str, Party]:
    loss = vertical_parts.Bottoms().loss
    return {name: Party(name, split, loss=loss if name == "lead" else None)
            for name in split.parties}  # fmt: skip


def steps_of(parties: dict[str, Party], number: int) -> dict[str, Any]:
    x, y = vertical_parts.Bottoms().whole("train")
    rows = np.arange(50)
    held = {"lead": Batch(rows, labels=y), "bank": Batch(rows, {"x": x[:, :3]}),
            "shop": Batch(rows, {"x": x[:, 3:]})}  # fmt: skip
    return {name: party.step(number, held[name]) for name, party in parties.items()}


def test_a_void_step_leaves_no_error_behind() -> None:
    split = vertical_parts.Bottoms().split_model()
    split = split.replace("left", compression=Compression(2, error_feedback=True))
    parties = parties_of(split)
    drive_together(steps_of(parties, 1))
    before = {name: t.clone() for name, t in parties["bank"].state().items()}
    assert before["left///forward"].shape == (50, 8)
    assert parties["lead"].state()["left///backward"].shape == (50, 8)
    wrong = steps_of(parties, 2)
    wrong["lead"] = steps_of(parties, 3)["lead"]
    with pytest.raises(ExchangeError):
        drive_together(wrong)
    after = parties["bank"].state()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_look_feeds_back_nothing() -> None:
    split = vertical_parts.Bottoms().split_model()
    parties = parties_of(split.replace("left", compression=Compression(2, error_feedback=True)))
    drive_together(steps_of(parties, 1))

    def looked() -> torch.Tensor:
        x, y = vertical_parts.Bottoms().whole("test")
        rows = np.arange(20)
        held = {"lead": Batch(rows, labels=y), "bank": Batch(rows, {"x": x[:, :3]}),
                "shop": Batch(rows, {"x": x[:, 3:]})}  # fmt: skip
        looks = {name: party.look(1, held[name]) for name, party in parties.items()}
        return drive_together(looks)["lead"]

    first = looked()
    parties["bank"]._errors.restore({})
    assert torch.equal(first, looked())


def test_errors_of_another_part_are_refused() -> None:
    party = parties_of(vertical_parts.Bottoms().split_model())["bank"]
    with pytest.raises(InvalidValue, match="left///forward is not a compression error"):
        party.restore(party.state() | {"left///forward": torch.zeros(3, 8)})
    split = vertical_parts.Bottoms().split_model()
    for feeds, own in ((True, {"bank": "forward", "lead": "backward"}), (False, {})):
        held = Compression(2, error_feedback=feeds)
        parties = parties_of(split.replace("left", compression=held))
        for name, way in product(("bank", "lead"), ("forward", "backward")):
            party, left_out = parties[name], {f"left///{way}": torch.zeros(3, 8)}
            if own.get(name) == way:
                party.restore(party.state() | left_out)
                left_out = {f"left///{way}": torch.zeros(3, 8, dtype=torch.float64)}
            with pytest.raises(InvalidValue, match=f"left///{way} is not a compression error of"):
                party.restore(party.state() | left_out)


def run(folder: Path, **settings: Any) -> Any:
    job = VerticalJob(
        **{"task": "vertical_parts:bottoms", "epochs": 2, "batch_size": 10,
           "record": {"every_steps": 1}, "checkpoint": {"every_steps": 2}, **settings}
    )  # fmt: skip
    return train(job, folder)


def crossed(run: Any) -> tuple[float, float]:
    last = [record for record in run.records["bank"] if "step" in record][-1]
    return last["bytes_sent_per_step"], last["bytes_received_per_step"]


def test_a_job_compresses_either_way_or_both(tmp_path: Path) -> None:
    plain = crossed(run(tmp_path / "plain"))
    both = crossed(run(tmp_path / "both", compression={"bits": 4}))
    back = crossed(run(tmp_path / "back", compression={"bits": 4, "forward": False}))
    saved = 10 * 8 * 4 - (10 * 8 // 2 + 10 * 2 * 4)  # codes and ranges instead of floats
    assert plain[0] - both[0] == pytest.approx(saved, abs=60)
    assert back[0] == plain[0]
    assert back[1] == both[1] < plain[1]


def test_a_bit_of_embedding_dp_is_one_already(tmp_path: Path) -> None:
    private = {"embedding_dp": {"eps": 5.0}}
    plain = crossed(run(tmp_path / "plain", privacy=private))
    both = crossed(run(tmp_path / "both", privacy=private, compression={"bits": 4}))
    assert both[0] == plain[0]
    assert both[1] < plain[1]


def test_a_text_is_continued_through_compressed_crossings() -> None:
    split = vertical_parts.Bottoms().split_model().replace("left", compression=Compression(8))
    crossing = replace(split.crossings[0], output=(4, 8))
    sent = torch.from_numpy(values(1, 3 * 8)).reshape(1, 3, 8)
    message = generation._message(crossing, sent, 1, Seeded(0))
    assert message["data"].shape == (3 * 8,)  # type: ignore[union-attr]
    arrived = generation._tensor(message, crossing, 1, 3)
    assert torch.allclose(arrived, sent, atol=float(sent.max() - sent.min()) / 255)


def test_a_run_that_goes_on_feeds_back_what_it_would_have(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record.get("epoch") == 1 and record.get("step") == 2:
            raise Stop

    job = VerticalJob(
        task="vertical_parts:bottoms", epochs=2, batch_size=10, record={"every_steps": 1},
        checkpoint={"every_steps": 2}, compression={"bits": 1, "error_feedback": True},
    )  # fmt: skip
    whole = train(job, tmp_path / "whole")
    with pytest.raises(Stop):
        train(job, tmp_path / "stopped", progress=stop)
    resume(tmp_path / "stopped")
    for party in whole.split.parties:
        one, other = (
            tmp_path / name / party / "model.safetensors" for name in ("whole", "stopped")
        )
        assert one.read_bytes() == other.read_bytes()


def test_a_compression_of_nothing_is_refused() -> None:
    with pytest.raises(JobError, match=r"compression\.forward and compression\.backward are both"):
        VerticalJob(compression={"forward": False, "backward": False})
    with pytest.raises(InvalidValue, match="are both false: set one to true"):
        Compression(forward=False, backward=False)
    for bits in (0, 9):
        with pytest.raises(InvalidValue, match=f"compression.bits = {bits} is outside"):
            Compression(bits)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_bfloat16_tensor_is_compressed_too(gradient: bool) -> None:
    split = vertical_parts.Bottoms().split_model()
    split = split.replace("left", dtype="bfloat16", compression=Compression(6))
    transfer = Transfer(split.crossings[0], 3, gradient)
    sent = torch.from_numpy(values(7, 8)).to(torch.bfloat16)
    message = tensor_message(transfer, fields_of(transfer, sent), training=True, step=2)
    arrived = from_wire(message, transfer, training=True, step=2, rows=7)
    assert arrived.dtype == torch.bfloat16
    level = (sent.amax(dim=1) - sent.amin(dim=1)).float() / 63
    assert ((arrived - sent).float().abs() <= level[:, None]).all()


@pytest.mark.parametrize("gradient", [False, True])
def test_a_level_that_is_infinite_only_as_a_bfloat16_is_refused(gradient: bool) -> None:
    """The largest float32 is finite in the message, and infinite in the tensor made of it."""
    split = vertical_parts.Bottoms().split_model()
    most = np.finfo(np.float32).max
    data, ranges = compressed(np.float32([[1.5, -2.0], [0.25, most]]), 6)
    for dtype, fits in (("float32", True), ("bfloat16", False)):
        coarse = split.replace("left", output=(2,), dtype=dtype, compression=Compression(6))
        transfer = Transfer(coarse.crossings[0], 4, gradient)
        fields = {"data": data, "ranges": ranges}
        message = tensor_message(transfer, fields, training=True, step=3)
        loose = from_wire(message, transfer, training=True, step=3, rows=2, finite=False)
        assert bool(loose.isfinite().all()) is fits
        if fits:
            assert from_wire(message, transfer, training=True, step=3, rows=2)[1, 1] == most
        else:
            with pytest.raises(ExchangeError, match=r"sent 'left.*' with NaN or infinity in it"):
                from_wire(message, transfer, training=True, step=3, rows=2)
