"""The encoding of a tensor for another party, and the receiver's checks.

    {"kind": "tensor", "name": part, "step": n, "micro": m, "data": array}

n and m are the numbers of the step and of its micro-batch. The name ends in `.grad` for a returned
gradient and in `.test` for an output in an evaluation. `data` contains the values unchanged, as
float32 or as the 16 bits of a bfloat16. Under EmbeddingDP, `data` has one bit in place of each
float. Under `compression`, `data` has each value rounded to a few bits, and a field `ranges` has
the minimum and maximum of each example.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedveil.base.message import Message, Value, check_carried, check_kind, quoted, text_in
from fedveil.base.packing import packed_size
from fedveil.errors import ExchangeError, InvalidValue, MessageInvalid, PeerAborted, PeerAtLimit
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.rounds.outcomes import short
from fedveil.vertical.compression import compressed, restored
from fedveil.vertical.schedule import Transfer
from fedveil.vertical.split import DTYPES, SplitModel

#: The subset of new rows to score. Its outputs may be NaN or infinite: a row with such an output
#: gets no prediction, and all other rows of the request do.
SCORE = "score"
_ON_WIRE: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "bfloat16": np.dtype("<u2")}


def tensor_message(
    transfer: Transfer, fields: Mapping[str, npt.NDArray[Any]], *, training: bool, step: int
) -> dict[str, Value]:
    name = _name_of(transfer, training)
    return {"kind": "tensor", "name": name, "step": step, "micro": transfer.micro, **fields}


def to_wire(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor's values as an array to send. A bfloat16 becomes a 16-bit integer."""
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        plain = plain.view(torch.uint16)
    array: npt.NDArray[Any] = plain.numpy()
    return array


def fields_of(transfer: Transfer, tensor: torch.Tensor) -> dict[str, npt.NDArray[Any]]:
    """Return the message fields that carry `tensor`, an output or gradient not under EmbeddingDP.

    `transfer` says which tensor it is. The values are compressed if the job says so.
    """
    crosses = transfer.crossing.compressed(gradient=transfer.gradient)
    if crosses is None:
        return {"data": to_wire(tensor)}
    data, ranges = compressed(tensor.detach().float().cpu().numpy(), crosses.bits)
    return {"data": data, "ranges": ranges}


def check_sizes(split: SplitModel, rows: int) -> None:
    """Raise MessageTooLong if one message cannot hold an output or gradient of `rows` examples."""
    for crossing in split.crossings:
        for gradient in (False, True) if crossing.gradient else (False,):
            held = crossing.compressed(gradient=gradient)
            bits = 8 * _ON_WIRE[crossing.dtype].itemsize if held is None else held.bits
            if crossing.privacy is not None and not gradient:
                bits = 1
            what = f"the {'gradient' if gradient else 'output'} of part {crossing.part} for {rows}"
            size = packed_size(rows * math.prod(crossing.output), bits)
            check_carried(f"{what} examples (batch_size over in_flight)", size)


def abort_message(reason: str, *, at_limit: bool) -> Message:
    """Return the message that aborts a step for the `reason`.

    If `at_limit` is True, a privacy limit is the reason, and the run then ends normally.
    """
    return {"kind": "abort", "reason": reason} | ({"at_limit": True} if at_limit else {})


def check_not_abort(message: Message, peer: str) -> None:
    """Raise `PeerAborted`, or `PeerAtLimit` for a privacy limit, if the message aborts the step."""
    if text_in(message, "kind") == "abort":
        reason = message.get("reason")
        is_plain = isinstance(reason, str) and reason.isprintable()
        error = PeerAtLimit if message.get("at_limit") is True else PeerAborted
        raise error(peer, short(str(reason)) if is_plain else "it gave no reason")


def check_word(message: Message, peer: str, word: str, step: int) -> None:
    """Raise ExchangeError unless an untrusted `message` is the signal `word` for step `step`.

    A signal, such as `ready` or `commit`, has this word as its kind, and no data. If the message
    aborts the step, raises PeerAborted, or PeerAtLimit for a privacy limit.
    """
    _check_head(message, peer, word, step)
    _check_fields(message, peer, word, {"kind", "step"})


def from_wire(
    message: Message,
    transfer: Transfer,
    *,
    training: bool,
    step: int,
    rows: int,
    finite: bool = True,
) -> torch.Tensor:
    """Decode the tensor in a message of an untrusted peer.

    Raises ExchangeError unless name, step, micro-batch, type and shape are those of the expected
    `transfer`. `rows` is the number of examples. If `finite` is True, also raises it for a value
    that is NaN or infinite. `training` is False for a message of an evaluation.
    """
    peer, name = transfer.sender, _name_of(transfer, training)
    _check_head(message, peer, "tensor", step)
    if text_in(message, "name") != name:
        raise ExchangeError(
            f"{peer} sent the tensor {quoted(message.get('name'))} where {name!r} was due"
        )
    if type(message.get("micro")) is not int or message["micro"] != transfer.micro:
        raise ExchangeError(
            f"{peer} sent micro-batch {quoted(message.get('micro'))} of {name!r} where micro-batch "
            f"{transfer.micro} was due"
        )
    crosses = transfer.crossing.compressed(gradient=transfer.gradient)
    fields = {"kind", "name", "step", "micro", "data"} | ({"ranges"} if crosses else set())
    _check_fields(message, peer, repr(name), fields)
    data = message["data"]
    if not isinstance(data, np.ndarray):
        raise ExchangeError(f"{peer} sent {name!r} with {type(data).__name__} as data")
    if crosses is not None:
        ranges = message["ranges"]
        return _decompressed(data, ranges, crosses.bits, transfer, peer, name, rows, finite)
    return _values(data, transfer, peer, name, rows, finite)


def _name_of(transfer: Transfer, training: bool) -> str:
    part = transfer.crossing.part
    if not training:
        return f"{part}.test"
    return f"{part}.grad" if transfer.gradient else part


def _values(
    data: npt.NDArray[Any], transfer: Transfer, peer: str, name: str, rows: int, finite: bool
) -> torch.Tensor:
    crossing = transfer.crossing
    shape = (rows, *crossing.output)
    if crossing.privacy is not None and not transfer.gradient:
        _check_form(data, np.dtype(np.uint8), (-(-math.prod(shape) // 8),), peer, name)
        try:
            return torch.from_numpy(EmbeddingDP.unpack(data, shape))
        except InvalidValue as error:
            raise ExchangeError(f"{peer} sent {name!r} malformed: {error}") from None
    _check_form(data, _ON_WIRE[crossing.dtype], shape, peer, name)
    tensor = torch.from_numpy(data if data.flags.writeable else data.copy())
    tensor = tensor.view(DTYPES[crossing.dtype])
    if finite:
        _check_finite(tensor, peer, name)
    return tensor


def _decompressed(
    data: npt.NDArray[Any],
    ranges: Value,
    bits: int,
    transfer: Transfer,
    peer: str,
    name: str,
    rows: int,
    finite: bool,
) -> torch.Tensor:
    crossing = transfer.crossing
    shape = (rows, *crossing.output)
    if not isinstance(ranges, np.ndarray):
        raise ExchangeError(f"{peer} sent {name!r} with {type(ranges).__name__} as ranges")
    _check_form(ranges, np.dtype("<f4"), (rows, 2), peer, name)
    _check_form(data, np.dtype(np.uint8), (packed_size(math.prod(shape), bits),), peer, name)
    try:
        values = restored(data, ranges, shape, bits, finite=finite)
    except InvalidValue as error:
        raise ExchangeError(f"{peer} sent {name!r} malformed: {error}") from None
    tensor = torch.from_numpy(values).to(DTYPES[crossing.dtype])
    if finite:  # the largest float32 is infinite as a bfloat16
        _check_finite(tensor, peer, name)
    return tensor


def _check_finite(tensor: torch.Tensor, peer: str, name: str) -> None:
    if not is_finite(tensor):
        raise ExchangeError(f"{peer} sent {name!r} with NaN or infinity in it")


def is_finite(tensor: torch.Tensor) -> bool:
    """Return True if no value is NaN or infinite."""
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


def _check_form(
    data: npt.NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...], peer: str, name: str
) -> None:
    if data.dtype != dtype:
        raise ExchangeError(f"{peer} sent {name!r} as {data.dtype} where {dtype} was due")
    if data.shape != shape:
        raise ExchangeError(f"{peer} sent {name!r} of shape {data.shape} where {shape} was due")


def _check_head(message: Message, peer: str, kind: str, step: int) -> None:
    check_not_abort(message, peer)
    try:
        check_kind(message, kind, peer)
    except MessageInvalid as error:
        raise ExchangeError(str(error)) from None
    found = message.get("step")
    if type(found) is not int or found != step:
        raise ExchangeError(
            f"{peer} sent a {kind} of step {quoted(found)} where step {step} was due"
        )


def _check_fields(message: Message, peer: str, what: str, fields: set[str]) -> None:
    for name in sorted(fields ^ message.keys()):
        which = "without" if name in fields else "with the unknown field"
        raise ExchangeError(f"{peer} sent {what} {which} {quoted(name)}")
