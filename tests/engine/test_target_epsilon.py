"""Solving for a protection's parameter, against the ledger's own forecast."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import fedveil
from comparing_parts import small_job
from fedveil.engine.budget import prepared, project_job, solve_job, thin_promise
from fedveil.engine.target_epsilon import _edge, solve, whole_run
from fedveil.errors import InvalidValue, ModelInvalid
from fedveil.federated.job import Job
from fedveil.protections.base import JobContext, Protection
from fedveil.protections.catalog import build
from fedveil.protections.cost_key import CostKey
from fedveil.protections.rr_oue import RR


def made(*settings: str, dimension: int = 40) -> tuple[Job, Protection]:
    job = Job.load(None, ["rounds=20", "clients.number=100", *settings])
    weighting, each = job.server.weighting, job.clients_per_round
    context = JobContext(weighting, dimension, each, job.rounds)
    return job, build(job.protection.name, job.protection.settings, context)


@pytest.mark.parametrize("target", [0.7, 8.0, 300.0])
@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["protection=dp_encrypt"], "protection.dp_encrypt.dp_eps"),
        (["protection=signds"], "protection.signds.sign_eps"),
        (["protection={name: signds, signds: {sign_mag_eps: 0.01}}"], "protection.signds.sign_eps"),
        (["protection={name: rr, unary: {cells: 4}}"], "protection.unary.eps"),
        (["protection={name: oue, unary: {cells: 4, report: bits}}"], "protection.unary.eps"),
        (["protection=pw_encrypt"], "protection.pw_encrypt.central_eps"),
        (
            ["protection={name: pw_encrypt, pw_encrypt: {central_eps: 3.0, central_delta: 1e-6}}"],
            "protection.pw_encrypt.central_eps",
        ),
    ],
)
def test_the_run_costs_at_most_the_target_and_nearly_that(
    settings: list[str], key: str, target: float
) -> None:
    job, protection = made(*settings)
    solved = solve(job, protection, target)
    assert solved.keys == {key: solved.value}
    again, asked = made(*settings, f"{key}={solved.value!r}")
    assert asked.settings == solved.protection.settings
    spent = whole_run(asked, again.rounds, again.privacy.delta)
    assert target * 0.99 < spent.epsilon <= target
    _, more = made(*settings, f"{key}={solved.value * 1.0011!r}")
    assert whole_run(more, again.rounds, again.privacy.delta).epsilon > target


@pytest.mark.parametrize(
    "other", ["rounds=7", "privacy.delta=1e-3", "protection.dp_encrypt.dp_delta=1e-8"]
)
def test_a_search_of_another_job_is_not_taken_for_this_ones(other: str) -> None:
    base = ("protection=dp_encrypt", "privacy.delta=1e-4")
    first, second = (solve(*made(*settings), 3.0).value for settings in (base, (*base, other)))
    assert first == solve(*made(*base, "seed=9", "training.lr=0.7"), 3.0).value != second
    _, asked = made(*base, other, f"protection.dp_encrypt.dp_eps={second!r}")
    job, _ = made(*base, other)
    rr = "protection={name: rr, unary: {cells: 4}}"
    sizes = [solve(*made(rr, dimension=size), 3.0).value for size in (40, 90)]
    assert sizes[0] > sizes[1]
    assert 2.97 < whole_run(asked, job.rounds, job.privacy.delta).epsilon <= 3.0


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        (["protection=dp_encrypt", "privacy.unit=example"], "training.sampling_rate"),
        (["protection=distributed_dp", "clients.sampling=poisson"], "clients.fraction"),
    ],
)
def test_the_search_for_a_rarer_sampling_is_not_taken_for_a_more_frequent_one(
    settings: list[str], rate: str
) -> None:
    found = []
    for share in (0.2, 0.4):
        job = Job.load(None, ["rounds=2", *settings, f"{rate}={share}"])
        solved, _ = solve_job(job, 3.0, parameters=40)
        assert 2.97 < whole_run(solved.protection, 2, job.privacy.delta).epsilon <= 3.0
        found.append(solved.value)
    assert found[0] != found[1]


@pytest.mark.parametrize("target", [0.5, 2.0, 9.0])
@pytest.mark.parametrize("name", ["rr", "oue"])
def test_an_adaptive_run_is_held_to_the_target(name: str, target: float, tmp_path: Path) -> None:
    """Later rounds cost more than the first: the run as pasted ends before it has cost more."""
    base = [
        "rounds=4", "clients.number=6", "clients.fraction=1", "model=logistic",
        f"protection={{name: {name}, unary: {{cells: 3, adaptive: true}}}}", "training.epochs=1",
        "simulation.workers=0", "training.lr=3.0", "record.page=false",
    ]  # fmt: skip
    solved, _ = solve_job(Job.load(None, base), target)
    assert list(solved.keys) == ["protection.unary.total_eps", "protection.unary.eps"]
    pasted = [f for f in str(solved).split() if f != "--set"]
    run = fedveil.simulate(Job.load(None, [*base, *pasted]), tmp_path / "run")
    spent = run.metrics[-1]["epsilon_run_every_round"]
    assert 0 < spent <= target
    free = fedveil.simulate(Job.load(None, [*base, pasted[-1]]), tmp_path / "free")
    assert free.metrics[-1]["epsilon_run_every_round"] > target  # without the total it is passed


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_stated_number_of_parameters_costs_what_the_model_of_that_size_costs(
    algorithm: str,
) -> None:
    job = Job.load(None, [
        "rounds=3", "clients.number=7", "model=logistic", "protection=dp_encrypt",
        f"training.algorithm={algorithm}",
    ])  # fmt: skip
    size = prepared(job)[0].dimension
    assert list(project_job(job, size)) == list(project_job(job))
    assert list(project_job(job, size + 1)) != list(project_job(job))
    assert solve_job(job, 9.0, size)[0].value == solve_job(job, 9.0)[0].value


def test_a_stated_number_of_parameters_needs_the_number_of_clients() -> None:
    with pytest.raises(InvalidValue, match=r"--parameters needs clients\.number"):
        list(
            project_job(
                Job.load(
                    None, ["data.split=by_client", "data.name=femnist", "clients.number=null"]
                ),
                9,
            )
        )


@pytest.mark.parametrize("adaptive", [True, False])
def test_rounds_that_depend_on_earlier_ones_are_projected_to_their_plain_sum(
    adaptive: bool,
) -> None:
    unary = f"unary: {{eps: 0.01, cells: 3, adaptive: {str(adaptive).lower()}}}"
    job = Job.load(None, ["rounds=50", "clients.number=60", f"protection={{name: rr, {unary}}}"])
    costs = {line.what: line.epsilon for line in project_job(job, parameters=7)}
    ((what, run),) = (item for item in costs.items() if "all 50 rounds" in item[0])
    assert ("if no round costs more than the first" in what) == adaptive
    plain = 50 * 7 * costs["one of 7 parameters in a round"]
    if adaptive:
        assert run == pytest.approx(plain)
    else:
        assert run < 0.2 * plain


def test_an_adaptive_protection_that_names_no_total_is_not_solved_for() -> None:
    class Growing(RR):
        cost_parameter = "eps"

    job, protection = made("protection={name: rr, unary: {cells: 4, adaptive: true}}")
    with pytest.raises(InvalidValue, match="names no setting that bounds the whole run"):
        solve(job, Growing(protection.settings, protection.context), 2.0)


@pytest.mark.parametrize("target", [0.7, 8.0, 300.0])
@pytest.mark.parametrize("before", ["{}", "{noise_multiplier: 30.0}", "{target_epsilon: 5.0}"])
def test_a_parameter_of_which_more_costs_less_is_rounded_up(before: str, target: float) -> None:
    settings = [f"protection={{name: central_gaussian, central_gaussian: {before}}}"]
    solved = solve(*made(*settings), target)
    again, asked = made(*settings, *(f for f in str(solved).split() if f != "--set"))
    assert asked.settings.model_dump() == solved.protection.settings.model_dump()
    spent = whole_run(asked, again.rounds, again.privacy.delta)
    assert target * 0.99 < spent.epsilon <= target
    key = "protection.central_gaussian.noise_multiplier"
    assert list(solved.keys)[-1] == key
    keys = {**solved.keys, key: solved.value * 0.998}
    _, less = made(*settings, *(f"{k}={'null' if v is None else v}" for k, v in keys.items()))
    assert whole_run(less, again.rounds, again.privacy.delta).epsilon > target


def test_a_job_that_weighs_by_size_is_told_to_count_equally() -> None:
    job, protection = made("protection=pw_encrypt", "server.weighting=by_size")
    solved = solve(job, protection, 2.0)
    assert str(solved).startswith("--set server.weighting=equal --set protection.pw_encrypt.")
    solved = solve(*made("protection=pw_encrypt", "server.weighting=equal"), 2.0)
    assert str(solved).startswith("--set protection.pw_encrypt.")


def test_a_parameter_ends_where_the_job_ends_it() -> None:
    job, protection = made("protection=signds")
    assert solve(job, protection, 1e6).value == 100.0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ([], "protection.name = not_encrypt promises no epsilon under any settings. Choose another "
             "protection, for example with `--set protection=distributed_dp`"),
        (["protection={name: signds, signds: {sign_mag_eps: 9.0}}"],
         "no protection.signds.sign_eps brings the run to epsilon 5: at 1e-09 it is epsilon "),
        (["protection={name: dp_encrypt, dp_encrypt: {noise: continuous}}"],
         "no protection.dp_encrypt.dp_eps brings the run to epsilon 5: at 1e-09 it is epsilon inf "
         "at delta 1e-05 (none). Use fewer rounds, another delta or other parameters"),
        (["protection=pw_encrypt", "privacy.delta=0"],
         "no protection.pw_encrypt.central_eps brings the run to epsilon 5. Use fewer rounds, "
         "another delta or other parameters"),
    ],
)  # fmt: skip
def test_what_cannot_be_solved_says_so(settings: list[str], sentence: str) -> None:
    job, protection = made(*settings)
    with pytest.raises(InvalidValue) as refused:
        solve(job, protection, 5.0)
    assert str(refused.value).startswith(sentence)


class Silent(RR):
    """A protection of one's own that does not say what decides its cost."""

    cost_parameter = None


def own() -> tuple[Job, Protection]:
    job, protection = made("protection={name: rr, unary: {cells: 4}}")
    return job, Silent(protection.settings, protection.context)


def test_a_protection_of_ones_own_may_name_no_parameter() -> None:
    job, protection = own()
    with pytest.raises(InvalidValue, match="does not declare which parameter decides"):
        solve(job, protection, 5.0)
    warning = thin_promise(job, protection)
    assert warning is not None
    assert warning.endswith("(next to none): fewer rounds or more noise give a stronger guarantee")


@pytest.mark.parametrize("target", [0.0, -1.0, float("inf"), float("nan")])
def test_a_target_is_a_positive_number(target: float) -> None:
    with pytest.raises(InvalidValue, match="target epsilon = "):
        solve(*made("protection=signds"), target)


def test_a_default_that_promises_next_to_none_says_what_to_change() -> None:
    job, protection = made("protection=signds")
    assert thin_promise(job, protection) == (
        "a client that takes part in all 20 rounds is promised epsilon 4,000 at delta 1e-05 "
        "(next to none): `fedveil budget JOB --target-epsilon E`, with the run's --set options, "
        "finds the protection.signds.sign_eps for a target epsilon"
    )


def test_gaussian_noise_without_a_delta_is_told_to_have_one() -> None:
    warning = thin_promise(*made("protection=central_gaussian", "privacy.delta=0"))
    assert str(warning).endswith("needs a delta, such as `privacy: {delta: 1e-5}`")


@pytest.mark.parametrize(
    "settings", ["protection=not_encrypt", "protection=pw_encrypt",
                 "protection={name: dp_encrypt, dp_encrypt: {dp_eps: 0.3}}"],
)  # fmt: skip
def test_what_promises_more_or_never_promised_does_not_warn(settings: str) -> None:
    assert thin_promise(*made(settings)) is None


@pytest.mark.parametrize(
    ("falls", "edge", "found"),
    [
        (False, 1.23456, 1.234),
        (False, 1.2339999999, 1.233),
        (True, 1.2340000001, 1.235),
        (False, 0.0071238, 0.007123),
        (False, 87654.3, 87650.0),
        (True, 1.23412, 1.235),
        (True, 0.0071232, 0.007124),
        (True, 87651.0, 87660.0),
    ],
)
@pytest.mark.parametrize("start", [1e-3, 1.5, 4e4])
def test_a_value_is_rounded_so_that_the_target_holds(
    falls: bool, edge: float, found: float, start: float
) -> None:
    """The epsilon of this parameter is proportional to it, or to its inverse if it `falls`."""

    def fits(value: float) -> tuple[bool, float]:
        ratio = edge / value if falls else value / edge
        return ratio <= 1, ratio

    assert _edge(fits, CostKey("noise", falls), start) == found


def test_the_value_that_is_found_is_itself_within_the_target() -> None:
    """The least allowed noise is one rounding error above a value of four digits.

    For many such values, the inverse of their inverse is larger, and so within the target.
    """
    values = [n / 1000 for n in range(1000, 10_000)]
    larger = [value for value in values if 1 / (1 / value) > value]
    assert len(larger) == 618
    for value in larger[::20]:
        edge = math.nextafter(value, math.inf)

        def fits(noise: float, edge: float = edge) -> tuple[bool, float]:
            return noise >= edge, edge / noise

        found = _edge(fits, CostKey("noise", falls=True), 1.0)
        assert found == pytest.approx(value + 0.001)
        assert fits(found)[0]


REFUSED = r"^protection.name = {} adds noise to every averaged tensor, which breaks the buffers 1\."


@pytest.mark.parametrize("name", ["dp_encrypt", "signds"])
def test_no_cost_is_stated_for_a_model_whose_buffers_the_run_refuses(
    name: str, tmp_path: Path
) -> None:
    job = small_job(model="parts:net", protection={"name": name})
    found = []
    for command in (lambda: fedveil.simulate(job, tmp_path / "run"), lambda: project_job(job)):
        with pytest.raises(ModelInvalid, match=REFUSED.format(name)) as error:
            command()
        found.append(str(error.value))
    assert found[0] == found[1]
    assert list(project_job(job, parameters=83)), "no model is built for a stated size"


def test_no_noise_is_sought_for_a_model_whose_buffers_it_would_break() -> None:
    """Without `central_eps`, the job itself adds no noise, and its run accepts the model."""
    job = small_job(model="parts:net", protection={"name": "pw_encrypt"})
    assert list(project_job(job))
    with pytest.raises(ModelInvalid, match=REFUSED.format("pw_encrypt")):
        solve_job(job, 3.0)
    assert solve_job(job, 3.0, parameters=83)[0].value > 0
