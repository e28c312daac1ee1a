"""The end of a training session: all parties agree on the model bundle, and sign it.

    contents     follower -> leader    the SHA-256 of the list of the follower's files of the bundle
                                       (contents.json, see `bundle`)
    manifest     leader -> followers   the manifest: the run, the step and every party's SHA-256
    signature    follower -> leader    the follower's certificate and its signature of the manifest,
                                       both empty without TLS
    signatures   leader -> followers   the certificates and signatures of all parties

A follower signs only a manifest with its own job, run, step and SHA-256.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedveil.base.message import Message, Value, check_kind, only_fields, take, text_in
from fedveil.errors import BundleInvalid, ExchangeError, MessageInvalid
from fedveil.link.channel import Exchange, Send, received
from fedveil.link.tls import Credentials
from fedveil.rounds.outcomes import short
from fedveil.vertical import bundle
from fedveil.vertical.bundle import Manifest, manifest_of
from fedveil.vertical.party_run import PartyRun
from fedveil.vertical.signatures import Signatures, Signed, check_signed, sign

_DIGEST_BYTES = 32
#: The kinds of messages of a step.
_OF_STEP = ("tensor", "ready", "commit", "abort")


def agree(run: PartyRun, identity: bytes, own: Credentials | None) -> Exchange[None]:
    """Agree with the other parties on the bundle's manifest, and write it to the bundle, signed.

    The bundle is the folder in which this party's trained model is saved for scoring. The manifest
    names the run and the step, and has the SHA-256 of every party's list of bundle files.
    `identity` identifies the run. `own` has the key that signs, or is None without TLS. Raises
    ExchangeError if a message or a signature of another party is invalid.
    """
    split = run.setting.split
    others = split.followers if run.name == split.leader else (split.leader,)
    side = _lead(run, identity, own) if run.name == split.leader else _follow(run, identity, own)
    try:
        manifest, signatures = yield from side
        signatures.check(manifest.written(), split.parties, own)
    except (MessageInvalid, BundleInvalid) as error:
        raise ExchangeError(f"{_named(others)} broke the bundle's agreement: {error}") from None
    folder = run.setting.folder.within(bundle.BUNDLE)
    bundle.write_manifest(folder, manifest, signatures)
    signed = "signed by all parties" if signatures.by_party else "not signed: there is no TLS"
    run.log.event(f"the model bundle is complete, {signed}")


def last_message(peer: str, run: PartyRun) -> Exchange[Message]:
    """Receive and return the next message of `peer` after the last step of `run`.

    If a privacy limit has ended the run, messages that `peer` has still sent for steps are skipped.
    Raises ExchangeError if there are more of them than an honest peer can have sent.
    """
    message, skipped = (yield from received(peer)), 0
    while run.stopped is not None and text_in(message, "kind") in _OF_STEP:
        skipped += 1
        if skipped > run.most_ahead:
            raise ExchangeError(
                f"{peer} sent {skipped:,} messages of steps after a privacy limit had ended the "
                f"run. It could be ahead by {run.most_ahead:,} at most"
            )
        message = yield from received(peer)
    return message


def _lead(
    run: PartyRun, identity: bytes, own: Credentials | None
) -> Exchange[tuple[Manifest, Signatures]]:
    assert run.contents is not None, "the run has ended"
    split, contents = run.setting.split, {run.name: run.contents}
    for follower in split.followers:
        message = yield from _due(run, follower, "contents", "sha256")
        contents[follower] = _digest(message, "sha256")
    manifest = manifest_of(run.setting.job, run.name, identity.hex(), run.done, contents)
    for follower in split.followers:
        yield Send(follower, {"kind": "manifest", "manifest": manifest.written()})
    signed = {} if own is None else {run.name: sign(own, manifest.written())}
    for follower in split.followers:
        message = yield from _due(run, follower, "signature", "chain", "signature")
        found = Signed(take(message, "chain", bytes), take(message, "signature", bytes))
        if own is not None:
            check_signed(follower, found, manifest.written(), own)
            signed[follower] = found
    signatures = Signatures(signed)
    for follower in split.followers:
        yield Send(follower, {"kind": "signatures", "signatures": signatures.written()})
    return manifest, signatures


def _follow(
    run: PartyRun, identity: bytes, own: Credentials | None
) -> Exchange[tuple[Manifest, Signatures]]:
    assert run.contents is not None, "the run has ended"
    split, leader = run.setting.split, run.setting.split.leader
    yield Send(leader, {"kind": "contents", "sha256": run.contents})
    message = yield from _due(run, leader, "manifest", "manifest")
    data = take(message, "manifest", bytes)
    manifest = _expected(run, identity, data)
    signed = Signed(b"", b"") if own is None else sign(own, data)
    answer: dict[str, Value] = {"chain": signed.chain, "signature": signed.signature}
    yield Send(leader, {"kind": "signature", **answer})
    message = yield from _due(run, leader, "signatures", "signatures")
    raw = take(message, "signatures", bytes)
    if len(raw) > bundle.MOST_SIGNATURES_BYTES:
        raise MessageInvalid(f"its signatures have {len(raw):,} bytes")
    signatures = Signatures.parsed(raw, f"the message of {leader}")
    if own is not None and signatures.by_party.get(run.name) != signed:
        raise MessageInvalid(f"it changed the signature of {run.name}")
    assert set(manifest.contents) == set(split.parties), "_expected has checked it"
    return manifest, signatures


def _expected(run: PartyRun, identity: bytes, data: bytes) -> Manifest:
    """Decode the leader's manifest from `data`. `identity` identifies the run.

    Raises MessageInvalid if this party must not sign the manifest.
    """
    if len(data) > bundle.MOST_SIGNATURES_BYTES:
        raise MessageInvalid(f"its manifest has {len(data):,} bytes")
    told = bundle.parsed_manifest(data)
    split = run.setting.split
    if set(told.contents) != set(split.parties):
        named = short(_named(list(told.contents)))
        raise MessageInvalid(f"its manifest names {named} as the parties")
    contents = {party: bytes.fromhex(value) for party, value in told.contents.items()}
    if contents[run.name] != run.contents:
        raise MessageInvalid(f"its manifest has another bundle of {run.name}")
    mine = manifest_of(run.setting.job, split.leader, identity.hex(), run.done, contents)
    if mine.written() != data:
        raise MessageInvalid("its manifest is of another job, run or step")
    return told


def _due(run: PartyRun, peer: str, kind: str, *fields: str) -> Exchange[Message]:
    message = yield from last_message(peer, run)
    check_kind(message, kind, peer)
    only_fields(message, "kind", *fields)
    return message


def _digest(message: Message, name: str) -> bytes:
    found: bytes = take(message, name, bytes)
    if len(found) != _DIGEST_BYTES:
        raise MessageInvalid(f"its {name} has {len(found)} bytes")
    return found


def _named(parties: Sequence[str]) -> str:
    return " and ".join(parties)
