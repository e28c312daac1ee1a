"""Extraction of secret phrases, planted in clients' texts, from the trained model.

A phrase is a row of random tokens: a known beginning, followed by a secret. Each secret is ranked
among n candidates, itself and random others, by the model's loss. The exposure of a secret (Carlini
et al. 2019, "The secret sharer") is log2(n) - log2(rank). A phrase that was in no client's texts
has a median exposure of 1 bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.membership.shadow_runs import rehearse
from fedveil.attacks.roc import balanced_accuracy
from fedveil.attacks.target import Target
from fedveil.base.array_types import Array, Float64s, Int64s
from fedveil.base.example_arrays import IGNORED, is_plain
from fedveil.base.quantity import quantity
from fedveil.data.examples import Dataset, Examples
from fedveil.engine.assembly import make_partition
from fedveil.engine.cohorts import Cohorts
from fedveil.entropy import Entropy, Seeded
from fedveil.errors import AttackImpossible
from fedveil.privacy.client_tally import Clients
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.intervals import area, median, share

#: The tokens of a phrase: its beginning, and its secret.
BEGINNING, SECRET = 5, 4
#: The numbers of copies that a client has of its phrase.
COPIES = (1, 4)
#: A phrase with more exposure, in bits, is guessed to be a client's. The guess is wrong for 1/4 of
#: the phrases that no client has.
_SUSPICIOUS = 2.0
_AT_ONCE = 256


@dataclass(frozen=True)
class Phrases:
    """Phrases as rows of tokens. `copies[i]` is the number of planted copies of phrase i, or 0.

    `tokens` are the different tokens from which phrases are made.
    """

    rows: Int64s
    copies: Int64s
    tokens: Int64s


def attack(target: Target, effort: Effort, watch: Watch) -> Finding:
    """Run the job with planted phrases, and measure what the final model reveals of them.

    `effort` sets how many phrases are planted, and `watch` reports the progress.
    """
    _check(target)
    entropy = Seeded(target.job.seed, "attack", "extraction")
    of_each, candidates = by_effort(effort, 8, 16, 32), by_effort(effort, 255, 1023, 4095)
    phrases = _drawn(target.dataset, of_each, entropy)
    watch.step(0, 2, "the job with planted phrases")
    dataset, owners = planted(target, phrases, entropy)
    played = rehearse(replace(target, dataset=dataset))
    model, phrases = played.model, without_absent_owners(phrases, owners, played.clients)
    watch.step(1, 2, f"{len(phrases.rows)} phrases among {candidates} candidates each")
    bits = exposures(model, phrases, candidates, entropy)
    found = list(_figures(model, phrases, bits))
    watch.step(2, 2, "done")
    return replace(target, played=played.rounds, claim=played.claim).finding(
        "extraction",
        effort,
        found,
        rounds=played.rounds,
        saw=f"the model after {quantity(played.rounds, 'round')}, with phrases of "
        f"{SECRET} secret tokens; {int((phrases.copies > 0).sum())} phrases are of clients that "
        "took part",
    )


def _check(target: Target) -> None:
    train = target.dataset.train
    tokens = target.job.task in ("next_token", "instruction") and is_plain(train.x)
    if not tokens:
        raise AttackImpossible(
            f"the extraction attack is on models that predict the next token of rows of one length:"
            f" this job's task is {target.job.task}"
        )
    if train.x.shape[1] < BEGINNING + SECRET - 1:
        raise AttackImpossible(
            f"the extraction attack plants phrases of {BEGINNING + SECRET} tokens, but an example "
            f"has {train.x.shape[1]}"
        )


def _drawn(dataset: Dataset, of_each: int, entropy: Entropy) -> Phrases:
    tokens = np.unique(dataset.test.x)
    copies = np.repeat([*COPIES, *[0] * len(COPIES)], of_each)
    generator = entropy.stream("phrases").generator()
    rows = tokens[generator.integers(0, len(tokens), (len(copies), BEGINNING + SECRET))]
    return Phrases(rows.astype(np.int64), copies, tokens.astype(np.int64))


def without_absent_owners(phrases: Phrases, owners: Int64s, clients: Clients) -> Phrases:
    """Copy the phrases, and set `copies` to 0 for each phrase whose client took part in no round.

    `owners[i]` is the client whose texts contain phrase i, or -1 if there is none. `clients` are
    the clients that took part. Raises `AttackImpossible` if, for a number of copies in `COPIES`, no
    phrase with this number is left.
    """
    copies = np.where(np.isin(owners, clients.astype(np.int64)), phrases.copies, 0)
    if not set(COPIES) <= set(copies.tolist()):
        raise AttackImpossible(
            f"{quantity(len(clients), 'client')} took part in the job's rounds, and no planted "
            "phrase was theirs: use more rounds, or a larger clients.fraction"
        )
    return replace(phrases, copies=copies)


def planted(target: Target, phrases: Phrases, entropy: Entropy) -> tuple[Dataset, Int64s]:
    """Replace some training examples with copies of phrases. Returns the data and the owners.

    `owners[i]`, the second result, is the client that has all copies of phrase i, or -1 if the
    phrase has no copies. A client gets at most one phrase. Clients that the job draws for some
    round get phrases before other clients. Raises `AttackImpossible` if there are too few clients
    with enough examples.
    """
    # The run splits the examples among clients again. The split is not `target.partition` if the
    # target's data lack some of the job's examples, such as those that clients hold out.
    train, split = target.dataset.train, make_partition(target.job, target.dataset)
    x, y = train.x.copy(), train.y.copy()
    cohorts, owners = Cohorts(target.job), np.full(len(phrases.rows), -1)
    drawn = {c for round in range(1, target.job.rounds + 1) for c in cohorts.draw(round)}
    clients = sorted(
        entropy.stream("clients").permutation(split.clients), key=lambda c: c not in drawn
    )
    for place in np.argsort(-phrases.copies, kind="stable"):
        row, copies = phrases.rows[place], int(phrases.copies[place])
        if not copies:
            continue
        client = next((c for c in clients if len(split.of(int(c))) >= copies), None)
        if client is None:
            raise AttackImpossible(
                f"the extraction attack needs {int((phrases.copies > 0).sum())} clients, half of "
                f"them with {max(COPIES)} examples: use more clients"
            )
        clients.remove(client)
        owners[place] = client
        places = split.of(int(client))[:copies]
        x[places], y[places] = 0, IGNORED
        x[places, : len(row) - 1], y[places, : len(row) - 1] = row[:-1], row[1:]
    return replace(target.dataset, train=Examples(x, y, train.usable)), owners


def exposures(model: nn.Module, phrases: Phrases, candidates: int, entropy: Entropy) -> Float64s:
    """Return each phrase's exposure in bits: log2(candidates + 1) - log2(rank of its secret).

    The secret and `candidates` random ones are ranked by the model's loss, the smallest first.
    """
    found = []
    for i, phrase in enumerate(phrases.rows):
        generator = entropy.stream("candidates", i).generator()
        rows = np.tile(phrase, (candidates + 1, 1))
        shape = (candidates, SECRET)
        rows[1:, BEGINNING:] = phrases.tokens[generator.integers(0, len(phrases.tokens), shape)]
        losses = secret_losses(model, rows)
        rank = int((losses[1:] <= losses[0]).sum()) + 1
        found.append(math.log2(candidates + 1) - math.log2(rank))
    return np.array(found)


@torch.no_grad()
def secret_losses(model: nn.Module, rows: Int64s) -> Float64s:
    """Return, for each row of tokens, the sum of the model's losses on the tokens of the secret.

    Raises `AttackImpossible` if a loss is not finite.
    """
    model.eval()
    size = min(_AT_ONCE, getattr(model, "scored_at_once", _AT_ONCE))
    parts: list[Array] = []
    for start in range(0, len(rows), size):
        part = torch.from_numpy(rows[start : start + size])
        logs = torch.log_softmax(model(part[:, :-1]).double(), dim=2)
        own = logs.gather(2, part[:, 1:, None])[:, BEGINNING - 1 :, 0]
        parts.append(-own.sum(1).numpy())
    losses = np.concatenate(parts)
    if not np.isfinite(losses).all():
        raise AttackImpossible("the model gives no finite answers: there is nothing to attack")
    return losses


@torch.no_grad()
def extracted(model: nn.Module, phrase: Int64s) -> bool:
    """Return True if the model continues the phrase's beginning with exactly its secret."""
    model.eval()
    for end in range(BEGINNING, len(phrase)):
        following = int(model(torch.from_numpy(phrase[None, :end]))[0, -1].argmax())
        if following != phrase[end]:
            return False
    return True


def _figures(model: nn.Module, phrases: Phrases, bits: Float64s) -> Iterator[Measured]:
    never = bits[phrases.copies == 0]
    yield median("exposure of phrases that nobody had", never)
    for copies in COPIES:
        of = f"{copies} {'copies' if copies > 1 else 'copy'}"
        having = np.flatnonzero(phrases.copies == copies)
        yield median(f"exposure after {of}", bits[having], guess=1.0)
        hits = sum(extracted(model, phrases.rows[i]) for i in having)
        guess = float(len(phrases.tokens)) ** -SECRET
        yield share(f"extracted after {of}", hits, len(having), guess=guess)
        yield area(f"phrases after {of} AUC", bits[having], never)
        yield balanced_accuracy(
            f"phrases after {of} balanced accuracy", bits[having], never, _SUSPICIOUS
        )
