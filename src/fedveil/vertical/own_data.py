"""Finds the parts of a split model that compute with, send or learn from a party's own data."""

from __future__ import annotations

from collections.abc import Iterable

from torch.nn.modules.batchnorm import _BatchNorm

from fedveil.vertical.split import EmbeddingPrivacy, Part, SplitModel


def of_own_data(parts: Iterable[Part]) -> frozenset[str]:
    """Return the names of the parts whose output is computed from columns of the part's owner.

    A part is included if it reads such columns, or the output of an included part of the same
    owner. A part that reads only other parties' outputs is not included, even if these outputs
    depend on the owner's data.
    """
    by_name = {part.name: part for part in parts}
    found = {name for name, part in by_name.items() if part.columns}
    while True:
        more = {
            name
            for name, part in by_name.items()
            if name not in found
            and any(s in found and by_name[s].owner == part.owner for s in part.sources)
        }
        if not more:
            return frozenset(found)
        found |= more


def private_parts(split: SplitModel, party: str) -> list[tuple[Part, EmbeddingPrivacy]]:
    """Return a party's parts that send their output under EmbeddingDP, with their settings."""
    return [(part, part.privacy) for part in split.owned_by(party) if part.privacy is not None]


def sends_unprotected(split: SplitModel, party: str) -> list[str]:
    """Return the names of a party's parts that send unprotected outputs of the party's own data."""
    own = of_own_data(split.parts)
    leaves = {crossing.part for crossing in split.crossings if crossing.sender == party}
    return [
        part.name
        for part in split.owned_by(party)
        if part.name in leaves and part.name in own and part.privacy is None
    ]


def trained_by_examples(split: SplitModel, party: str) -> list[str]:
    """Return the names of a party's parts behind EmbeddingDP that learn from its own examples.

    A part is behind EmbeddingDP if its output is sent as bits, or is read by a later part whose
    output is. If the part learns, its weights depend on every example of earlier steps, and so do
    the bits that are later sent for other examples. A part that is not frozen learns from the
    party's examples in one of three ways:

    - Its weights are trained. The party's own columns enter it, or enter a later part of the party
      that returns a gradient to it.
    - Another part of the party, which is trained, has some of the same weights.
    - It has a layer that keeps statistics of its batches, such as BatchNorm.
    """
    learns = _sources_too(set(of_own_data(split.parts)), split, party)

    def learning(part: Part) -> bool:
        return (
            (part.name in learns and split.runs_backward(part.name))
            or _shares_trained_weights(split, part)
            or _keeps_statistics(part)
        )

    return [p.name for p in _behind_bits(split, party) if not p.frozen and learning(p)]


def mixing_batches(split: SplitModel, party: str) -> list[str]:
    """Return the names of a party's parts behind EmbeddingDP that mix the examples of a batch.

    These parts have a BatchNorm that scales every example of a batch by the mean and variance of
    this batch, so each example influences the bits of all others. Every BatchNorm does so in
    training. One without running statistics also does so in an evaluation, and in a frozen part.
    """
    return [part.name for part in _behind_bits(split, party) if _mixes_batches(part)]


def fitted_to_examples(split: SplitModel, party: str) -> list[str]:
    """Return the names of a party's parts behind EmbeddingDP that read fitted columns.

    The values of such columns depend on several examples (`Part.fitted`). So each example
    influences the bits of all others, even if the part is frozen.
    """
    return [part.name for part in _behind_bits(split, party) if part.fitted and part.columns]


def _behind_bits(split: SplitModel, party: str) -> list[Part]:
    """Return the party's parts whose output is sent as bits.

    Also returns the party's parts on whose output such a part depends.
    """
    found = _sources_too({part.name for part, _ in private_parts(split, party)}, split, party)
    return [part for part in split.owned_by(party) if part.name in found]


def _sources_too(names: set[str], split: SplitModel, party: str) -> set[str]:
    """Return the parts in `names`, and all parts of which they read the output, at `party`."""
    for part in reversed(split.owned_by(party)):  # readers come after the parts that they read
        if part.name in names:
            names.update(part.sources)
    return names


def unprotected_gradients(split: SplitModel, party: str) -> list[str]:
    """Return the parts of others to which `party` sends gradients that depend on its own columns.

    Returns [] for the leader, whose gradients depend on the labels (see the job's
    `privacy.label_protection`), and whose columns no account covers (`gradients_of_columns`).
    """
    return [] if party == split.leader else gradients_of_columns(split, party)


def gradients_of_columns(split: SplitModel, party: str) -> list[str]:
    """Return the parts of others to which `party` sends gradients that depend on its own columns.

    A party that receives a part's output returns the gradient of this output. The gradient depends
    on the party's columns if the output and such columns enter the same part of the party, directly
    or through its other parts.
    """
    own, found = of_own_data(split.parts), []
    for crossing in split.crossings:
        if crossing.receiver == party and crossing.gradient:
            reached = set(crossing.consumers)
            for part in split.owned_by(party):  # sources come before the parts that read them
                if not reached.isdisjoint(part.sources):
                    reached.add(part.name)
            if not reached.isdisjoint(own):
                found.append(crossing.part)
    return found


def _shares_trained_weights(split: SplitModel, part: Part) -> bool:
    """Return True if another trained part of the same party has some weights of `part`."""
    own = set() if part.module is None else {id(weight) for weight in part.module.parameters()}
    return any(
        id(weight) in own and weight.requires_grad
        for other in split.owned_by(part.owner)
        if other is not part and other.module is not None and split.runs_backward(other.name)
        for weight in other.module.parameters()
    )


def _keeps_statistics(part: Part) -> bool:
    """Return True if a layer of `part` keeps a running mean of its batches, such as BatchNorm."""
    names = () if part.module is None else (name for name, _ in part.module.named_buffers())
    return any(name.endswith("running_mean") for name in names)


def _mixes_batches(part: Part) -> bool:
    """Return True if a layer of `part` scales examples by their own batch's statistics."""
    layers = () if part.module is None else part.module.modules()
    return any(
        isinstance(layer, _BatchNorm) and (layer.running_mean is None or not part.frozen)
        for layer in layers
    )
