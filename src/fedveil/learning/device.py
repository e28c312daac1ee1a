"""Checks torch devices and their memory, seeds generators, and sets how devices round numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from fedveil.entropy import libraries_restored, seed_libraries
from fedveil.errors import JobError

_TINY = np.float32(1e-39)


def check_device(key: str, name: str) -> None:
    """Raise `JobError` if torch cannot use the device `name`. `key` is the job's key for it."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise JobError([f"{key} = {name} cannot be used here: {reason}"]) from None


def free_bytes(device: str) -> int | None:
    """Return the bytes of memory that are free on `device`, or None if this is unknown.

    For the CPU, free swap space counts too.
    """
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        found = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        return 1024 * sum(int(found[name][0]) for name in ("MemAvailable", "SwapFree"))
    except (OSError, LookupError, ValueError):
        return None


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the global random generators of torch (for the CPU and `device`), NumPy and Python.

    Layers such as dropout and a user's own code may draw from these generators.
    """
    seed_libraries(seed)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):  # torch seeds the current device only
            torch.cuda.manual_seed(seed)


@contextmanager
def seeded_generators(seed: int, device: torch.device) -> Iterator[None]:
    """A context with seeded generators (`seed_generators`). Restores their states afterwards."""
    kept = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with kept, libraries_restored():
        seed_generators(seed, device)
        yield


@contextmanager
def whole_float32() -> Iterator[None]:
    """A context in which GPUs convolve float32 numbers without rounding them to TF32.

    By default, torch allows cuDNN to round the inputs of a convolution from 24 to 11 bits. Training
    in float32 would then differ from training on a CPU by a thousandth. The context changes nothing
    if the user has set different precisions for different operations (`torch.backends.cudnn.conv`).
    """
    allowed = _allows_tf32()
    if allowed:
        torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        if allowed:
            torch.backends.cudnn.allow_tf32 = True


def _allows_tf32() -> bool:
    """Return True if cuDNN may use TF32. False if it may not, or not for all operations."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # torch has no common answer for these operations
        return False


@contextmanager
def tiny_is_zero() -> Iterator[None]:
    """A context in which this thread treats subnormal numbers, below 1.2e-38 in float32, as 0.

    Processors are slow with subnormal numbers. If a model has much noise in its weights, many of
    its probabilities are subnormal. Its training takes up to 9 times as long outside this context.
    """
    before = not _TINY * np.float32(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
