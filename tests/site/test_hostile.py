"""More than a thousand hostile apps, jobs and messages, at the real door of a site."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.errors import SiteRefused
from fedveil.flower.job.signing_key_file import make_identity
from fedveil.site import order
from fedveil.site.order import order_in, sign
from flower_parts import app_of
from hostile_orders import Hostile, archives, jobs, messages, signatures, text_of, with_code
from site_house import House, app_of_job, job, noised, of_job, policy, training


@pytest.fixture(autouse=True)
def own_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let a hostile app's code be importable. It must not be imported all the same."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "evil.py").write_text(
        "import builtins\nbuiltins.hostile_code_ran = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "path")
    yield
    assert not hasattr(builtins, "hostile_code_ran")


@pytest.fixture
def strict(tmp_path: Path, stack: ExitStack) -> House:
    """A strict site. Any job may run that is strong enough: only its strength can stop it."""
    template = job()
    (tmp_path / "template.yaml").write_text(template.to_yaml())
    free = sorted(type(template).model_fields)
    jobs = {"template": str(tmp_path / "template.yaml"), "may_differ": free}
    return House(tmp_path / "site", stack, policy(jobs=jobs))


def test_every_hostile_job_and_archive_is_refused(strict: House, reads: list[int]) -> None:
    good = job()
    message = training(good).message()
    cases: list[Hostile] = [*jobs(good), *archives(good, "signature: 'aa'")]
    for case in cases:
        assert strict.ask(case.app, message) is None, case.name
        assert case.why in strict.why(), (case.name, strict.why())
    assert len(cases) >= 450
    assert (reads, strict.charges) == ([], 0)


def test_the_job_itself_is_not_refused(strict: House) -> None:
    """Otherwise the cases would be refused for another reason."""
    good = job()
    assert strict.ask(with_code(text_of(good)), training(good, "advertise").message()) is not None


def test_a_file_of_the_longest_size_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(job())
    monkeypatch.setattr(order, "_MOST_BYTES", len(text.encode()))
    assert order.read_app(with_code(text)).job == job()
    monkeypatch.setattr(order, "_MOST_BYTES", len(text.encode()) - 1)
    with pytest.raises(SiteRefused, match="more than"):
        order.read_app(with_code(text))


def test_a_name_of_code_is_found_in_any_place() -> None:
    found = order._own_code({"a": {"b": ["x", {"c": ("y", "evil:net")}], "model": "evil:f"}})
    assert list(found) == ["a.b.c = evil:net", "a.model = evil:f"]


def test_a_job_s_file_is_judged_as_the_app_that_it_becomes(tmp_path: Path) -> None:
    made = job(privacy={"randomness": "seeded"})
    (tmp_path / "job.yaml").write_text(made.to_yaml())
    app, _ = app_of(tmp_path / "app", made)
    assert order_in(tmp_path / "job.yaml").digest == order_in(app).digest
    (tmp_path / "job.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(SiteRefused, match=r"job\.yaml cannot be read"):
        order_in(tmp_path / "job.yaml")


def test_a_job_needs_the_very_signature_of_a_starter(tmp_path: Path, stack: ExitStack) -> None:
    app, good = app_of(tmp_path / "app", job())
    public = make_identity(tmp_path / "ada.pem")
    sign(app, tmp_path / "ada.pem")
    signature = order_in(app).signature
    assert signature is not None
    stranger = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    people = {"bob": stranger, "ada": public}
    jobs = {"signed_by": ["ada"]}
    house = House(tmp_path / "site", stack, policy(people=people, starters=["ada"], jobs=jobs))
    message = training(good, "advertise").message()
    signed = {"signature.yaml": f"signature: '{signature.hex()}'"}
    assert house.ask(with_code(text_of(good), **signed), message) is not None
    cases = list(signatures(good, signature))
    for case in cases:
        assert house.ask(case.app, message) is None, case.name
        assert case.why in house.why()
    assert len(cases) >= 60
    keys = policy(people=people, starters=["bob"], jobs=jobs)
    other = House(tmp_path / "other", stack, keys)
    assert other.ask(with_code(text_of(good), **signed), message) is None
    assert "none of starters (bob) has signed the job" in other.why()


def test_a_message_gets_a_charged_report_or_one_word(
    tmp_path: Path, stack: ExitStack, reads: list[int]
) -> None:
    """The data is read once for each charge, after it, and never without."""
    good = noised()
    house = House(tmp_path / "site", stack, of_job(good))
    app, said = app_of_job(good), training(good)
    answered = house.ask(app, said.message())
    assert answered is not None
    cases, left = list(messages(said)), 1
    for name, message in cases:
        answer = house.ask(app, message)
        if answer is not None:
            assert len(answer) == len(answered), name
            left += 1
        assert len(reads) <= house.charges, name
    assert len(cases) >= 300
    assert 50 < left <= len(reads) <= house.charges


def test_no_message_of_another_phase_reads_data(
    tmp_path: Path, stack: ExitStack, reads: list[int]
) -> None:
    good = job()
    house = House(tmp_path / "site", stack, of_job(good))
    app, said = app_of_job(good), training(good, "advertise")
    cases = list(messages(said))
    answers = [house.ask(app, message) for _, message in cases]
    assert len(cases) >= 190
    assert 0 < sum(answer is not None for answer in answers) < len(cases) / 2
    assert (reads, house.charges) == ([], 0)


def test_a_job_for_simulations_alone_is_refused() -> None:
    with pytest.raises(SiteRefused, match=r"job is not valid: evaluation\.clients = 0\.5"):
        order.read_app(with_code(text_of(job(evaluation={"clients": 0.5}))))


def test_a_job_of_bundled_parts_may_have_a_name_like_a_functions() -> None:
    """Nothing is imported for a run's name. Each of the job's own functions is named as code."""
    assert order.read_order(text_of(job(name="heart:second")), "it").name == "heart:second"
    own = job(model="net:net", task="rules:Own", training={"lr_schedule": "rates:slow"})
    assert order.Order(own, None).code == ["net:net", "rules:Own", "rates:slow"]
