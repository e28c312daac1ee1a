"""Adapters of a language model: size, memory, and perplexity under protection.

    python benchmarks/adapters.py sizes OUT
    FEDVEIL_DATA=FOLDER python benchmarks/adapters_base.py OUT/base
    FEDVEIL_DATA=FOLDER python benchmarks/adapters.py table OUT [--seconds 240]
    FEDVEIL_DATA=FOLDER python benchmarks/adapters.py products OUT
    FEDVEIL_DATA=FOLDER python benchmarks/adapters.py phrases OUT
    FEDVEIL_DATA=FOLDER python benchmarks/adapters.py membership OUT
    python benchmarks/adapters.py shown OUT

`sizes` trains adapters of rank 8 on a GPT-2 of 355 million parameters with random weights, in a
process for each protection. It prints the bytes of a report, and the process's peak memory. `table`
adapts the small pretrained model of `adapters_base.py` to Shakespeare's plays. Each speaker with at
least six examples is a client that trains on three of them. On the fourth, the server's learning
rate is chosen, for each trained part of the model and each epsilon. No epsilon covers this choice.
The last two measure the perplexity. Clients make one step of SGD in a round, the server uses Adam.
Finished runs are saved in OUT/rows.jsonl, so that an interrupted `table` resumes.

`products` compares the mean of the adapters' factors with the mean of their products, at two rates
of the clients. `phrases` plants phrases at sixteen of twenty clients, and looks for them in the
trained model. `membership` asks for each text whether the same job was trained on it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedveil
from fedveil.data.shakespeare import speeches
from fedveil.federated.job import Job
from fedveil.learning.evaluate import score
from fedveil.learning.weight_layout import Layout

LENGTH, TRAINED, LEAST = 64, 3, 6
MEDIUM = {"n_embd": 1024, "n_layer": 24, "n_head": 16, "n_positions": 1024, "vocab_size": 50257}
PROTECTIONS: dict[str, list[str]] = {
    "not_encrypt": [],
    "dp_encrypt": [],
    "central_gaussian": ["protection.central_gaussian.target_epsilon=8"],
    "distributed_dp": ["protection.distributed_dp.target_epsilon=8"],
    "distributed_dp, bits: 4": [
        "protection.distributed_dp.target_epsilon=8", "protection.distributed_dp.bits=4",
    ],
}  # fmt: skip


# --- sizes ---


def few_tokens() -> Any:
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 50_000, (8, LENGTH + 1))
    return {"x_train": rows[:7], "x_test": rows[7:], "classes": 50_000}


def sizes(out: Path) -> None:
    folder = out / "medium"
    if not (folder / "model.safetensors").is_file():
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(1)
        GPT2LMHeadModel(GPT2Config(**MEDIUM)).save_pretrained(folder)
    print("| protection | layers | trained numbers | report, MB | memory, MB | times the base |")
    print("|---|---|---|---|---|---|")
    cases = [(name, "c_attn") for name in PROTECTIONS] + [("distributed_dp", "attn.c_proj")]
    for name, layers in cases:
        command = [sys.executable, __file__, "one", str(out), "--protection", name]
        command += ["--layers", layers]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        print(done.stdout.strip(), flush=True)


def most_memory() -> float:
    """Return the most memory that this process held, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def one(out: Path, name: str, layers: str) -> None:
    """Run one round of seven clients with one example each, and print a row of `sizes`."""
    settings = [
        f"model=hf:{out / 'medium'}", "task=next_token", "data.name=adapters:few_tokens",
        "clients={number: 7, fraction: 1.0}", "rounds=1",
        f"adapter={{kind: lora, rank: 8, targets: [{layers}]}}",
        "training={epochs: 1, batch_size: 1}", "language.recompute=true",
        "simulation.workers=0", "record.page=false", f"protection.name={name.split(',')[0]}",
        *PROTECTIONS[name],
    ]  # fmt: skip
    import peft  # noqa: F401 - counted as a library, not as the model

    torch.set_num_threads(1)
    before = most_memory()
    with tempfile.TemporaryDirectory() as folder:
        run = fedveil.simulate(Job.load(None, settings), f"{folder}/run")
    peak = most_memory()
    layout, base = Layout(run.model), sum(p.numel() for p in run.model.parameters()) * 4 / 2**20
    report = run.metrics[-1]["bytes_up_per_client"] / 1e6
    print(
        f"| {name} | {layers} | {layout.dimension:,} | {report:.2f} | {peak:,.0f}, libraries "
        f"{before:,.0f} | {peak / base:.2f}, without the libraries {(peak - before) / base:.2f} |"
    )


# --- table ---


def write_texts(out: Path) -> None:
    """Write the speakers' examples to the folders `choosing` and `measuring`, as texts.

    Both folders have the same training examples. The test examples of `choosing` are for the choice
    of the server's learning rate, and those of `measuring` for the final perplexity.
    """
    from adapters_base import text_of
    from fedveil.pretrained.model_folder import ModelFolder
    from fedveil.pretrained.token_rows import TokenRows

    rows = TokenRows(ModelFolder.of(f"hf:{out / 'base'}"), LENGTH)
    train, choosing, test = [], [], []
    for speaker, text in sorted(speeches(text_of("tinyshakespeare.txt")).items()):
        ids = rows.encode(text)
        pieces = [ids[i : i + LENGTH] for i in range(0, len(ids) - LENGTH + 1, LENGTH)]
        if len(pieces) < LEAST:
            continue
        said = [{"text": rows.decode(piece), "client": speaker} for piece in pieces]
        train += said[:TRAINED]
        choosing.append(said[TRAINED])
        test += said[TRAINED + 1 :][-2:]
    for name, held in (("choosing", choosing), ("measuring", test)):
        (out / name).mkdir(exist_ok=True)
        for part, lines in (("train", train), ("test", held)):
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (out / name / f"{part}.jsonl").write_text(text)


PARTS = {
    "adapters": ["adapter={kind: lora, rank: RANK, alpha: ALPHA, "
                 "targets: [c_attn, c_fc, c_proj]}"],
    "head": ["training.train=head"],
    "all": [],
}  # fmt: skip
#: The server's rates. The choice goes on until the best rate has a worse one on both sides.
RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
#: The rate with which the choice begins, for each part.
FIRST = {"adapters": 0.003, "head": 0.01, "all": 0.001}
EPSILONS = (None, 8.0, 2.0)
RANKS = (1, 2, 32)  # beside 8
CLIP = 0.5
ROUNDS = 8


def trained(
    out: Path,
    texts: str,
    part: str,
    epsilon: float | None,
    rate: float,
    clip: float = 0.0,
    rank: int = 8,
    rounds: int = ROUNDS,
    seed: int = 1,
) -> dict[str, Any]:
    block = "protection.distributed_dp"
    noised = [
        "protection.name=distributed_dp", "simulation.masks=false",
        f"{block}.target_epsilon={epsilon}", f"{block}.clip={clip}",
    ]  # fmt: skip
    settings = [
        f"model=hf:{out / 'base'}", "task=next_token", "data.name=text_folder",
        f"data.folder={out / texts}", "data.split=by_client", "clients.fraction=1.0",
        f"rounds={rounds}", f"seed={seed}", f"language.length={LENGTH}",
        *[s.replace("RANK", str(rank)).replace("ALPHA", str(2 * rank)) for s in PARTS[part]],
        "training={epochs: 1, batch_size: 4, lr: 1.0}",
        "server={optimizer: adam, tau: 1.0e-06}", f"server.lr={rate}",
        "simulation.workers=0", "record.page=false", f"evaluation.every={rounds}",
        "language.prompts=[\"To be, or not to be\"]",
        *([] if epsilon is None else noised),
    ]  # fmt: skip
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        job = Job.load(None, settings)
        run = fedveil.simulate(job, f"{folder}/run")
        compared = Path(folder, "run", "before-after.jsonl").read_text().splitlines()
    last = run.metrics[-1]
    return {
        "texts": texts, "part": part, "epsilon": epsilon, "rate": rate, "clip": clip, "rank": rank,
        "rounds": rounds, "seed": seed, "perplexity": last["perplexity"],
        "before": json.loads(compared[0])["before"], "numbers": Layout(run.model).dimension,
        "bytes": last["bytes_up_per_client"], "seconds": time.process_time() - began,
        "clients": last["clients"], "stated": run.ledger.epsilon("run", job.privacy.delta),
        "says": json.loads(compared[1]),
    }  # fmt: skip


def plan(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the settings of all runs. `rows` has the results of the finished runs.

    For each trained part, epsilon and rank, runs at several server learning rates come first. A run
    at the best rate then measures the perplexity. The last runs have other ranks.
    """
    arms = [(part, epsilon, 8) for epsilon in EPSILONS for part in FIRST]
    for part, epsilon, rank in [*arms, *[("adapters", 8.0, rank) for rank in RANKS]]:
        clip = 0.0 if epsilon is None else CLIP
        arm = {"part": part, "epsilon": epsilon, "rank": rank, "clip": clip}
        while (rate := next_rate(rows, arm)) is not None:
            yield {"texts": "choosing", "rate": rate} | arm
        yield {"texts": "measuring", "rate": best(tried(rows, arm))} | arm


def tried(rows: list[dict[str, Any]], arm: dict[str, Any]) -> dict[float, float]:
    """Return the perplexity at each rate that was tried for `arm`, in the folder `choosing`."""
    wanted = {"texts": "choosing"} | arm
    same = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return {row["rate"]: row["perplexity"] for row in same}


def best(found: dict[float, float]) -> float:
    """Return the server's learning rate with the lowest perplexity."""
    return min(found, key=lambda rate: math.inf if math.isnan(found[rate]) else found[rate])


def next_rate(rows: list[dict[str, Any]], arm: dict[str, Any]) -> float | None:
    """Return a rate beside the best one that was not tried for `arm`, or None if there is none."""
    found = tried(rows, arm)
    if not found:
        return FIRST[arm["part"]]
    place = RATES.index(best(found))
    beside = RATES[max(place - 1, 0) : place + 2]
    return next((rate for rate in beside if rate not in found), None)


def table(out: Path, seconds: float) -> None:
    if not (out / "measuring").is_dir():
        write_texts(out)
    torch.set_num_threads(1)
    began, file = time.perf_counter(), out / "rows.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    for settings in plan(rows):
        if any(all(row[k] == v for k, v in settings.items()) for row in rows):
            continue
        if time.perf_counter() - began > seconds:
            print("not finished: start it again")
            return
        rows.append(trained(out, **settings))
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print({k: rows[-1][k] for k in ("texts", "part", "epsilon", "rate", "clip", "rank",
                                        "perplexity", "seconds")}, flush=True)  # fmt: skip
    print("finished")


def shown(out: Path) -> None:
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    print("| trained | numbers | rank | epsilon | rate | clip | perplexity | report, KB | CPU, s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        if row["texts"] == "measuring":
            print(
                f"| {row['part']} | {row['numbers']:,} | {row['rank']} | {row['epsilon']} | "
                f"{row['rate']} | {row['clip'] or ''} | {row['perplexity']:.1f} | "
                f"{row['bytes'] / 1e3:.1f} | {row['seconds']:.0f} |"
            )
    print(f"before: {rows[0]['before']}; {rows[-1]['clients']} clients")


# --- products ---


#: The clients' rates at which the two means are compared.
PRODUCT_RATES = (0.3, 1.0)


def products(out: Path) -> None:
    """Compare the mean of the clients' factors with the mean of their products B A, in 3 rounds."""
    torch.set_num_threads(1)
    for rate in PRODUCT_RATES:
        compare_means(out, rate)


def compare_means(out: Path, rate: float) -> None:
    from fedveil.attacks.target import Target

    adapter = PARTS["adapters"][0].replace("RANK", "8").replace("ALPHA", "16")
    job = Job.load(None, [
        f"model=hf:{out / 'base'}", "task=next_token", "data.name=text_folder",
        f"data.folder={out / 'measuring'}", "data.split=by_client", f"language.length={LENGTH}",
        adapter, "training.epochs=2", "training.batch_size=2", f"training.lr={rate}",
        "clients.fraction=1.0",
    ])  # fmt: skip
    target = Target.of(job)
    layout, test = Layout(target.model), target.dataset.test
    task = fedveil.engine.assembly.make_task(job)
    weights = target.weights.copy()
    for number in (1, 2, 3):
        updates = target.updates(range(target.partition.clients), number, weights)
        mean = weights + np.mean(updates, axis=0)
        gap = whole = 0.0
        exact = {}
        for a, b in zip(layout.entries[::2], layout.entries[1::2], strict=True):
            assert "lora_A" in a.name
            assert "lora_B" in b.name

            def product(vector: Any, a: Any = a, b: Any = b) -> Any:
                left = vector[b.start : b.stop].reshape(b.tensor.shape)
                return left @ vector[a.start : a.stop].reshape(a.tensor.shape)

            of_products = np.mean([product(weights + update) for update in updates], axis=0)
            gap += np.square(of_products - product(mean)).sum()
            whole += np.square(of_products - product(weights)).sum()
            exact[a.name] = torch.from_numpy(of_products - product(mean))
        layout.write(torch.from_numpy(mean))
        factors = score(target.model, task, test.x, test.y).figures()["perplexity"]
        named = dict(target.model.named_parameters())
        with torch.no_grad():
            changed = []
            for name, change in exact.items():
                base = named[name.replace("lora_A.default", "base_layer")]
                part = 2.0 * (change if base.shape == change.shape else change.T)
                changed.append((base, base.clone()))
                base += part
            through = score(target.model, task, test.x, test.y).figures()["perplexity"]
            for base, value in changed:
                base.copy_(value)
        sent = sum(e.stop - e.start for e in layout.entries)
        dense = sum(value.numel() for value in exact.values())
        print(
            f"| {rate} | {number} | {math.sqrt(gap / whole):.4f} | {factors:.2f} | {through:.2f} | "
            f"{sent:,} | {dense:,} |",
            flush=True,
        )
        weights = mean


# --- attacks ---


def attacked(out: Path, name: str) -> None:
    """Run the attack `name` on four jobs of twenty clients. Finished jobs are not repeated."""
    from fedveil.attacks import extraction
    from fedveil.attacks.effort import Watch
    from fedveil.attacks.membership import membership
    from fedveil.attacks.target import Target

    attack = {"phrases": extraction.attack, "membership": membership.attack}[name]
    torch.set_num_threads(1)
    file = out / f"{name}.jsonl"
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    for part, epsilon in (("adapters", None), ("all", None), ("adapters", 8.0), ("all", 8.0)):
        if any(row["part"] == part and row["epsilon"] == epsilon for row in done):
            continue
        began = time.perf_counter()
        finding = attack(Target.of(attacked_job(out, part, epsilon)), "quick", Watch())
        done.append({
            "part": part, "epsilon": epsilon, "seconds": time.perf_counter() - began,
            "figures": [(f.name, f.value, f.low, f.high) for f in finding.figures],
        })  # fmt: skip
        file.write_text("".join(json.dumps(row) + "\n" for row in done))
    for row in done:
        print(row["part"], row["epsilon"], f"{row['seconds']:.0f} s")
        for figure, value, low, high in row["figures"]:
            print(f"    {figure}: {value:.3g} [{low:.3g}, {high:.3g}]")


def attacked_job(out: Path, part: str, epsilon: float | None) -> Job:
    block = "protection.distributed_dp"
    noised = ["protection.name=distributed_dp", "simulation.masks=false", f"{block}.clip=0.5",
              f"{block}.target_epsilon={epsilon}"]  # fmt: skip
    return Job.load(None, [
        f"model=hf:{out / 'base'}", "task=next_token", "data.name=text_folder",
        f"data.folder={out / 'measuring'}", "clients={number: 20, fraction: 1.0}", "rounds=6",
        f"language.length={LENGTH}",
        *[s.replace("RANK", "8").replace("ALPHA", "16") for s in PARTS[part]],
        "training={epochs: 2, batch_size: 4, lr: 0.3}",
        "server={optimizer: adam, tau: 1.0e-06, lr: 0.003}",
        *([] if epsilon is None else noised),
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    studies = ("sizes", "one", "table", "products", "phrases", "membership", "shown")
    parser.add_argument("part", choices=studies)
    parser.add_argument("out", type=Path)
    parser.add_argument("--protection", default="not_encrypt")
    parser.add_argument("--layers", default="c_attn")
    parser.add_argument("--seconds", type=float, default=math.inf)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.part == "one":
        one(given.out, given.protection, given.layers)
    elif given.part == "table":
        table(given.out, given.seconds)
    elif given.part in ("phrases", "membership"):
        attacked(given.out, given.part)
    else:
        {"sizes": sizes, "products": products, "shown": shown}[given.part](given.out)


if __name__ == "__main__":
    main()
