"""Sums in several messages, for a framework whose server sends tasks: four sites, one server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("flwr")

from fedveil.base.message import Message, decode, encode
from fedveil.errors import FedveilError, InvalidValue, ModelInvalid, SiteError, SiteRefused
from fedveil.protections.base import RoundContext
from fedveil.rounds.loop import Carrier, Outcome, drive
from fedveil.rounds.outcomes import Answer, Report, Withheld
from fedveil.site.one_report import SiteReports
from fedveil.site.site_folder import POLICY, create
from fedveil.site.task_terms import Terms
from nvflare_parts import NOISE, site_in

SITES = ("north", "south", "east", "west")
SUMMED = {"clients": 4, "active_security": True}
PROTECTIONS: dict[str, dict[str, Any]] = {
    "distributed_dp": {**SUMMED, "noise_multiplier": 5.0, "clip": 8.0},
    "pw_encrypt": SUMMED,
}
ARRAYS = {"weight": np.ones((3, 5), np.float32), "bias": np.zeros(5, np.float32)}
JOB = "job-7"


class Sites(Carrier):
    """The sites of a sum, as a server reaches them. `meddle` may change a message on its way."""

    def __init__(self, folder: Path, name: str, **policy: Any) -> None:
        self.keys = {"protection": name, **PROTECTIONS[name]}
        self.folders = [folder / of for of in SITES]
        public = [create(of) for of in self.folders]
        self.roster = {n: bytes.fromhex(key) for n, key in enumerate(public)}
        lines = "".join(f'client-{n}: "{key}"\n' for n, key in enumerate(public))
        for n, of in enumerate(self.folders):
            (of / "roster.yaml").write_text(lines)
            server = {"client": n, "roster": "roster.yaml"}
            said = {
                "clear": {"answer_after_s": None}, "data": {"heart": {"named": "digits"}},
                "servers": {"study": server}, "jobs": {"digests": ["ab" * 32]}, **policy,
            }  # fmt: skip
            (of / POLICY).write_text(yaml.safe_dump(said))
        self.reports = [self.opened(n) for n in range(len(SITES))]
        self.asked: list[tuple[str, int, bytes]] = []
        self.meddle: Callable[[str, int, Message], Message] = lambda phase, client, words: words
        self.round = 1

    def opened(self, client: int) -> SiteReports:
        return SiteReports(self.folders[client], "heart", self.keys, "NVFlare")

    def ask(self, phase: str, messages: Mapping[int, Message]) -> Iterator[Answer]:
        for client, words in messages.items():
            said = encode(self.meddle(phase, client, words))
            self.asked.append((phase, client, said))
            try:
                yield Report(client, self.told(phase, client, said))
            except FedveilError as error:
                yield Withheld(client, str(error))

    def told(self, phase: str, client: int, said: bytes, job: str = JOB) -> bytes:
        of, task = self.reports[client], {"job": job, "site": SITES[client], "round": self.round}
        if phase != "masked":
            return of.answer(said, 20, **task)
        admitted = of.admit(ARRAYS, task="train", words=said, **task)
        change = {name: array + 0.5 * (client + 1) for name, array in ARRAYS.items()}
        return admitted.report(lambda: (change, False)).encoded()

    def play(self, round: int = 1) -> tuple[Outcome, Any]:
        """Play a round. Returns its outcome and its mean update, or None."""
        self.round = round
        terms = Terms.read(self.keys)
        layout = terms.layout(ARRAYS)
        protection = terms.protection(20, terms.job(JOB, 20), self.roster)
        context = RoundContext(range(4), round, layout.vector(ARRAYS), protection.initial_state())
        server = protection.server_round(context)
        opening = dict.fromkeys(range(4), server.opening())
        outcome = drive(server, self, opening, protection.trains)
        return outcome, outcome.result(server.aggregate)

    def charges(self, client: int = 0) -> int:
        return len(self.reports[client]._site.account("heart").charges)


@pytest.mark.parametrize("name", PROTECTIONS)
def test_four_sites_send_one_sum(tmp_path: Path, name: str) -> None:
    sites = Sites(tmp_path, name)
    for round in (1, 2):
        outcome, aggregate = sites.play(round)
        assert outcome.withheld == {}
        assert aggregate.reports == 4
        error = np.abs(aggregate.update - 1.25)
        assert error.max() < 1e-3 if name == "pw_encrypt" else 3 < error.mean() < 60
    (one, _) = sites.reports[2]._site.account("heart").charges
    spent = sites.reports[2]._site.account("heart").spent(unit="client")
    assert (one.mechanism, one.unit) == (name, "client")
    assert spent.without_epsilon == (0 if name == "distributed_dp" else 2)
    sites.round = 1
    phase, client, words = sites.asked[0]
    with pytest.raises(FedveilError, match="already sent its update"):  # no server restarts a round
        sites.told(phase, client, words)


def test_the_time_of_an_answer_is_no_term_of_a_sum() -> None:
    keys = {"protection": "pw_encrypt", **SUMMED}
    one, other = (Terms.read({**keys, **more}) for more in ({}, {"answer_after_s": 9.0}))
    assert one.job(JOB, 20) == other.job(JOB, 20)
    third, fourth = (Terms.read({**keys, **more}) for more in ({"clip": 3.0}, {"clients": 5}))
    jobs = {one.job(JOB, 20), one.job(JOB, 21), one.job("job-8", 20), third.job(JOB, 20)}
    assert len({*jobs, fourth.job(JOB, 20)}) == 5


def test_a_server_that_lies_gets_no_second_report(tmp_path: Path) -> None:
    """Each deed is played at one site. It sends nothing that the protocol does not."""
    sites = Sites(tmp_path, "distributed_dp")
    sites.play()
    said = {(phase, client): words for phase, client, words in sites.asked}
    before = sites.charges()
    deeds: list[Callable[[], object]] = [
        lambda: sites.told("masked", 0, said["masked", 0]),  # again
        lambda: sites.told("unmask", 0, said["unmask", 0]),
        lambda: sites.told("masked", 0, said["masked", 0], job="other"),
        lambda: sites.told("share", 0, said["share", 0]),
        lambda: sites.told("masked", 0, b""),
        lambda: sites.told("advertise", 0, b"\x80\x04pickle"),
        lambda: sites.reports[0].admit(ARRAYS, job=JOB, task="train", site="north", round=2),
        lambda: sites.reports[0].answer(said["advertise", 0], True, job=JOB, site="n", round=2),
        lambda: sites.reports[0].answer(said["advertise", 0], 0, job=JOB, site="n", round=2),
        lambda: sites.reports[0].answer(said["advertise", 0], 20, job=JOB, site="n", round="2"),
    ]
    for number, deed in enumerate(deeds):
        with pytest.raises((FedveilError, TypeError)):
            deed()
        assert sites.charges() == before, number


def test_a_site_has_the_seat_at_the_server_that_it_names(tmp_path: Path) -> None:
    """Without signatures, it needs no roster."""
    sites = Sites(tmp_path, "distributed_dp")
    (place,) = sites.folders[:1]
    policy = yaml.safe_load((place / POLICY).read_text())
    policy["servers"] = {"first": {"client": 0}, "second": {"client": 2}}
    policy["strength"] = {"active_security": False}
    (place / POLICY).write_text(yaml.safe_dump(policy))
    keys = {**sites.keys, "active_security": False}
    with pytest.raises(SiteError, match="name the server to serve"):
        SiteReports(place, "heart", keys, "NVFlare")
    for server, client in (("first", 0), ("second", 2)):
        seat = SiteReports(place, "heart", keys, "NVFlare", server)._seat
        assert seat is not None
        assert (seat.client, seat.roster, seat.identity) == (client, {}, None)


@pytest.mark.parametrize(("job", "round"), [("other", 1), (JOB, 2)])
def test_the_state_of_another_job_or_round_is_not_resumed(
    tmp_path: Path, job: str, round: int
) -> None:
    sites = Sites(tmp_path, "pw_encrypt")
    opening = encode({"phase": "advertise", "round": 1})
    of = sites.reports[0]
    of.answer(opening, 20, job=JOB, site="north", round=1)
    held = of._kept
    assert held is not None
    said: Message = {"phase": "share", "round": 1}
    assert of._round(JOB, 20, "north", 1, said).kept == held[2]
    of._kept = held
    assert of._round(job, 20, "north", round, said).kept is None


def test_a_round_that_is_opened_again_begins_with_new_keys(tmp_path: Path) -> None:
    """The state of the first attempt waits for another phase."""
    of = Sites(tmp_path, "pw_encrypt").reports[0]
    opening = encode({"phase": "advertise", "round": 1})
    first, again = (
        decode(of.answer(opening, 20, job=JOB, site="north", round=1)) for _ in range(2)
    )
    assert first["phase"] == again["phase"] == "advertise"
    assert not {first["mask_key"], first["cipher_key"]} & {again["mask_key"], again["cipher_key"]}
    held = of._kept
    assert held is not None
    said: Message = {"phase": "share", "round": 1}
    assert of._round(JOB, 20, "north", 1, said).kept == held[2]


class AsksWithoutATask(Sites):
    """A server that asks site 0 for its vector by a message that needs no training."""

    def told(self, phase: str, client: int, said: bytes, job: str = JOB) -> bytes:
        if (phase, client) == ("masked", 0):
            task = {"job": job, "site": SITES[0], "round": self.round}
            return self.reports[0].answer(said, 20, **task)
        return super().told(phase, client, said, job)


def test_a_vector_leaves_for_a_charged_task_alone(tmp_path: Path) -> None:
    sites = AsksWithoutATask(tmp_path, "pw_encrypt")
    outcome, aggregate = sites.play()
    assert (outcome.reported, sites.charges()) == ({1, 2, 3}, 0)
    assert aggregate.reports == 3


def test_own_keys_of_a_server_and_a_missing_site_release_nothing_of_one(tmp_path: Path) -> None:
    sites = Sites(tmp_path, "pw_encrypt")
    sites.roster = {n: bytes(32) for n in range(4)}
    outcome, aggregate = sites.play()
    assert aggregate is None
    assert (outcome.reported, sites.charges()) == (set(), 0)
    gone = Sites(tmp_path / "gone", "pw_encrypt")

    def silent(phase: str, client: int, words: Message) -> Message:
        return {} if (phase, client) in {("share", 1), ("share", 2)} else words

    gone.meddle = silent
    outcome, aggregate = gone.play()
    assert aggregate is None, "two sites are fewer than the threshold"


def test_the_policy_binds_a_sum(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"clients.*strength.survivors is 4"):
        Sites(tmp_path / "survivors", "pw_encrypt", strength={"survivors": 4})
    sound = Sites(tmp_path / "sound", "pw_encrypt")
    loose = Sites(tmp_path / "loose", "pw_encrypt", strength={"active_security": False})
    signs = [of._seat is not None and of._seat.identity is not None for of in loose.reports]
    assert all(signs)  # also if the policy does not demand it
    for change, why in (
        ({"active_security": False}, "active_security"),
        ({"share_secrets_ratio": 0.75}, "2 clients reconstruct a secret"),
        ({"clients": None}, "needs clients"),
        ({"weighting": "by_size"}, "weighting"),
    ):
        keys = {**sound.keys, **change}
        with pytest.raises((SiteError, InvalidValue), match=why):
            SiteReports(sound.folders[0], "heart", keys, "NVFlare")
    limited = Sites(tmp_path / "limited", "pw_encrypt", epsilon={"exact_sums": 1})
    assert limited.play()[1] is not None
    outcome, aggregate = limited.play(2)
    assert aggregate is None
    assert any("the site allows 1 such" in reason for reason in outcome.withheld)


def test_a_protection_is_bound_to_the_job_that_it_is_for() -> None:
    terms = Terms.read({"protection": "pw_encrypt", "clients": 3})
    digests = [terms.job(job, dimension) for job, dimension in (("a", 5), ("b", 5), ("a", 6))]
    assert len({*digests}) == 3
    context = terms.protection(6, digests[2]).context
    assert (context.job, context.dimension, context.clients_per_round) == (digests[2], 6, 3)
    statistics = {"norm.running_var": np.ones(5, np.float32)}
    assert terms.layout(statistics).dimension == 5  # the sum has no noise
    with pytest.raises(ModelInvalid, match="running_var"):
        Terms.read(NOISE).layout(statistics)


def test_signds_learns_its_step_from_the_servers_message(tmp_path: Path) -> None:
    keys = {"protection": "signds", "sign_k": 0.25, "sign_eps": 9.0, "sign_dim_out": 4}
    of = site_in(
        tmp_path / "north",
        protections=["signds"],
        epsilon={"run": 99.0, "month": 99.0, "ever": 99.0},
    )
    reports = SiteReports(of.folder, "heart", keys, "NVFlare")
    terms = Terms.read(keys)
    protection = terms.protection(20)
    context = RoundContext([7], 3, terms.layout(ARRAYS).vector(ARRAYS), protection.initial_state())
    server = protection.server_round(context)
    task: dict[str, Any] = {"job": JOB, "task": "train", "site": "north", "round": 3}
    with pytest.raises(SiteRefused, match="use ProtectedController"):
        reports.admit(ARRAYS, **task)
    admitted = reports.admit(ARRAYS, words=encode(server.opening()), **task)
    sent = admitted.report(lambda: ({n: a + 0.5 for n, a in ARRAYS.items()}, False)).encoded()
    server.receive(7, decode(sent))
    server.advance()
    assert np.count_nonzero(server.aggregate().update) == 4
    (charged,) = of.account("heart").charges
    assert charged.mechanism == "signds"


def test_a_job_of_another_configuration_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "config_fed_client.json").write_text("{}")
    of = SiteReports(site_in(tmp_path / "a").folder, "heart", NOISE, "NVFlare")
    with pytest.raises(SiteRefused, match=r"which is not in jobs\.digests") as refused:
        of.check_job(config)
    digest = next(word for word in str(refused.value).split() if len(word) == 65)[:-1]
    jobs = {"digests": [digest]}
    SiteReports(site_in(tmp_path / "b", jobs=jobs).folder, "heart", NOISE, "NVFlare").check_job(
        config
    )
    (config / ".__nvfl_sig.json").write_text("{}")  # NVFlare signs what is submitted
    SiteReports(tmp_path / "b", "heart", NOISE, "NVFlare").check_job(config)
    (config / "config_fed_client.json").write_text("{} ")
    with pytest.raises(SiteRefused):
        SiteReports(tmp_path / "b", "heart", NOISE, "NVFlare").check_job(config)
    (config / "config_fed_client.json").write_text("{}")
    (config / "__pycache__").mkdir()  # NVFlare searches all subfolders
    (config / "__pycache__" / "config_fed_client.json").write_text("{}")
    with pytest.raises(SiteRefused):
        SiteReports(tmp_path / "b", "heart", NOISE, "NVFlare").check_job(config)
    ada = {"people": {"ada": "ab" * 32}, "starters": ["ada"], "jobs": jobs}
    started = SiteReports(site_in(tmp_path / "c", **ada).folder, "heart", NOISE, "NVFlare")
    with pytest.raises(SiteRefused, match="no one in people can sign a job"):
        started.check_job(config)
