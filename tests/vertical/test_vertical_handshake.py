"""The parties' agreements and refusals, without a link between them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.base.message import Message
from fedveil.base.untrusted import MOST_JOB_BYTES
from fedveil.errors import DataInvalid, ExchangeError, RightMissing, Unfit
from fedveil.link.channel import Exchange, Receive, Send, drive_together
from fedveil.vertical.remote import alignment, handshake
from fedveil.vertical.remote.handshake_state import Agreement, Standing
from vertical_parts import Bottoms

RUN = bytes(range(16))
JOB: dict[str, Any] = {"batch_size": 32, "privacy": {"embedding_dp": {"eps": 5.0}}, "parts": {}}
PARTS = handshake.described(Bottoms().split_model())


def standing(party: str, train: Any = range(4), **changes: Any) -> Standing:
    ids = {"train": np.array(train), "test": np.arange(2)}
    leads = {"run": RUN} if party == "lead" else {}
    base = Standing(party=party, job=JOB, parts=PARTS, ids=ids, **leads)
    return replace(base, **changes)


def agree(*standings: Standing, purpose: str = "train") -> dict[str, Agreement]:
    lead, *others = standings
    followers = tuple(other.party for other in others)
    exchanges = {
        "lead": handshake.lead(lead, followers, attempt=1, purpose=purpose, order_seed=11),
        **{other.party: handshake.follow(other, "lead") for other in others},
    }
    return drive_together(exchanges, encoded=True)


def left_out(agreement: Agreement) -> list[str]:
    """Return the notes about examples that are not used, without those about guesses."""
    return [note for note in agreement.notes if "ids in all" not in note]


def test_all_take_over_the_leaders_run_and_order() -> None:
    agreed = agree(standing("lead"), standing("bank"), standing("shop"))
    for agreement in agreed.values():
        assert (agreement.run, agreement.purpose) == (RUN, "train")
        assert (agreement.order_seed, agreement.step, left_out(agreement)) == (11, 0, [])
        assert agreement.examples.positions["train"].flags.writeable


def test_they_go_on_from_the_last_step_that_all_hold() -> None:
    agreed = agree(
        standing("lead", steps=(0, 100, 200)),
        standing("bank", steps=(0, 100, 200), run=RUN),
        standing("shop", steps=(0, 100), run=RUN),
    )
    assert {agreement.step for agreement in agreed.values()} == {100}
    behind = "no saved step in common; the last ones are lead 1,200, bank 100. Restore the newest"
    with pytest.raises(ExchangeError, match=behind):
        agree(standing("lead", steps=(1100, 1200)), standing("bank", steps=(100,), run=RUN))


@given(
    st.lists(st.integers(-50, 50), unique=True, min_size=1),
    st.lists(st.integers(-50, 50), unique=True, min_size=1),
    st.lists(st.integers(-50, 50), unique=True, min_size=1),
    st.sampled_from(["intersection", "digests"]),
)
def test_the_leaders_order_rules_and_what_somebody_lacks_is_left_out_of_all(
    mine: list[int], banks: list[int], shops: list[int], by: str
) -> None:
    common = [i for i in mine if i in banks and i in shops]
    held = {"lead": mine, "bank": banks, "shop": shops}
    parties = [standing(name, ids, align_by=by) for name, ids in held.items()]
    if not common:
        with pytest.raises(ExchangeError, match="no example is common to all"):
            agree(*parties)
        return
    agreed = agree(*parties)
    for name, own in (("lead", mine), ("bank", banks), ("shop", shops)):
        assert [own[i] for i in agreed[name].examples.positions["train"]] == common
    expected = sum(set(own) != set(mine) for own in (banks, shops))
    assert len(agreed["lead"].notes) == expected
    assert bool(left_out(agreed["bank"])) == (len(common) < len(banks))


def test_a_follower_is_sent_its_own_rows_and_nothing_of_the_others() -> None:
    held = {"lead": [4, 1, 2], "bank": [9, 2, 1], "shop": [1, 2, 7]}
    parties = [standing(name, ids, align_by="digests") for name, ids in held.items()]
    sent = {}

    def noted(exchange: Exchange[Agreement]) -> Exchange[Agreement]:
        answer = None
        while True:
            try:
                request = exchange.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(request, Send) and request.message["kind"] == "agreed":
                sent[request.peer] = dict(request.message)
            answer = yield request

    lead, *others = parties
    exchanges = {o.party: handshake.follow(o, "lead") for o in others}
    leading = handshake.lead(lead, (*exchanges,), attempt=1, purpose="train", order_seed=11)
    drive_together({"lead": noted(leading), **exchanges})
    for party, rows in (("bank", [2, 1]), ("shop", [0, 1])):
        keys = {"kind", "step", "examples", "rows_train", "rows_test"}
        assert sent[party].keys() == keys
        assert sent[party]["rows_train"].tolist() == rows


@pytest.mark.parametrize("by", ["intersection", "digests"])
def test_what_is_missing_is_reported_to_both(by: str) -> None:
    ids = {"train": np.array([3, 1, 99, 7]), "test": np.array([0, 8, 1, 5, 6])}
    lead, bank = standing("lead", range(10), align_by=by), standing("bank", ids=ids)
    agreed = agree(lead, replace(bank, align_by=by))
    assert agreed["lead"].notes == (
        "train: bank lacks 7 of the 10 examples of lead and has 1 other; only the 3 that all "
        "parties have are used",
        "test: bank lacks 0 of the 2 examples of lead and has 3 others; only the 2 that all "
        "parties have are used",
    )
    assert left_out(agreed["bank"]) == [
        "train: only the 3 of 4 examples that all parties have are used",
        "test: only the 2 of 5 examples that all parties have are used",
    ]


@pytest.mark.parametrize("by", ["intersection", "digests"])
def test_what_each_of_two_followers_lacks_is_its_own(by: str) -> None:
    held = {"lead": range(10), "bank": [*range(8), 99], "shop": [*range(4, 10), 77, 88]}
    agreed = agree(*(standing(name, ids, align_by=by) for name, ids in held.items()))
    assert agreed["lead"].notes == tuple(
        f"train: {name} lacks {lacks} of the 10 examples of lead and has {others}; only "
        "the 4 that all parties have are used"
        for name, lacks, others in (("bank", 2, "1 other"), ("shop", 4, "2 others"))
    )


def test_a_leader_without_ids_takes_those_of_one_follower_and_not_of_two() -> None:
    found, notes = alignment.align_found({}, {"lead": 0, "bank": 3, "shop": 0}, "lead", "train")
    assert (found["bank"].tolist(), notes) == ([0, 1, 2], [])
    with pytest.raises(DataInvalid, match="lead has no train ids, so it can align bank, shop only"):
        alignment.align_found({}, {"lead": 0, "bank": 3, "shop": 3}, "lead", "train")


def test_a_leader_without_ids_refuses_two_followers_in_one_sentence() -> None:
    none = {"train": np.empty(0, np.int64), "test": np.arange(2)}
    with pytest.raises(
        ExchangeError, match=r"^lead has no train ids, so it can align bank, shop o"
    ):
        agree(replace(standing("lead"), ids=none), standing("bank"), standing("shop"))


def test_texts_are_ids_too_and_never_equal_a_number() -> None:
    names = np.array(["ana", "bo", "ça"])
    agreed = agree(standing("lead", names), standing("bank", names[::-1]))
    assert agreed["bank"].examples.positions["train"].tolist() == [2, 1, 0]
    with pytest.raises(ExchangeError, match="no example is common to all"):
        agree(standing("lead", ["1", "2", "3", "4"]), standing("bank", [1, 2, 3, 4]))


@pytest.mark.parametrize("by", ["intersection", "digests"])
def test_a_party_without_data_takes_the_order_of_the_other(by: str) -> None:
    none = np.empty(0, np.int64)
    for mine, theirs in (([5, 3, 9], none), (none, [5, 3, 9])):
        bank = standing("bank", theirs, align_by=by, least_common=0)
        agreed = agree(standing("lead", mine, align_by=by), bank)
        for agreement in agreed.values():
            assert agreement.examples.positions["train"].tolist() == [0, 1, 2]
            assert left_out(agreement) == []


def beginning(by: str, attempt: int) -> Message:
    own = standing("lead", align_by=by)
    exchange = handshake.lead(own, ("bank",), attempt=attempt, purpose="train", order_seed=0)
    sent = next(exchange)
    assert isinstance(sent, Send)
    return sent.message


def test_ids_travel_as_digests_under_a_key_of_the_attempt() -> None:
    for ids in (np.array([1, 2, 300]), np.array(["1", "2", "300"])):
        one, other = (alignment.digests(ids, bytes([k]) * 32) for k in (1, 2))
        assert not set(map(bytes, one)) & set(map(bytes, other))
    assert len({bytes(beginning("digests", n)["key"]) for n in (1, 2)}) == 2  # type: ignore[arg-type]


def test_no_key_is_sent_where_ids_are_blinded() -> None:
    assert "key" not in beginning("intersection", 1)


def test_a_leader_has_kept_the_run_before_a_follower_can() -> None:
    kept: list[str] = []
    own, heard = standing("lead"), []

    def noted(exchange: Any) -> Any:
        answer = None
        while True:
            try:
                request = exchange.send(answer)
            except StopIteration as end:
                return end.value
            if isinstance(request, Send):
                heard.append((request.message["kind"], list(kept)))
            answer = yield request

    leading = handshake.lead(
        own, ("bank",), attempt=1, purpose="train", order_seed=0,
        keep_run=lambda: kept.append("run"),
    )  # fmt: skip
    follower = handshake.follow(standing("bank"), "lead")
    drive_together({"lead": noted(leading), "bank": follower})
    assert heard[0] == ("begin", []), "a leader that is refused by all writes nothing"
    assert heard[-1] == ("agreed", ["run"])


def changed_parts(**changes: Any) -> dict[str, Any]:
    return {**PARTS, "left": {**PARTS["left"], **changes}}


@pytest.mark.parametrize(
    ("bank", "sentence"),
    [
        (
            standing("bank", job={**JOB, "batch_size": 64}),
            "the job of bank differs: batch_size = 64, but lead has 32",
        ),
        (
            standing("bank", job={**JOB, "privacy": {"embedding_dp": None}}),
            "the job of bank differs: privacy.embedding_dp = null, but lead has "
            "{'eps': 5.0}",
        ),
        (
            standing("bank", job={**JOB, "more": 1}),
            "the job of bank differs: more = 1, but lead has nothing",
        ),
        (
            standing("bank", parts=changed_parts(output=[16])),
            "the model of bank differs: left.output = [16], but lead has [8]",
        ),
        (
            standing("bank", parts={**PARTS, "order": ["right", "left", "top"]}),
            "the model of bank differs: order = ['right', 'left', 'top'], but lead has "
            "['left', 'right', 'top']",
        ),
        (
            standing("bank", run=b"another run of it"[:16]),
            "bank resumes another run than lead: start all parties with --resume and the "
            "folders of one run, or all without",
        ),
    ],
)  # fmt: skip
def test_a_follower_that_does_not_fit_is_refused_in_one_sentence(
    bank: Standing, sentence: str
) -> None:
    with pytest.raises(Unfit) as error:
        agree(standing("lead"), bank)
    assert str(error.value) == sentence
    assert error.value.follower == "bank"


def test_a_follower_with_nothing_of_a_run_that_is_under_way() -> None:
    with pytest.raises(Unfit, match="bank does not have this run, which is at step 200"):
        agree(standing("lead", steps=(0, 200)), standing("bank"))
    with pytest.raises(Unfit, match="bank does not have this run"):
        agree(standing("lead"), standing("bank"), purpose="evaluate")


def begun(**changes: Any) -> dict[str, Any]:
    """Return lead's begin message."""
    return {
        "kind": "begin", "attempt": 1, "run": RUN, "purpose": "train", "order_seed": 0,
        "align_by": "digests", "key": bytes(32), "examples": b"", "ids_train": 4, "ids_test": 2,
        **changes,
    }  # fmt: skip


def applications(**changes: Any) -> dict[str, Any]:
    """Return bank's application."""
    exchange = handshake.follow(standing("bank", align_by="digests"), "lead")
    assert isinstance(next(exchange), Receive)
    said = exchange.send(begun())
    assert isinstance(said, Send)
    return {**said.message, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"job": 3},
        {"job": "{"},
        {"job": "[" * 100_000},
        {"parts": '{"top":' * 100_000},
        {"job": "[" + " " * MOST_JOB_BYTES + "]"},
        {"parts": "[" + " " * MOST_JOB_BYTES + "]"},
        {"steps": np.array([0.5])},
        {"steps": np.arange((1 << 20) + 1)},
        {"run": "text"},
        {"digests_train": np.zeros((4, 5), np.uint8)},
        {"digests_train": np.zeros((3, 16), np.uint8)},
        {"digests_train": np.zeros((4, 16), np.uint8)},
        {"digests_test": b"bytes"},
        {"ids_train": -1},
        {"examples": None},
    ],
)
def test_a_malformed_application_is_refused(changes: dict[str, Any]) -> None:
    lead = standing("lead", align_by="digests")
    exchange = handshake.lead(lead, ("bank",), attempt=1, purpose="train", order_seed=0)
    next(exchange)
    next(exchange)
    with pytest.raises(Unfit, match=r"bank (sent an invalid application|has a train id)"):
        exchange.send(applications(**changes))


@pytest.mark.parametrize("count", [-1, 1 << 50])
def test_a_number_of_ids_that_no_message_can_number_is_refused(count: int) -> None:
    """A leader without ids of its own would number them all."""
    ids = {"train": np.arange(0), "test": np.arange(0)}
    lead = standing("lead", ids=ids, most_ids=sys.maxsize)
    exchange = handshake.lead(lead, ("bank",), attempt=1, purpose="train", order_seed=0)
    next(exchange)
    next(exchange)
    with pytest.raises(Unfit, match=r"its number of ids is outside \[0, 268,427,264\]"):
        exchange.send(applications(ids_train=count))


def test_what_was_on_its_way_from_an_earlier_attempt_is_passed_over() -> None:
    lead = standing("lead", align_by="digests")
    exchange = handshake.lead(lead, ("bank",), attempt=2, purpose="train", order_seed=0)
    assert isinstance(next(exchange), Send)
    next(exchange)
    arrays = ({"kind": np.arange(2)}, applications(attempt=np.array([2, 2])))
    for stale in ({"kind": "tensor", "name": "left"}, applications(attempt=1), {}, *arrays):
        assert isinstance(exchange.send(stale), Receive)
    with pytest.raises(ExchangeError, match="no example"):  # the digests are under another key
        exchange.send(applications(attempt=2))


@pytest.mark.parametrize(
    ("attempt", "message", "why"),
    [
        (1, {"kind": "tensor", "name": "left"}, "'tensor' where 'apply' for attempt 1 was due"),
        (1, {"kind": np.arange(2)}, r"with the shape \(2,\) where 'apply' for attempt 1 was due"),
        (3, {"kind": "apply", "attempt": 4}, "'apply' for attempt 4 where 'apply' for attempt 3"),
        (3, {"kind": "raised", "attempt": 3}, "'raised' for attempt 3 where 'apply' for attempt 3"),
    ],
)
def test_a_follower_that_sends_what_no_attempt_can_have_left_is_refused(
    attempt: int, message: Message, why: str
) -> None:
    lead = standing("lead", align_by="digests")
    exchange = handshake.lead(lead, ("bank",), attempt=attempt, purpose="train", order_seed=0)
    assert isinstance(next(exchange), Send)
    next(exchange)
    with pytest.raises(Unfit, match=f"^bank sent .*{why}") as unfit:
        exchange.send(message)
    assert unfit.value.follower == "bank"


GOOD = {
    "kind": "agreed", "step": 0, "examples": bytes(16), "rows_train": np.arange(4),
    "rows_test": np.arange(2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("agreed", "why"),
    [
        ({**GOOD, "step": 5}, "step 5, which bank has not saved"),
        (
            {**GOOD, "rows_train": np.array([0, 0])},
            "train rows are not distinct positions among the 4",
        ),
        (
            {**GOOD, "rows_train": np.array([4])},
            "train rows are not distinct positions among the 4",
        ),
        ({**GOOD, "rows_test": np.array([-1])}, "test rows are not distinct positions among the 2"),
        ({**GOOD, "rows_test": np.array([0.0])}, "not an array of positions"),
        ({**GOOD, "rows_test": np.empty(0, np.int64)}, "not an array of positions"),
        ({"kind": "tensor"}, "'tensor' where 'agreed' or 'begin' was due"),
        ({"kind": "agreed"}, "step is missing"),
        ({**GOOD, "examples": b"short"}, "a name of 5 bytes"),
        ({**GOOD, "kind": "blinded"}, "'blinded' where 'agreed' or 'begin' was due"),
    ],
)
def test_a_follower_believes_nothing_that_it_can_check(agreed: dict[str, Any], why: str) -> None:
    exchange = handshake.follow(standing("bank", align_by="digests"), "lead")
    next(exchange)
    exchange.send(begun())
    next(exchange)
    with pytest.raises(ExchangeError, match=why):
        exchange.send(agreed)


@pytest.mark.parametrize(
    ("begin", "why"),
    [
        (begun(align_by="digests"), "aligns by 'digests', but this job by 'intersection'"),
        (begun(align_by="intersection", ids_test=-1), "its number of ids is outside"),
        (
            begun(align_by="intersection", ids_train=11),
            "it brings 13 ids, and would learn of each whether bank has it, but "
            "alignment.most_ids = 10",
        ),
    ],
)
def test_a_follower_keeps_to_its_own_job(begin: dict[str, Any], why: str) -> None:
    exchange = handshake.follow(standing("bank", most_ids=10), "lead")
    next(exchange)
    with pytest.raises(ExchangeError, match=why):
        exchange.send(begin)


def test_a_follower_takes_whole_keys_and_whole_names_of_runs_alone() -> None:
    """It saves the run's name, and refuses to resume a run with another one."""

    def answered(**changes: Any) -> None:
        exchange = handshake.follow(standing("bank", align_by="digests"), "lead")
        next(exchange)
        exchange.send(begun(**changes))
        next(exchange)
        exchange.send(GOOD)

    with pytest.raises(ExchangeError, match=r"^lead broke the handshake: its key has 5 bytes"):
        answered(key=b"short")
    with pytest.raises(ExchangeError, match=r"^lead broke the handshake: its run has a name of 15"):
        answered(run=RUN[:-1])


def test_a_follower_tells_nothing_to_a_leader_without_the_right_to_its_purpose() -> None:
    def check(purpose: str) -> None:
        raise RightMissing(f"lead may not {purpose}", "its roles do not let lead")

    for by in ("digests", "intersection"):
        exchange = handshake.follow(standing("bank", align_by=by, check=check), "lead")
        assert isinstance(next(exchange), Receive)
        with pytest.raises(RightMissing, match="lead may not evaluate"):
            exchange.send(begun(align_by=by, purpose="evaluate"))


def test_a_leader_takes_so_many_ids_and_no_more() -> None:
    for by in ("intersection", "digests"):
        lead = standing("lead", most_ids=12, align_by=by)
        agree(lead, standing("bank", range(10), align_by=by))  # and two of the test examples
        lead = standing("lead", most_ids=12, align_by=by)
        with pytest.raises(Unfit) as error:
            agree(lead, standing("bank", range(11), align_by=by))
        assert str(error.value) == (
            "bank brings 13 ids, and would learn of each whether lead has it, but "
            "alignment.most_ids = 12"
        )


def test_a_leader_that_begins_again_with_other_guesses_is_stopped() -> None:
    """In each attempt it learns which of its ids the follower has, and agrees on nothing."""
    bank, found = standing("bank", range(100, 104), most_ids=20), []

    def guessing() -> Exchange[None]:
        for attempt in range(1, 100):
            mine = standing("lead", range(100 + 3 * attempt, 105 + 3 * attempt))
            leading = handshake.lead(
                mine, ("bank",), attempt=attempt, purpose="train", order_seed=0
            )
            answer: Message | None = None
            while True:
                try:
                    request = leading.send(answer)
                except ExchangeError:  # no guess was right
                    break
                if isinstance(request, Send) and request.message["kind"] == "agreed":
                    break
                answer = yield request
            found.append(attempt)

    with pytest.raises(ExchangeError) as error:
        drive_together({"lead": guessing(), "bank": handshake.follow(bank, "lead")}, encoded=True)
    assert "brings 21 ids, and would learn of each whether bank has it, but alignment.most_" in str(
        error
    )
    assert len(found) == 2
    lead = standing("lead", most_ids=10)
    assert agree(lead, standing("bank", range(6)))["lead"].notes
    with pytest.raises(Unfit, match=r"^bank brings 16 ids, and would learn of each whether lead"):
        agree(lead, standing("bank", range(2, 8)))


def test_a_follower_follows_the_leader_into_another_attempt() -> None:
    exchange = handshake.follow(standing("bank", align_by="digests"), "lead")
    next(exchange)
    first = exchange.send(begun())
    next(exchange)
    second = exchange.send(begun(attempt=2))
    assert isinstance(first, Send)
    assert isinstance(second, Send)
    assert (first.message["attempt"], second.message["attempt"]) == (1, 2)
    next(exchange)
    with pytest.raises(StopIteration) as end:
        exchange.send(GOOD)
    assert end.value.value.examples.positions["train"].tolist() == [0, 1, 2, 3]
