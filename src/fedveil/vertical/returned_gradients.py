"""The gradients that the leader returns to followers, under `privacy.label_protection`.

The random numbers behind an example's noise are drawn once for each part, and used in every epoch.
So adding up an example's gradients over all epochs does not average the noise away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from fedveil.base.array_types import Float32s, Float64s
from fedveil.base.message import only_fields, take
from fedveil.base.quantity import all_of
from fedveil.base.untrusted import MOST_KEY_BYTES, read_bytes
from fedveil.entropy import Entropy, Seeded
from fedveil.errors import InvalidValue, RunFolderError
from fedveil.mechanisms.label_gradients import (
    GradientDefence,
    Marvell,
    MaxNorm,
    NoiseLaw,
    most_auc,
    normal,
)
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import intact, sealed, unsealed
from fedveil.vertical.blocks import LabelProtectionSettings
from fedveil.vertical.split import Crossing, SplitModel
from fedveil.vertical.step import Occasion
from fedveil.vertical.step_checkpoint import saved_steps

#: The file in the leader's folder with the secret key of the run's noise.
NOISE_KEY = "label-noise-key"
_KEY_BYTES = 32


class ReturnedGradients:
    """Adds noise to the gradients of each micro-batch before the leader returns them to followers.

    `settings` are the job's `privacy.label_protection`. None means no noise. The noise depends on
    the labels used for training, and is independent for each part whose output gets a gradient.
    `key` determines all noise of a run. A resumed run needs the same key.
    """

    def __init__(self, settings: LabelProtectionSettings | None, key: bytes) -> None:
        self._noise = Seeded(int.from_bytes(key, "big"), "label noise")
        self._defence: GradientDefence | None = None
        if settings is not None:
            marvell = settings.name == "marvell"
            self._defence = Marvell(settings.power) if marvell else MaxNorm()

    def __call__(
        self, crossing: Crossing, gradient: torch.Tensor, labels: torch.Tensor, occasion: Occasion
    ) -> torch.Tensor:
        if self._defence is None:
            return gradient
        rows = rows_of(gradient)
        rare = (labels.cpu() == 1).numpy().reshape(-1)

        def own(values: int) -> Float64s:
            return self._own(crossing, occasion.positions, values)

        noised = torch.from_numpy(self._defence(rows, rare, own))
        return noised.reshape(gradient.shape).to(gradient.device, gradient.dtype)

    def _own(self, crossing: Crossing, places: npt.NDArray[np.int64], values: int) -> Float64s:
        """Return `values` standard normal numbers for each example, [examples, values].

        `crossing` names the part, and `places` has the positions of the examples. The numbers
        depend only on the run's key, the part and the example's position.
        """
        streams = (self._noise.stream(crossing.part, int(place)) for place in places)
        return np.stack([normal(values, stream) for stream in streams])


def projection(
    split: SplitModel, settings: LabelProtectionSettings, rare_share: float, epochs: int
) -> Iterator[str]:
    """Yield a sentence for each follower on how well returned gradients hide the labels from it.

    `settings` are the job's `privacy.label_protection`, and `epochs` is the number of epochs. For
    the method `max_norm`, the sentence states no bound. For `marvell`, it states a bound on the
    AUC of an attack that uses all gradients that the follower receives for an example in one step.
    The bound holds if the gradients of a class are equal or Gaussian. It depends on `rare_share`,
    the share of class 1 among the examples.
    """
    cuts = [c for c in split.crossings if c.receiver == split.leader and c.gradient]
    repeated = (
        f"An example has the same noise in {all_of(epochs, 'epoch')}: an unchanged gradient "
        f"reveals nothing new, a changed one does. Only privacy.label_dp bounds that"
    )
    for follower in dict.fromkeys(cut.sender for cut in cuts):
        if settings.name == "max_norm":
            yield f"labels: max_norm hides the length of gradients from {follower}. {repeated}"
            continue
        divergence = sum(
            NoiseLaw.optimal(settings.power, math.prod(cut.output), rare_share, 0, 0).divergence
            for cut in cuts
            if cut.sender == follower
        )
        auc = math.ceil(100 * most_auc(divergence)) / 100
        yield (
            f"labels: marvell with power {settings.power:g} limits {follower} to an AUC "
            f"of {auc:.2f} from the gradients of one step, if those of a class are Gaussian. "
            f"{repeated}"
        )


def rows_of(gradients: torch.Tensor) -> Float32s:
    """Return the gradients as an array of float32, [examples, values]."""
    rows: Float32s = gradients.detach().float().cpu().reshape(len(gradients), -1).numpy()
    return rows


def drawn_key(entropy: Entropy) -> bytes:
    """Draw the secret key from which a run's noise in returned gradients is computed."""
    return entropy.stream("label noise").token(_KEY_BYTES)


def saved_key(folder: RunFolder, entropy: Entropy) -> bytes:
    """Return the noise key in a leader's folder. In a new run, draws and saves one.

    Raises `RunFolderError` if a started run has lost its key. With a new key, an example would get
    new noise, and the mean of its gradients over the epochs would reveal more.
    """
    path = folder.path / NOISE_KEY
    if path.exists():
        with intact(path):
            fields = unsealed(read_bytes(path, MOST_KEY_BYTES))
            only_fields(fields, "key")
            key: bytes = take(fields, "key", bytes)
            if len(key) != _KEY_BYTES:
                raise InvalidValue(f"its key has {len(key)} bytes, {_KEY_BYTES} are needed")
            return key
    if saved_steps(folder):
        raise RunFolderError(f"{path} is missing: the noise of this run is drawn from it")
    key = drawn_key(entropy)
    folder.write_atomically(NOISE_KEY, sealed({"key": key}))
    return key
