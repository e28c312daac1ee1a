"""Inverting outputs finds what is there where nothing protects, and nothing where none leaves."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.attacks.attack_randomness import generator
from fedveil.attacks.effort import Watch
from fedveil.attacks.smoothness import total_variation
from fedveil.attacks.split import auxiliary, features, unsplit, whitebox_inversion
from fedveil.attacks.split.evidence import Evidence
from fedveil.attacks.split.example_prior import Gaussian, Search, Smooth
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.vertical import EmbeddingPrivacy, VerticalJob

FEATURES, OUTPUTS = 4, 64


def rows(count: int, *path: str) -> torch.Tensor:
    """Correlated features with a mean."""
    chance = generator(0, *path)
    mixing = torch.randn(FEATURES, FEATURES, generator=generator(1))
    return 1 + torch.randn(count, FEATURES, generator=chance) @ mixing


@pytest.fixture
def linear() -> nn.Linear:
    return seeded(partial(nn.Linear, FEATURES, OUTPUTS), 3)


def seeded(make: partial[nn.Linear], seed: int) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().requires_grad_(False)


def reports(outputs: torch.Tensor, eps: float | None, count: int) -> torch.Tensor:
    mechanism = EmbeddingDP(eps)
    return torch.stack([mechanism(outputs, Seeded(2, i)) for i in range(count)])


def error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found - truth).square().mean())


def test_a_known_linear_bottom_inverts_exactly(linear: nn.Linear) -> None:
    truth = rows(8, "victims")
    evidence = Evidence.of(linear(truth)[None], None)
    for prior in (Gaussian.of(rows(50, "public")), Gaussian.standard((FEATURES,))):
        found = whitebox_inversion.invert(linear, evidence, prior, steps=400)
        assert error(found, truth) < 1e-3


def test_an_inverse_network_learns_a_linear_bottom(linear: nn.Linear) -> None:
    truth, public = rows(8, "victims"), rows(200, "public")
    evidence = Evidence.of(linear(truth)[None], None)
    found = auxiliary.invert(public, linear(public), evidence, generator(0), steps=100)
    assert error(found, truth) < 0.02 * float(truth.var())


def test_an_inverse_network_is_more_than_its_linear_map() -> None:
    """Inputs that are the signs of the outputs' products: no linear map says anything of them."""
    outputs = torch.randn(1000, 2, generator=generator(1))
    inputs = (outputs[:, :1] * outputs[:, 1:]).sign()
    evidence = Evidence.of(outputs[None, :200], None)
    found = auxiliary.invert(
        inputs[200:], outputs[200:], evidence, generator(2), steps=400, lr=0.01
    )
    assert error(found, inputs[:200]) < 0.4, "1 is what guessing reaches"


@pytest.mark.parametrize(("count", "lie"), [(1, 0.3), (7, 0.3), (400, 0.1)])
def test_the_linear_map_is_the_best_one_for_reports_with_this_noise(count: int, lie: float) -> None:
    """It equals least squares on outputs to which the reports' noise was really added."""
    draw = generator(3)
    seen = torch.rand(4000, 3, generator=draw)
    inputs = seen @ torch.tensor([[1.0, 0.5], [-2.0, 0.0], [0.3, 1.5]])
    evidence = Evidence(torch.zeros(1, 3), count, lie)
    weights = auxiliary._Linear.fitted(seen, inputs, evidence)._weights
    deviation = math.sqrt(lie * (1 - lie) / count)
    noised = seen + deviation * torch.randn(seen.shape, generator=draw)
    z, x = noised - noised.mean(dim=0), inputs - inputs.mean(dim=0)
    best = torch.linalg.lstsq(z, x).solution
    assert float((weights - best).abs().max()) < 0.06 * float(best.abs().max())


@pytest.mark.parametrize("eps", [None, 5.0, 1.0])
def test_bits_are_read_and_more_reports_tell_more(linear: nn.Linear, eps: float | None) -> None:
    truth, public = rows(40, "victims"), rows(200, "public")
    prior, mean = Gaussian.of(public), public.mean(dim=0)
    guess = error(mean.expand_as(truth), truth)
    reached = []
    for count in (1, 10):
        evidence = Evidence.of(reports(linear(truth), eps, count), EmbeddingPrivacy(eps))
        known = whitebox_inversion.invert(linear, evidence, prior, steps=200)
        shown = auxiliary.invert(public, linear(public), evidence, generator(0), steps=100)
        reached.append((error(known, truth), error(shown, truth)))
        assert max(reached[-1]) < guess
    if eps == 1.0:  # at 5 one report tells nearly every bit
        assert reached[1][0] < 0.5 * reached[0][0]
        assert reached[1][1] < reached[0][1]


def test_where_nothing_leaves_the_mean_is_found(linear: nn.Linear) -> None:
    truth, public = rows(40, "victims"), rows(200, "public")
    guess = error(public.mean(dim=0).expand_as(truth), truth)
    evidence = Evidence.of(reports(linear(truth), 0.0, 10), EmbeddingPrivacy(0.0))
    prior = Gaussian.of(public)
    known = whitebox_inversion.invert(linear, evidence, prior, steps=100)
    assert torch.allclose(known, prior.mean.expand_as(truth))
    shown = auxiliary.invert(public, linear(public), evidence, generator(0), steps=100)
    assert error(shown, truth) > 0.95 * guess


def test_how_badly_bits_fit_is_their_probability() -> None:
    """Far from 0, a bit is told truthfully e^(eps/2) times as often as not."""
    told = torch.tensor([[[1.0, 0.0, 1.0]], [[1.0, 1.0, 0.0]]])
    outputs = torch.tensor([[9.0, -9.0, 9.0]])

    def ratio(privacy: EmbeddingPrivacy) -> float:
        evidence = Evidence.of(told, privacy)
        return float(evidence.misfit(-outputs, 0.1) - evidence.misfit(outputs, 0.1))

    assert ratio(EmbeddingPrivacy(2.0)) == pytest.approx(4 - 2)
    assert ratio(EmbeddingPrivacy(2.0, gradient="none", reuse=True)) == pytest.approx(2 - 1)
    assert ratio(EmbeddingPrivacy(0.0)) == 0
    assert ratio(EmbeddingPrivacy(3000.0)) == pytest.approx(30), "no more than the limit"
    half = Evidence.of(told[:1, :, :1], EmbeddingPrivacy(2.0))
    at_zero = half.misfit(torch.zeros(1, 1), 0.1) - half.misfit(torch.full((1, 1), 9.0), 0.1)
    assert float(at_zero) == pytest.approx(1 - math.log((math.e + 1) / 2))


def test_a_smooth_image_costs_less() -> None:
    plain, rough = torch.full((1, 1, 4, 4), 0.5), torch.zeros(1, 1, 4, 4)
    rough[0, 0, 1, 1] = 1.0
    assert total_variation(plain).item() == 0
    assert total_variation(rough).item() == 4
    prior = Smooth((1, 4, 4), -1.0, 1.0)
    numbers = torch.zeros(2, 1, 4, 4)
    assert torch.equal(prior.examples(numbers), torch.zeros(2, 1, 4, 4))
    assert (prior.cost(numbers) == 0).all()
    assert (prior.cost(20 * (rough - 0.5)) > 30).all()


def test_a_search_for_an_image_begins_where_a_normalised_layer_has_a_slope() -> None:
    """Equal pixels give 0 in every channel, and the ReLU after it passes no gradient back."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        bottom = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
        )  # fmt: skip
    truth = 2 * squares(3) - 1
    with torch.no_grad():
        evidence = Evidence.of(bottom(truth)[None], None)
    found = whitebox_inversion.invert(bottom, evidence, Smooth((1, 10, 10), -1, 1), steps=300)
    alike = [np.corrcoef(a.flatten(), b.flatten())[0, 1] for a, b in zip(truth, found, strict=True)]
    assert min(alike) > 0.9
    heard: list[tuple[int, int]] = []

    def with_rates(*rates: float) -> torch.Tensor:
        prior = replace(Smooth((1, 10, 10), -1, 1), searches=[Search(0.1, rate) for rate in rates])
        heard.clear()
        return whitebox_inversion.invert(
            bottom, evidence, prior, steps=20, tell=lambda *done: heard.append(done)
        )

    slow, fast = with_rates(1e-9), with_rates(0.3)
    assert not torch.equal(slow, fast)
    assert torch.equal(with_rates(1e-9, 0.3), fast), "each example has the search that fits it best"
    assert torch.equal(with_rates(0.3, 1e-9), fast)
    assert heard == [(step, 40) for step in range(1, 41)]
    first = Smooth((1, 10, 10)).start(3, 0.2)
    assert torch.equal(first, Smooth((1, 10, 10)).start(3, 0.2)), "the same in every run"
    assert float(first.std()) == pytest.approx(0.2, rel=0.2)


def squares(count: int) -> torch.Tensor:
    """Bright rectangles on a dark ground."""
    chance = Seeded(5).generator()
    images = torch.zeros(count, 1, 10, 10)
    for image in images:
        top, left, height, width = (int(n) for n in chance.integers(1, 5, 4))
        image[0, top : top + height, left : left + width] = 1
    return images


def test_unsplit_finds_images_without_the_weights() -> None:
    def make(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return nn.Conv2d(1, 4, 3)

    truth = squares(8)
    with torch.no_grad():
        evidence = Evidence.of(make(100)(truth)[None], None)
    heard: list[tuple[int, int]] = []
    found = unsplit.invert(
        make, evidence, (1, 10, 10), starts=3, rounds=30, tell=lambda *at: heard.append(at)
    )
    assert heard == [(i + 1, 60) for i in range(60)]
    assert found.misfit < 0.1
    guess = error(truth.mean(dim=0).expand_as(truth), truth)
    assert error(found.inputs, truth) < 0.5 * guess
    assert not torch.equal(found.bottom(truth), make(100)(truth))


def test_the_best_start_is_gone_on_with() -> None:
    """Find the one bottom that does something among several that do nothing."""

    class Dead(nn.Conv2d):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return 0 * super().forward(images)

    def make(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return (nn.Conv2d if seed == 1 else Dead)(1, 4, 3)

    with torch.no_grad():
        evidence = Evidence.of(nn.Conv2d(1, 4, 3)(squares(4))[None], None)
    found = unsplit.invert(make, evidence, (1, 10, 10), starts=3, rounds=6)
    assert type(found.bottom) is nn.Conv2d


def test_of_starts_that_fit_equally_the_smooth_and_dark_one_is_taken() -> None:
    """The bottom says nothing of its input, so every start fits alike."""
    bottom = nn.Conv2d(1, 2, 3)
    nn.init.zeros_(bottom.weight)
    bottom.weight.requires_grad_(False)
    evidence = Evidence.of(torch.randn(1, 2, 2, 8, 8, generator=generator(3)), None)
    numbers = torch.randn(2, 1, 10, 10, generator=generator(4))
    pair = unsplit._Pair(bottom, numbers, evidence, 0.0, 1.0)
    pair.improve(1, lambda done: None)
    plain = torch.sigmoid(numbers.detach())
    rough = total_variation(plain).mean() / 100
    unlikely = float(0.003 * rough + 0.01 * plain.square().mean())
    assert pair.cost - pair.misfit == pytest.approx(unlikely, rel=1e-3)


def test_a_guess_of_the_mean_number_or_of_even_bits_has_a_misfit_of_1() -> None:
    class Always(nn.Module):
        def __init__(self, answer: float) -> None:
            super().__init__()
            self.answer = nn.Parameter(torch.full((2, 3), answer))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.answer + 0 * inputs

    numbers = torch.tensor([[[4.0, 6.0, 9.0], [5.0, 5.0, 1.0]]])
    bits = torch.tensor([[[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]])
    for told, privacy, guess in ((numbers, None, 5.0), (bits, EmbeddingPrivacy(2.0), 0.0)):
        evidence = Evidence.of(told, privacy)
        pair = unsplit._Pair(Always(guess), torch.zeros(2, 3), evidence, -1.0, 3.0)
        assert pair._fit(pair.inputs).item() == pytest.approx(1)
        assert pair.inputs.detach() == pytest.approx(torch.full((2, 3), 1.0))


def test_an_output_that_was_constant_among_public_examples_ruins_nothing() -> None:
    public = torch.randn(64, 2, generator=generator(1))
    outputs = torch.cat([public, torch.ones(64, 1)], dim=1)
    told = torch.tensor([[1.0, 1.0, 0.0]])
    evidence = Evidence.of(told[None], EmbeddingPrivacy(None))
    found = auxiliary.invert(public, outputs, evidence, generator(2), steps=60, lr=0.01)
    assert (found - found.new_tensor([0.8, 0.8])).abs().max() < 1


def test_the_network_trains_on_reports_like_those_it_meets() -> None:
    chance = generator(4)
    seen = torch.full((2000, 3), 0.25)
    drawn = auxiliary._drawn(seen, Evidence(torch.zeros(1, 3), 4, 0.25), chance)
    assert drawn.var().item() == pytest.approx(0.25 * 0.75 / 4, rel=0.1)
    assert drawn.mean().item() == pytest.approx(0.25, abs=0.02)
    for lie in (None, 0.0):
        assert auxiliary._drawn(seen, Evidence(torch.zeros(1, 3), 4, lie), chance) is seen


def test_a_correction_is_learnt_from_noisy_reports_and_begins_with_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[int] = []
    draw = auxiliary._drawn
    monkeypatch.setattr(
        auxiliary, "_drawn", lambda seen, *more: drawn.append(len(seen)) or draw(seen, *more)
    )
    public = torch.randn(30, 2, generator=generator(1))
    evidence = Evidence(torch.zeros(3, 2), 4, 0.25)
    learnt = auxiliary.invert(public, public, evidence, generator(2), steps=3, lr=0.1)
    assert drawn == [27] * 3 + [3]  # 27 in one batch, and the others for the trial
    torch.manual_seed(6)  # nothing else is drawn than by the generator
    assert torch.equal(
        auxiliary.invert(public, public, evidence, generator(2), steps=3, lr=0.1), learnt
    )
    assert not auxiliary._network(2, 3, generator(2))(public).any()


def test_a_correction_counts_by_its_share_of_examples_that_it_was_not_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The examples held out are 0.5, and the correction says 1 of all of them."""
    trained: list[int] = []

    class Nothing:
        def __call__(self, told: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(told), 2)

        def scaled(self, told: torch.Tensor) -> torch.Tensor:
            return told

    def fitted(seen: torch.Tensor, *more: object) -> Nothing:
        trained.append(len(seen))
        return Nothing()

    monkeypatch.setattr(auxiliary._Linear, "fitted", fitted)
    monkeypatch.setattr(auxiliary, "_trained", lambda *_: lambda told: torch.ones(len(told), 2))
    public = torch.full((17, 2), 7.0)
    public[[7, 15]] = 0.5
    evidence = Evidence.of(torch.zeros(1, 3, 4), None)
    found = auxiliary.invert(public, torch.zeros(17, 4), evidence, generator(0))
    assert trained == [15]
    assert found.flatten().tolist() == [0.5] * 6


def test_bits_stand_for_how_often_a_report_of_them_is_one() -> None:
    evidence: Any = SimpleNamespace(lie=0.25)
    found = auxiliary._standing(evidence, torch.tensor([[-1.0, 2.0, 0.0]]))
    assert found.tolist() == [[0.25, 0.75, 0.25]]
    reported = EmbeddingDP(None)(torch.tensor([[-1.0, 2.0, 0.0]]), Seeded(2))
    assert reported.tolist() == [[0.0, 1.0, 0.0]], "as a report without lies says it"


def test_a_steady_copy_drops_nothing_and_learns_nothing() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))
    copy = whitebox_inversion.steady(module)
    x = torch.randn(6, 2, generator=generator(0))
    assert torch.equal(copy(x), copy(x))
    assert copy(x).mean(dim=0).abs().max() < 1e-6, "statistics are the batch's, as in a step"
    assert module[2].num_batches_tracked == 0
    assert not any(each.requires_grad for each in copy.parameters())


def job(**privacy: object) -> VerticalJob:
    """The leader's linear layer of 6 features to 8 numbers, which cross to a follower."""
    return VerticalJob(task={"name": "vertical_parts:u_shape"}, privacy=privacy)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave UnSplit, of whose success nothing is asserted, a fifth of its rounds.

    The inverse network gets a sixth of its steps, which is enough here.
    """
    fewer = {(150, 500): 9, (3000, 20_000): 100}
    monkeypatch.setattr(features, "by_effort", lambda effort, quick, *more: fewer.get(more, quick))


@pytest.mark.usefixtures("brief")
def test_a_job_is_attacked() -> None:
    steps: list[tuple[int, int, str]] = []
    watch = Watch(step=lambda *at: steps.append(at))
    finding = features.attack(SplitTarget.of(job()), "quick", watch)
    assert finding.attack == "features"
    assert finding.protection == "none"
    assert finding.epsilon == math.inf
    for knows in ("known bottom", "both", "public examples"):
        assert finding.figure(f"embedding: {knows}: correlation").value > 0.99
    done, total, _ = steps[-1]
    assert done == total == 400
    assert [at[0] for at in steps] == sorted(at[0] for at in steps)


def test_a_job_without_information_gives_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long is searched: the bits are coins."""
    fewer = {45: 9, 600: 150}
    monkeypatch.setattr(features, "by_effort", lambda effort, quick, *_: fewer.get(quick, quick))
    target = SplitTarget.of(job(embedding_dp={"eps": 0.0}))
    finding = features.attack(target, "quick", Watch())
    assert finding.protection == "embedding_dp"
    assert finding.epsilon == 0
    assert finding.saw == "10 reports of each of 50 examples"
    assert len(finding.figures) == 2 * 4
    assert max(abs(figure.value) for figure in finding.figures) < 0.45


def test_the_epsilon_beside_the_figures_is_that_of_the_most_exposed_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attack the outputs of the bank and of the shop, whatever the methods find in them."""
    parts = {"left": {"privacy": {"embedding_dp": {"eps": 0.25}}}, "right": {}, "top": {}}
    own = VerticalJob(
        task="vertical_parts:bottoms", privacy={"embedding_dp": {"eps": 1.5}}, parts=parts
    )
    target = SplitTarget.of(own)
    monkeypatch.setattr(features, "by_effort", lambda *_: 1)
    finding = features.attack(target, "quick", Watch())
    assert (finding.epsilon, finding.delta) == target.promised("right", 10)
    assert finding.delta == own.privacy.delta > 0
    assert finding.epsilon > target.promised("left", 10).epsilon > 0


@pytest.mark.parametrize(("wide", "reuse"), [(2.0, False), (2.0, True), (None, False)])
def test_a_wide_part_is_named_and_counted_if_it_is_not_attacked(
    wide: float | None, reuse: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The bank sends two outputs of each row, and the attack inverts one of them."""
    target = SplitTarget.of(tables(tmp_path))
    deep = EmbeddingPrivacy(0.5, reuse=reuse)
    split = target.split.replace("bank_deep", privacy=deep)
    other = None if wide is None else EmbeddingPrivacy(wide, reuse=reuse)
    target = replace(target, split=split.replace("bank_wide", privacy=other))
    monkeypatch.setattr(features, "by_effort", lambda *_: 1)
    finding = features.attack(target, "quick", Watch())
    assert finding.saw.endswith(
        "epsilon is of all that bank sends about an example: bank_wide, bank_deep; not attacked, "
        "but sent: bank_wide"
    )
    if wide is None:
        assert finding.epsilon == math.inf, "the wide part is sent without protection"
        return
    times = 1 if reuse else features.AVERAGED
    (size,) = split.by_name["bank_wide"].output
    alone = [target.promised(part, times).epsilon for part in ("bank_wide", "bank_deep")]
    assert finding.epsilon > max(alone)
    pure = times * (size * wide + split.by_name["bank_deep"].output[0] * 0.5) / 2
    assert finding.epsilon <= pure * (1 + 1e-9)
    assert finding.epsilon == target.promised_of("bank", times).epsilon


@pytest.mark.parametrize("reuse", [False, True])
def test_only_reports_with_noise_of_their_own_are_averaged(reuse: bool) -> None:
    target = SplitTarget.of(job(embedding_dp={"eps": 1.0, "reuse": reuse}))
    part = target.split.by_name["embedding"]
    aim = features.Aim(target, part, "quick")
    assert list(aim.cases) == ["", *([] if reuse else [", 10 reports"])]
    positions = np.arange(len(aim.truth))
    alone = Evidence.of(target.outputs("embedding", positions), part.privacy)
    assert torch.equal(aim.cases[""].mean, alone.mean)


def test_images_are_compared_on_values_from_0_to_1() -> None:
    target = SplitTarget.of(VerticalJob(task={"name": "mnist_halves"}))
    aim = features.Aim(target, target.split.by_name["left"], "quick")
    assert aim.images
    assert list(aim.cases) == [""]
    mse, psnr, ssim = aim.figures("", aim.truth)
    assert (mse.value, psnr.value, ssim.value) == (0, math.inf, 1)
    mean = aim.public.mean(dim=0, keepdim=True).expand_as(aim.truth)
    for figure in aim.figures("", mean):
        assert figure.value == figure.guess
    worst = next(aim.figures("", 1 - 2 * (aim.truth > 0).float()))
    assert worst.value > 0.5
    assert torch.equal(aim.cases[""].mean, target.outputs("left", np.arange(16))[0])


def test_outputs_that_are_all_alike_still_have_a_unit() -> None:
    assert Evidence.of(torch.full((1, 4, 3), 2.0), None).spread == 1e-12
    assert Evidence.of(torch.tensor([[[1.0, 5.0]]]), None).spread == 2


def test_the_smallest_public_value_is_black_and_the_largest_white() -> None:
    aim: Any = SimpleNamespace(_range=(-1.0, 3.0))
    values = torch.tensor([-2.0, -1.0, 0.0, 3.0, 5.0])
    assert features.Aim.plain(aim, values).tolist() == [0, 0, 0.25, 1, 1]


def test_an_image_is_as_large_as_the_window_that_compares_it() -> None:
    for shape, is_image in (
        ((3, 7, 9), True),
        ((1, 9, 6), False),
        ((2, 9, 9), False),
        ((9,), False),
    ):
        aim: Any = SimpleNamespace(
            _read=lambda subset, most, shape=shape: torch.zeros(most, *shape)
        )
        assert features.Aim.images.func(aim) == is_image


def test_correlation_leaves_constant_features_out() -> None:
    truth = torch.tensor([[1.0, 5.0, 2.0], [2.0, 5.0, 1.0], [3.0, 5.0, 0.0]])
    found = torch.tensor([[2.0, 1.0, 7.0], [4.0, 2.0, 7.0], [6.0, 3.0, 7.0]])
    figure = features.correlation("c", truth, found)
    assert figure.cases == 2
    assert figure.value == pytest.approx(0.5), "1 for the first, 0 for what was not found"


def test_correlation_of_constant_features_is_not_measured() -> None:
    figure = features.correlation("c", torch.full((4, 2), 3.0), torch.eye(4)[:, :2])
    assert str(figure) == "c not measured: every feature is constant"


def test_other_weights_of_the_same_bottom() -> None:
    target = SplitTarget.of(job())
    aim = features.Aim(target, target.split.by_name["embedding"], "quick")
    other, another = aim._other_bottom(0), aim._other_bottom(1)
    x = torch.ones(1, 6)
    outputs = [module(x) for module in (other, another, target.split.by_name["embedding"].module)]
    assert len({tuple(output.flatten().tolist()) for output in outputs}) == 3
    assert all(parameter.requires_grad for parameter in other.parameters())


def tables(folder: Path) -> VerticalJob:
    """The leader has labels alone, the bank four numbers and two columns of words."""
    draw = Seeded(1, "table").generator()
    numbers, places = draw.standard_normal((240, 4)).round(3), draw.integers(0, 3, (240, 2))
    held = ["id,a,b,c,d,city,job", *(
        ",".join(map(str, [at, *numbers[at], *(f"w{place}" for place in places[at])]))
        for at in range(240)
    )]  # fmt: skip
    (folder / "bank.csv").write_text("\n".join(held) + "\n")
    labels = ["id,y", *(f"{at},{int(numbers[at].sum() > 0)}" for at in reversed(range(240)))]
    (folder / "lead.csv").write_text("\n".join(labels) + "\n")
    words = {"city": 4, "job": 4}
    files = {"leader": {"path": str(folder / "lead.csv"), "label": "y"},
             "bank": {"path": str(folder / "bank.csv"), "categories": words}}  # fmt: skip
    return VerticalJob(task={"name": "tables", "tables": {"owners": ["bank"], "files": files}})


@pytest.mark.usefixtures("brief")
def test_numbers_and_words_behind_a_partys_own_table_are_found(tmp_path: Path) -> None:
    target = SplitTarget.of(tables(tmp_path))
    deep = target.split.by_name["bank_deep"].module
    nn.init.normal_(deep.words.weight)  # as large as numbers: as drawn they hardly matter
    finding = features.attack(target, "quick", Watch())
    assert finding.figure("bank_deep: known bottom: correlation").value > 0.9
    assert finding.figure("bank_deep: public examples: correlation").value > 0.6
    words = finding.figure("bank_deep: known bottom: words")
    assert words.guess < 0.5 < 0.9 < words.value
    named = {figure.name for figure in finding.figures}
    assert "bank_deep: both: words" in named
    assert len(named) == 6, "nobody else has the table of words; a wide part reads no numbers"


def test_words_are_guessed_by_the_commonest_public_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Table:
        def nearest(self, vectors: torch.Tensor) -> torch.Tensor:
            return vectors.long()

    monkeypatch.setattr(features, "Deep", Table)
    monkeypatch.setattr(features, "module_of", lambda part: Table())
    words = [
        torch.tensor([[0.1 * place, word] for place, word in enumerate(said)])
        for said in ([1, 1, 2], [2, 2, 1])
    ]
    aim: Any = SimpleNamespace(_numbers=1, part=None, truth=words[0], public=words[1])
    _, told = features.Aim._figures_of_table(aim, "a ", words[0])
    assert (told.name, told.value, told.guess) == ("a words", 1, pytest.approx(1 / 3))


def test_only_a_part_that_reads_one_column_of_numbers_is_attacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers, tokens = torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.int64)
    columns = {"one": [numbers], "two": [numbers, numbers], "text": [tokens], "inner": [numbers],
               "own": [numbers], "none": [numbers[:, :0]]}  # fmt: skip
    parts = [SimpleNamespace(name=name, sources=("one",) * (name == "inner")) for name in columns]
    crossings = [SimpleNamespace(part=name) for name in columns if name != "own"]
    target: Any = SimpleNamespace(split=SimpleNamespace(parts=parts, crossings=crossings))
    monkeypatch.setattr(features, "_columns", lambda target, part, *more: columns[part.name])
    monkeypatch.setattr(features, "module_of", lambda part: nn.Identity())
    assert [part.name for part in features._attackable(target)] == ["one"]


def test_a_model_without_numbers_to_find_is_refused() -> None:
    with pytest.raises(AttackImpossible, match="no part that crosses reads one column of numbers"):
        features.attack(
            SplitTarget.of(VerticalJob(task={"name": "vertical_parts:unsplit"})), "quick", Watch()
        )


def test_the_misfit_of_numbers_is_relative_to_their_spread() -> None:
    evidence = Evidence.of(torch.tensor([[[1.0, 3.0], [2.0, 2.0]]]), None)
    spread = math.sqrt(0.5)
    misfit = evidence.misfit(torch.tensor([[1.0, 2.0], [2.5, 1.0]]), 0.1)
    assert misfit.tolist() == pytest.approx(
        [(1 / (0.03 * spread)) ** 2 / 2, (1.25 / (0.03 * spread) ** 2) / 2]
    )


def test_a_normal_prior_has_the_covariance_of_public_examples() -> None:
    public = torch.tensor([[[1.0], [4.0]], [[5.0], [4.0]], [[1.0], [6.0]], [[5.0], [6.0]]])
    prior = Gaussian.of(public, floor=0.25)
    assert prior.examples(prior.start(1, 0.0)).flatten().tolist() == pytest.approx([3, 5])
    exact = Gaussian.of(public.double())
    assert exact.examples(exact.start(3, 0.5)).dtype == torch.float64
    moved = prior.examples(torch.eye(2)).flatten(1) - prior.mean.flatten()
    assert torch.allclose(moved, prior.factor.T)
    assert not torch.allclose(moved, prior.factor)
    covariance = prior.factor @ prior.factor.T
    assert torch.allclose(covariance, torch.tensor([[4.25, 0.0], [0.0, 1.25]]), atol=1e-5)
    assert prior.cost(torch.tensor([[1.0, 2.0], [0.0, 3.0]])).tolist() == [2.5, 4.5]


def test_inputs_are_sought_in_the_middle_of_their_range() -> None:
    evidence = Evidence.of(torch.zeros(1, 3, 2), None)
    pair = unsplit._Pair(nn.Linear(2, 2), torch.zeros(3, 2), evidence, -2.0, 3.0)
    assert pair.inputs.flatten().tolist() == [0.5] * 6


def test_a_rate_falls_along_a_cosine() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], 1.0)
    for share, rate in ((0, 0.3), (1 / 3, 0.225), (0.5, 0.15), (1, 0)):
        whitebox_inversion.falling(optimizer, 0.3, share)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_each_method_is_given_what_its_attacker_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    target = SplitTarget.of(VerticalJob(task={"name": "mnist_halves"}))
    aim = features.Aim(target, target.split.by_name["left"], "quick")
    asked: dict[str, Any] = {}

    def noted(name: str) -> Any:
        def invert(*given: Any, **more: Any) -> Any:
            asked[name] = (*given, more)
            return SimpleNamespace(inputs=aim.truth)

        return invert

    monkeypatch.setattr(unsplit, "invert", noted("unsplit"))
    monkeypatch.setattr(auxiliary, "invert", noted("public examples"))
    monkeypatch.setattr(whitebox_inversion, "invert", noted("known bottom"))
    evidence = aim.cases[""]
    for name in ("unsplit", "public examples", "known bottom"):
        aim.methods[name](evidence, print)
    bottom, told, shape, settings = asked["unsplit"]
    assert (bottom, told) == (aim._other_bottom, evidence), "whose weights it does not know"
    low, high = float(aim.public.min()), float(aim.public.max())
    assert shape == tuple(aim.truth.shape[1:])
    assert settings == {
        "low": low, "high": high, "starts": 2, "rounds": 45, "tell": print,
    }  # fmt: skip
    public, outputs, _, _, settings = asked["public examples"]
    assert torch.equal(public, aim.public)
    assert torch.equal(outputs, aim._bottom(public))
    assert settings == {"steps": 600, "tell": print}
    assert asked["known bottom"] == (
        aim._bottom, evidence, Smooth(shape, low, high), {"steps": 600, "tell": print},
    )  # fmt: skip
    apart = target.rows["test"]["left"]
    first = apart.batch(np.arange(min(2000, apart.count))).columns[aim.part.columns[0]]
    assert torch.equal(aim.public, first), "none of them is attacked"
    held = target.rows["train"]["left"]
    assert torch.equal(aim.truth, held.batch(np.arange(16)).columns[aim.part.columns[0]])
    for effort, examples, starts, steps in (("standard", 64, 5, 1500), ("full", 256, 10, 5000)):
        harder = features.Aim(target, aim.part, effort)
        for name in ("unsplit", "known bottom"):
            harder.methods[name](evidence, print)
        found = (
            len(harder.truth),
            asked["unsplit"][-1]["starts"],
            asked["known bottom"][-1]["steps"],
        )
        assert found == (examples, starts, steps)


@pytest.mark.parametrize(
    ("privacy", "reports", "lie"),
    [(None, 1, None), (EmbeddingPrivacy(eps=None), 1, 0.0),
     (EmbeddingPrivacy(eps=2.5), 5, 1 / (1 + math.exp(1.25))),
     (EmbeddingPrivacy(eps=2.5, reuse=True), 1, 1 / (1 + math.exp(1.25)))],
)  # fmt: skip
def test_reports_are_numbers_bits_or_bits_that_may_be_flipped(
    privacy: EmbeddingPrivacy | None, reports: int, lie: float | None
) -> None:
    sent = torch.arange(5.0).reshape(5, 1, 1)
    found = Evidence.of(sent, privacy)
    assert (found.mean.item(), found.reports, found.lie) == (2.0, reports, lie)
