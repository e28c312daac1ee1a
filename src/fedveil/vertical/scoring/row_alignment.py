"""How parties on different machines find the common rows of their files to score.

An attempt is one run of the messages below, numbered within a session. A bundle is the trained
model's files. Its name must be the same on both sides.

The job's method is `intersection` for secret ids, or `digests` (`remote.alignment`). The messages:

    begin     leader -> followers   the attempt, the bundle's name, the leader's number of ids, the
                                    method, and under `digests` the key of the digests
    apply     follower -> leader    the attempt, the bundle's name, the follower's number of ids,
                                    and under `digests` a digest of each of its ids
    aligned   leader -> followers   which of the follower's rows are common, and under
                                    `intersection` a proof

Under `intersection`, the messages of `remote.intersection` come before `aligned`. For each file to
score, a party accepts at most `alignment.most_ids` ids from another party, because each id may be a
guess. By default this is four times its own number of ids.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedveil.base.message import (
    Message,
    Value,
    check_kind,
    only_fields,
    quoted,
    take,
    take_array,
    text_in,
)
from fedveil.entropy import Secure
from fedveil.errors import DataInvalid, ExchangeError, MessageInvalid, Unfit
from fedveil.link.channel import Exchange, Send, received
from fedveil.vertical.remote import alignment, intersection
from fedveil.vertical.rows import Positions
from fedveil.vertical.scoring.guesses import GUESSES, Guesses
from fedveil.vertical.scoring.scorer import Scorer
from fedveil.vertical.task import aligned_by

#: The set's name in the intersection, so that ids are blinded differently than in training.
SUBSET = "score"
PURPOSE = "score"


def lead(scorer: Scorer, attempt: int) -> Exchange[Positions]:
    """Run the leader's side of the alignment. Returns the positions of common rows in its file.

    `attempt` numbers the alignments of a session. Raises Unfit if a follower cannot take part.
    """
    by_digests = _by(scorer) == "digests"
    key = Secure().token(alignment.KEY_BYTES) if by_digests else b""
    begin: dict[str, Value] = {
        "kind": "begin", "attempt": attempt, "purpose": PURPOSE, "bundle": scorer.bundle.name,
        "ids": len(scorer.ids), "align_by": _by(scorer), "key": key,
    }  # fmt: skip
    for follower in scorer.followers:
        yield Send(follower, begin)
    counts: dict[str, Mapping[str, int]] = {}
    digests = {scorer.name: alignment.digests(scorer.ids, key)} if by_digests else {}
    for follower in scorer.followers:
        message = yield from alignment.application(follower, attempt)
        try:
            counts[follower] = {SUBSET: _applied(scorer, message)}
            if by_digests:
                shape = (counts[follower][SUBSET], alignment.DIGEST_BYTES)
                digests[follower] = take_array(message, "digests", "uint8", shape)
            _count_guesses(scorer, follower, counts[follower][SUBSET])
        except MessageInvalid as error:
            raise Unfit(follower, f"{follower} cannot score: {error}") from None
    proofs: dict[str, dict[str, Value]] = {follower: {} for follower in scorer.followers}
    try:
        if by_digests:
            for follower in scorer.followers:
                if alignment.holds_twice(digests[follower]):
                    raise Unfit(follower, f"{follower} has an id twice")
            positions, notes = alignment.align_digests(digests, scorer.name, SUBSET)
        else:
            found = yield from intersection.lead({SUBSET: scorer.ids}, counts, attempt)
            sizes = {scorer.name: len(scorer.ids)}
            sizes |= {follower: held[SUBSET] for follower, held in counts.items()}
            places = found.places[SUBSET]
            positions, notes = alignment.align_found(places, sizes, scorer.name, SUBSET)
            proofs = {f: found.proof(SUBSET, f, positions[f]) for f in scorer.followers}
    except DataInvalid as error:
        raise ExchangeError(str(error)) from None
    for note in notes:
        scorer.note(note)
    for follower in scorer.followers:
        said: dict[str, Value] = {"kind": "aligned", "rows": positions[follower]}
        yield Send(follower, {**said, **proofs[follower]})
    return positions[scorer.name]


def follow(scorer: Scorer, begin: Message | None = None) -> Exchange[Positions]:
    """Run a follower's side of the alignment. Returns the positions of common rows in its file.

    `begin` is the leader's first message, if it was already received.
    """
    leader = scorer.split.leader
    message = begin if begin is not None else (yield from received(leader))
    try:
        if (text_in(message, "kind"), text_in(message, "purpose")) != ("begin", PURPOSE):
            asked = quoted(message.get("purpose"))
            raise MessageInvalid(f"it asks for {asked}, not to score new rows")
        only_fields(message, "kind", "attempt", "purpose", "bundle", "ids", "align_by", "key")
        leads, attempt = _applied(scorer, message), take(message, "attempt", int)
        if (by := take(message, "align_by", str)) != _by(scorer):
            raise MessageInvalid(f"it aligns by {quoted(by)}, but this job by {_by(scorer)!r}")
        key = take(message, "key", bytes)
        fields: dict[str, Value] = {}
        _count_guesses(scorer, leader, leads)
        if by == "digests":
            if len(key) != alignment.KEY_BYTES:
                raise MessageInvalid(f"its key has {len(key)} bytes")
            fields["digests"] = alignment.digests(scorer.ids, key)
        apply: dict[str, Value] = {
            "kind": "apply", "attempt": attempt, "bundle": scorer.bundle.name,
            "ids": len(scorer.ids),
        }  # fmt: skip
        yield Send(leader, {**apply, **fields})
        message = yield from received(leader)
        if by == "digests":
            return _rows(scorer, message, None)
        message, exchanged = yield from intersection.follow(
            {SUBSET: scorer.ids}, {SUBSET: leads}, leader, attempt, message
        )
        if SUBSET not in exchanged:
            raise MessageInvalid("it ended the alignment before all ids were exchanged")
        return _rows(scorer, message, exchanged[SUBSET])
    except MessageInvalid as error:
        raise ExchangeError(f"{leader} broke the alignment: {error}") from None


def _rows(scorer: Scorer, message: Message, exchanged: intersection.Exchanged | None) -> Positions:
    check_kind(message, "aligned")
    rows: Positions = take_array(message, "rows", np.int64, (None,))
    held = len(scorer.ids)
    if not len(rows) or rows.min() < 0 or rows.max() >= held or len(np.unique(rows)) < len(rows):
        raise MessageInvalid(f"its rows are not distinct positions among the {held:,} here")
    if exchanged is None:
        return rows.copy()
    exchanged.check(SUBSET, rows, message)
    return exchanged.order[rows]


def _applied(scorer: Scorer, message: Message) -> int:
    if take(message, "bundle", bytes) != scorer.bundle.name:
        raise MessageInvalid(f"its bundle is of another model than that of {scorer.name}")
    count: int = take(message, "ids", int)
    if count < 1:
        raise MessageInvalid("it has no ids")
    return count


def _count_guesses(scorer: Scorer, party: str, many: int) -> None:
    """Add `many` to the saved number of ids that `party` has sent for the file of `scorer`.

    The file has the rows that `scorer` scores. Each id that another party sends may be a guess at
    an id in it. Raises MessageInvalid, and counts nothing, if the number would then be above
    `scorer.most_ids`.
    """
    guesses = Guesses(scorer.state, GUESSES, scorer.ids)
    if (total := guesses.of(party) + many) > scorer.most_ids:
        raise MessageInvalid(
            f"it brings {total:,} ids in all for the {len(scorer.ids):,} rows of this file, "
            f"and would learn of each whether {scorer.name} has it, but its limit is "
            f"{scorer.most_ids:,} (--most-ids)"
        )
    guesses.add(party, many)


def _by(scorer: Scorer) -> str:
    return aligned_by(scorer.job.alignment.by, scorer.task)
