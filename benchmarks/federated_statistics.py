"""Errors of statistics under each protection, beside the theory and beside central noise.

    python benchmarks/federated_statistics.py histogram sites median words local    ten minutes
    python benchmarks/federated_statistics.py correlation intervals    six minutes
    PYTHONPATH=OPENDP python benchmarks/federated_statistics.py opendp

The last command needs OpenDP: `pip install --target OPENDP opendp`.

histogram   1,000 cells from 1,000,000 clients under oue: time, and error relative to the theory
sites       ten sites of many rows under distributed_dp at epsilon 1, relative to central noise, and
            the exact sums of pw_encrypt, as in a Prio-like protocol
median      the median of 10,000 incomes at epsilon 1: its error as a share of the range
words       the 20 most frequent of a million words, from 100,000 clients at epsilon 4
local       the same under oue, beside the best possible frequency oracle, on ten data sets
correlation the correlation of 60,000 clients under oue and rr
intervals   the share of 95% intervals that contain the population's value, over 100 data sets
opendp      OpenDP's count and histogram with Gaussian noise of its own calibration

`oue` simulates the sum of the reports, drawn from its exact distribution (fidelity: aggregate).
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import numpy as np

from fedveil.privacy.gaussian_curve import ratio_for
from fedveil.statistics.asking import ask

DELTA = 1e-6


def histogram(clients: int = 1_000_000, cells: int = 1_000, epsilon: float = 1.0) -> None:
    rng = np.random.default_rng(1)
    column = np.minimum(rng.geometric(0.004, clients) - 1, cells - 1).astype(float)
    truth = np.bincount(column.astype(int), minlength=cells)
    question = {
        "protection": "oue", "epsilon": epsilon, "fidelity": "aggregate",
        "questions": {
            "h": {"ask": "histogram", "column": "x", "edges": [float(i) for i in range(cells + 1)]}
        },
    }  # fmt: skip
    begun = time.perf_counter()
    answer = ask(question, {"x": column})["h"]
    seconds = time.perf_counter() - begun
    error = np.array([e.value for e in answer.estimates]) - truth
    q = 1 / (math.exp(epsilon) + 1)
    # The exact variance of a cell with n f clients: n [f / 4 + (1 - f) q (1 - q)] / (1/2 - q)².
    share = truth / clients
    law = clients * (share / 4 + (1 - share) * q * (1 - q)) / (0.5 - q) ** 2
    ratio = math.sqrt((error**2).mean() / law.mean())
    inside = np.mean([e.low <= t <= e.high for e, t in zip(answer.estimates, truth, strict=True)])
    print(
        f"oue, {clients:,} clients, {cells:,} cells, epsilon {epsilon:g}: {seconds:.1f} s, "
        f"root mean squared error {math.sqrt((error**2).mean()):,.0f} rows, "
        f"{ratio:.3f} times the theoretical; {inside:.1%} of the 95% intervals hold the truth"
    )


def sites(rows: int = 20_000, repeats: int = 40) -> None:
    rng = np.random.default_rng(2)
    data = {"site": np.arange(rows) % 10, "x": rng.integers(0, 50, rows).astype(float)}
    truth = np.bincount(data["x"].astype(int), minlength=50)
    questions = {"h": {"ask": "histogram", "column": "x", "edges": [float(i) for i in range(51)]}}

    def errors(protection: str, **more: object) -> np.ndarray:
        found = []
        for _ in range(repeats):
            file = {"protection": protection, "questions": questions, **more}
            answer = ask(file, data)["h"]
            found.append([e.value for e in answer.estimates] - truth)
        return np.array(found)

    for unit, reach in (("row", 1.0), ("client", 1000.0)):
        client = {"unit": unit, "client": "site"}
        if unit == "client":
            client["rows"] = 1000
        noisy = errors("distributed_dp", epsilon=1.0, delta=DELTA, masks=False, **client)
        spread = math.sqrt((noisy**2).mean())
        if unit == "client":  # 2,000 rows a site, of which 1,000 are contributed
            spread = float(noisy.std(0, ddof=1).mean())
            reach *= math.sqrt(1 - 1 / 50)
        central = math.sqrt(2) * reach * ratio_for(1.0, DELTA, 1)
        print(
            f"ten sites, unit {unit}, distributed_dp at epsilon 1: deviation {spread:,.1f} rows a "
            f"cell, {spread / central:.3f} times that of central noise for the same clip"
        )
    plain = errors("pw_encrypt", client="site", rows=2000, masks=False)
    print(f"ten sites, pw_encrypt: largest error of {repeats} exact sums {abs(plain).max():.3f}")


def median(people: int = 10_000, repeats: int = 30) -> None:
    rng = np.random.default_rng(3)
    income = np.minimum(np.exp(rng.normal(10.3, 0.6, people)), 200_000)
    truth = float(np.median(income))
    question = {"q": {"ask": "quantiles", "column": "x", "range": [0.0, 200_000.0], "at": [0.5]}}
    for protection in ("central_gaussian", "distributed_dp", "oue"):
        many = repeats if protection != "distributed_dp" else 5
        found = []
        for _ in range(many):
            file = {"protection": protection, "epsilon": 1.0, "delta": DELTA, "masks": False}
            found.append(ask({**file, "questions": question}, {"x": income})["q"].estimates[0])
        errors = np.array([abs(e.value - truth) for e in found]) / 200_000
        inside = np.mean([e.low <= truth <= e.high for e in found])
        print(
            f"median of {people:,} incomes, {protection} at epsilon 1, {many} times: mean error "
            f"{errors.mean():.2%} of the range, largest {errors.max():.2%}; {inside:.0%} of the "
            "intervals hold it"
        )


FREQUENT = {
    "ask": "heavy_hitters", "column": "word", "alphabet": "0123456789", "length": 6, "most": 20,
}  # fmt: skip


def zipf_words(seed: int, clients: int, vocabulary: int) -> tuple[np.ndarray, set[str], np.ndarray]:
    """Return a word for each client, the 20 most frequent words, and the counts of all words."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, vocabulary + 1)
    names = rng.permutation(vocabulary)
    drawn = names[rng.choice(vocabulary, clients, p=weights / weights.sum())]
    counts = np.bincount(drawn, minlength=vocabulary)
    top = {f"{name:06d}" for name in np.argsort(-counts)[:20]}
    return np.char.zfill(drawn.astype(str), 6), top, counts


def two_rounds(counts: np.ndarray, epsilon: float, share: float, kept: int, seed: int) -> set[str]:
    """Return the 20 words found in two rounds, for words with the true `counts`.

    First, a `share` of the clients answers about all words. The other clients then answer about the
    `kept` most frequent words by k-ary randomized response, which has less noise for few words.
    Both estimates are weighted by their precision.
    """
    rng, grown = np.random.default_rng(seed), math.exp(epsilon)
    first = rng.binomial(counts, share)

    def shares(of: np.ndarray, clients: int, p: float, q: float) -> tuple[np.ndarray, float]:
        ones = rng.binomial(of, p) + rng.binomial(clients - of, q)
        return (ones / clients - q) / (p - q), (p - q) ** 2 * clients / (q * (1 - q))

    score, precision = shares(first, int(first.sum()), 0.5, 1 / (grown + 1))
    best = np.argpartition(-score, kept)[:kept]
    chances = grown / (grown + kept), 1 / (grown + kept)
    later = int((counts - first).sum())
    again, more = shares((counts - first)[best], later, *chances)
    joint = precision * score[best] + more * again
    return {f"{name:06d}" for name in best[np.argsort(-joint)[:20]]}


def local(clients: int = 100_000, vocabulary: int = 1_000_000, epsilon: float = 4.0) -> None:
    # The best frequency oracle: every client answers about every word, and nobody enumerates less.
    deviation = math.sqrt(4 * clients * math.exp(epsilon)) / (math.exp(epsilon) - 1)
    file = {"protection": "oue", "epsilon": epsilon, "fidelity": "aggregate"}
    for share, kept in ((0.9, 150), (0.8, 150), (0.8, 300), (0.5, 150)):
        found = []
        for seed in range(4, 14):
            _, top, counts = zipf_words(seed, clients, vocabulary)
            found.append(len(two_rounds(counts, epsilon, share, kept, seed) & top))
        print(f"two rounds, {share:.0%} first, {kept} kept: {np.mean(found):.1f} of 20", flush=True)
    for most, false_words in ((20, 0.1), (60, 0.7), (200, 0.9)):
        found, possible, false, returned = [], [], [], []
        question = {**FREQUENT, "most": most, "false_words": false_words}
        for seed in range(4, 14):
            held, top, counts = zipf_words(seed, clients, vocabulary)
            answer = ask({**file, "questions": {"w": question}, "seed": seed}, {"word": held})["w"]
            words_of = {e.label["word"] for e in answer.estimates}
            returned.append(len(words_of))
            found.append(len(words_of & top))
            false.append(sum(counts[int(word)] < 100 for word in words_of))
            noisy = counts + np.random.default_rng(seed).normal(0, deviation, vocabulary)
            possible.append(len({f"{name:06d}" for name in np.argsort(-noisy)[:most]} & top))
        print(
            f"words, oue at epsilon {epsilon:g}, most {most}, false_words {false_words:g}, ten "
            f"data sets: {np.mean(found):.1f} of the 20 most frequent ({min(found)} to "
            f"{max(found)}) among {np.mean(returned):.1f}; the best oracle {np.mean(possible):.1f} "
            f"among {most}; {np.mean(false):.1f} words of fewer than 100 clients",
            flush=True,
        )


def words(clients: int = 100_000, vocabulary: int = 1_000_000) -> None:
    held, top, _ = zipf_words(4, clients, vocabulary)
    for protection in ("central_gaussian", "distributed_dp"):
        file = {"protection": protection, "epsilon": 4.0, "delta": DELTA, "masks": False}
        begun = time.perf_counter()
        answer = ask({**file, "questions": {"w": FREQUENT}}, {"word": held})["w"]
        found = {e.label["word"] for e in answer.estimates}
        print(
            f"words, {protection} at epsilon 4: {len(found & top)} of the 20 most frequent, "
            f"{time.perf_counter() - begun:.0f} s"
        )


def correlation(clients: int = 60_000) -> None:
    rng = np.random.default_rng(3)
    x = rng.beta(2, 3, clients) * 9
    y = np.clip(0.6 * x + rng.normal(0, 1.5, clients), 0, 9)
    question = {
        "ask": "correlation", "column": "x", "range": [0.0, 9.0], "other": "y",
        "other_range": [0.0, 9.0],
    }  # fmt: skip
    print(f"correlation of {clients:,} clients: {np.corrcoef(x, y)[0, 1]:.3f}")
    for protection in ("oue", "rr"):
        for epsilon in (1.0, 2.0, 4.0):
            file = {"protection": protection, "epsilon": epsilon, "fidelity": "aggregate"}
            (e,) = ask({**file, "questions": {"r": question}}, {"x": x, "y": y})["r"].estimates
            print(
                f"  {protection}, epsilon {epsilon:g}: {e.value:.3f}, {e.low:.3f} to {e.high:.3f}"
            )


def people(rng: np.random.Generator, number: int) -> dict[str, np.ndarray]:
    group = rng.choice(["u", "v", "w"], number, p=[0.6, 0.3, 0.1])
    x = rng.beta(2, 3, number) * 10 + (group == "v")
    return {"x": x, "y": np.clip(0.7 * x + rng.normal(0, 2, number), 0, 10), "g": group}


X = {"column": "x", "range": [0.0, 10.0]}
KINDS: dict[str, dict[str, object]] = {
    "count": {"ask": "count", "where": "x > 6"},
    "histogram": {"ask": "histogram", "column": "x", "edges": [0.0, 2.0, 4.0, 7.0, 11.0]},
    "mean": {"ask": "mean", **X, "by": "g", "groups": ["v", "u"]},
    "variance": {"ask": "variance", **X},
    "quantiles": {"ask": "quantiles", **X, "at": [0.25, 0.5], "cells": 64},
    "correlation": {"ask": "correlation", **X, "other": "y", "other_range": [0.0, 10.0]},
    "contingency": {"ask": "contingency", "column": "g", "categories": ["u", "v"], "other": "x",
                    "other_edges": [0.0, 5.0, 11.0]},
}  # fmt: skip


def truths(of: dict[str, np.ndarray], clients: int) -> dict[str, list[float]]:
    x, g, scale = np.clip(of["x"], 0, 10), of["g"], clients / len(of["g"])
    cells = np.histogram(of["x"], [0, 2, 4, 7, 11])[0]
    low = of["x"] < 5
    return {
        "count": [scale * (of["x"] > 6).sum()],
        "histogram": [scale * cell for cell in cells],
        "mean": [x[g == group].mean() for group in "vu"],
        "variance": [x.var()],
        "quantiles": np.quantile(x, [0.25, 0.5]).tolist(),
        "correlation": [np.corrcoef(x, of["y"])[0, 1]],
        "contingency": [scale * ((g == a) & b).sum() for a in "uv" for b in (low, ~low)],
    }


def intervals(sets: int = 100) -> None:
    population = people(np.random.default_rng(99), 400_000)
    for protection, epsilon, clients in (
        ("not_encrypt", None, 100), ("pw_encrypt", None, 100), ("central_gaussian", 4.0, 100),
        ("distributed_dp", 4.0, 100), ("dp_encrypt", 8.0, 100), ("rr", 3.0, 2000),
        ("oue", 3.0, 2000),
    ):  # fmt: skip
        local, true = protection in ("rr", "oue"), truths(population, clients)
        file = {"protection": protection, "epsilon": epsilon, "masks": False}
        file["fidelity"] = "aggregate" if local else "per_client"
        hits: dict[str, list[bool]] = {name: [] for name in KINDS}
        for seed in range(sets):
            data = people(np.random.default_rng(1000 + seed), clients)
            for names in [[name] for name in KINDS] if local else [list(KINDS)]:
                asked = {name: KINDS[name] for name in names}
                answers = ask({**file, "questions": asked, "seed": seed}, data)
                for name in names:
                    both = zip(answers[name].estimates, true[name], strict=True)
                    hits[name] += [e.low <= value <= e.high for e, value in both]
        said = ", ".join(f"{name} {np.mean(held):.1%}" for name, held in hits.items())
        print(f"{protection}, epsilon {epsilon}, {clients:,} clients: {said}", flush=True)


def opendp(people: int = 10_000, repeats: int = 40) -> None:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    rng = np.random.default_rng(5)
    column = rng.integers(0, 50, people)
    truth = np.bincount(column, minlength=50)
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)

    def made(scale: float):  # type: ignore[no-untyped-def]
        return dp.m.make_gaussian(*space, scale=scale)

    # One row replaced moves two counts by one: a distance of the root of two.
    scale = dp.binary_search(
        lambda s: (
            dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(made(s)), DELTA).map(math.sqrt(2.0))[0]
            <= 1.0
        ),
        (0.1, 1000.0),
    )
    theirs = np.array([made(scale)(truth.tolist()) for _ in range(repeats)]) - truth
    file = {
        "protection": "central_gaussian", "epsilon": 1.0, "delta": DELTA,
        "questions": {
            "h": {"ask": "histogram", "column": "x", "edges": [float(i) for i in range(51)]}
        },
    }  # fmt: skip
    ours = []
    for _ in range(10):
        answer = ask(file, {"x": column.astype(float)})["h"]
        ours.append([e.value for e in answer.estimates] - truth)
    print(
        f"histogram of 50 cells, epsilon 1, delta {DELTA:g}: deviation a cell OpenDP "
        f"{theirs.std():.2f} (scale {scale:.2f}), central_gaussian {np.array(ours).std():.2f} rows"
    )


PARTS: dict[str, Callable[[], None]] = {
    "histogram": histogram, "sites": sites, "median": median, "words": words, "local": local,
    "correlation": correlation, "intervals": intervals,
    "opendp": opendp,
}  # fmt: skip


def main() -> None:
    """Run the named parts, or all but `opendp`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=PARTS)
    for name in parser.parse_args().parts or list(PARTS)[:-1]:
        PARTS[name]()


if __name__ == "__main__":
    main()
