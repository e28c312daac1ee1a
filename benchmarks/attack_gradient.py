"""Gradient inversion of MNIST images, without protection and under each protection.

    FEDVEIL_DATA=FOLDER python benchmarks/attack_gradient.py [--effort quick] [--pictures FOLDER]
    FEDVEIL_DATA=FOLDER python benchmarks/attack_gradient.py --peer FOLDER

Each job has a row with the medians over the attacked images, the share of their labels that were
recovered, with 95% intervals, and the result of guessing: the mean training image and the most
common label. The attack must reach fixed limits in the first row, without protection. `--part` is
plain, positions or all. `--peer` compares with the package breaching instead, installed in the
given folder (it needs only torch, SciPy and omegaconf), at its own defaults for `deepleakage` and
`invertinggradients`. `quick` takes about ten minutes of one core. The peer takes 11 and 130 seconds
per image.
"""

from __future__ import annotations

import argparse
import sys
import time
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedveil.attacks.attack_randomness import generator
from fedveil.attacks.effort import Effort, Watch
from fedveil.attacks.gradient.inversion import Sight, attack, bounds
from fedveil.attacks.gradient.reconstruction import reconstruct
from fedveil.attacks.target import Target
from fedveil.federated.job import Job
from fedveil.privacy.finding import EFFORTS, Finding, Measured
from fedveil.privacy.loss import format_epsilon
from figures import Figure, show

HEAD = (
    "| job | MSE | PSNR | SSIM | labels | found by | epsilon | seconds |\n"
    "|---|---|---|---|---|---|---|---|"
)
#: Rows without protection: name -> changes to the job of one image and one step.
PLAIN = {
    "1 image, 1 step": [],
    "1 image, 5 steps": ["training.epochs=5"],
    "1 image, 1 step, lenet": ["model=lenet"],
    "4 images, 1 step": ["clients.number=15000"],
    "4 images, 5 steps of all": ["clients.number=15000", "training.epochs=5"],
    "4 images, 4 steps of 2": [
        "clients.number=15000",
        "training.epochs=2",
        "training.batch_size=2",
    ],
}
#: Batches of the network that `attack_steal.py` inverts exactly, attacked here by optimisation.
PLAIN |= {
    f"{count} images, 1 step, mlp": [
        "model=mlp",
        f"clients.number={60_000 // count}",
        f"clients.fraction={4 * count / 60_000}",
    ]
    for count in (5, 10, 15)
}
#: The protections with their settings.
POSITIONS = {
    **{
        f"{name}, eps {e}": [f"protection={name}", f"protection.{name}.target_epsilon={e}"]
        for name in ("distributed_dp", "central_gaussian")
        for e in (8, 100_000)
    },
    "dp_encrypt, eps 1": ["protection=dp_encrypt", "protection.dp_encrypt.dp_eps=1"],
    "dp_encrypt, eps 50": ["protection=dp_encrypt", "protection.dp_encrypt.dp_eps=50"],
    "dp_encrypt, eps 1,000": ["protection=dp_encrypt", "protection.dp_encrypt.dp_eps=1000"],
    "dp_encrypt, eps 100,000": ["protection=dp_encrypt", "protection.dp_encrypt.dp_eps=100000"],
    "signds, eps 1": ["protection=signds", "protection.signds.sign_eps=1"],
    "signds, eps 100": ["protection=signds", "protection.signds.sign_eps=100"],
    "rr, eps 0.5": ["protection=rr", "protection.unary.eps=0.5"],
    "rr, eps 5": ["protection=rr", "protection.unary.eps=5"],
    "oue, eps 0.5": ["protection=oue", "protection.unary.eps=0.5"],
    "oue, eps 5": ["protection=oue", "protection.unary.eps=5"],
    "pw_encrypt, cohort 4": ["protection=pw_encrypt"],
    "pw_encrypt, cohort 16": ["protection=pw_encrypt", "clients.fraction=0.000266"],
    "pw_encrypt, cohort 50": ["protection=pw_encrypt", "clients.fraction=0.000833"],
}


def target(overrides: list[str]) -> Target:
    """Return an attack's target: a job with one image per client, one step and cohorts of four.

    The model is that of the DLG paper. `overrides` change the job.
    """
    base = [
        "data.name=mnist",
        "model=lenet_smooth",
        "clients.number=60000",
        "clients.fraction=0.0000666",
        "training.epochs=1",
        "protection.pw_encrypt.reconstruct_secrets_threshold=2",
        "protection.distributed_dp.reconstruct_secrets_threshold=3",
        "protection.distributed_dp.dropout_tolerance=0",
    ]
    return Target.of(Job.load(None, [*base, *overrides]))


def row(name: str, finding: Finding, seconds: float) -> str:
    """Return a line of the table: the job's name, its finding and the seconds."""

    def cell(figure: Measured) -> str:
        text = f"{figure.value:.3g}"
        if np.isfinite(figure.low):
            text += f" [{figure.low:.2g}, {figure.high:.2g}]"
        return text + f" ({figure.guess:.2g})"

    cells = [cell(finding.figure(which)) for which in ("mse", "psnr", "ssim", "label accuracy")]
    by = ", ".join(f"{how} {count}" for how, count in finding.settings["found by"].items())
    rest = [by, format_epsilon(finding.epsilon), f"{seconds:.0f}"]
    return "| " + " | ".join([name, *cells, *rest]) + " |"


def floors(finding: Finding) -> Iterator[Figure]:
    """Yield the results that must meet a limit: those of an attack on one unprotected image."""
    yield Figure("median MSE, 1 image", finding.figure("mse").value, "", at_most=0.01)
    labels = finding.figure("label accuracy").value
    yield Figure("labels recovered, 1 image", labels, "", at_least=1)


def _keep(kept: dict[str, bytes], name: str, data: bytes) -> str:
    kept[name] = data
    return name


def table(rows: dict[str, list[str]], effort: Effort, pictures: Path | None) -> dict[str, Finding]:
    """Attack the job of each row, and print the row. Returns the findings.

    `rows` maps a row's name to changes of the job. `pictures` is a folder for images, if given.
    """
    found = {}
    for name, overrides in rows.items():
        began = time.monotonic()
        kept: dict[str, bytes] = {}
        watch = Watch(picture=partial(_keep, kept))
        found[name] = attack(target(overrides), effort, watch)
        print(row(name, found[name], time.monotonic() - began), flush=True)
        print(f"  {name}: {found[name].saw}", file=sys.stderr, flush=True)
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            for data in kept.values():
                slug = "-".join("".join(c if c.isalnum() else " " for c in name).split())
                (pictures / f"gradient-{slug.lower()}.png").write_bytes(data)
    return found


def peer(folder: Path, cases: int, effort: Effort, others: list[str]) -> None:
    """Compare breaching's attacks with ours on the same exact gradients."""
    for part in ("", ".cases", ".cases.models"):  # its __init__ asks for torchvision and hydra
        package = types.ModuleType("breaching" + part)
        package.__path__ = [str(folder / ("breaching" + part).replace(".", "/"))]
        sys.modules[package.__name__] = package
    sys.path.append(str(folder))
    aimed = target([])
    sight = Sight(aimed, bounds(effort))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("fedveil", *others)}
    for view, _ in zip(sight.views(), range(cases), strict=False):
        original = aimed.dataset.train.x[aimed.rows(view.clients[0])].astype(np.float64)
        for name, errors in found.items():
            began = time.process_time()
            if name == "fedveil":
                draw = generator(0, "peer")
                x = reconstruct(view.reading, view.known, bounds(effort).searches, draw).examples
            else:
                x = _by_breaching(folder, name, view)
            error = float(np.mean((sight.scaled(x) - sight.scaled(original)) ** 2))
            errors.append((error, time.process_time() - began))
            print(f"  {name}: MSE {error:.3g}, {errors[-1][1]:.0f} s", file=sys.stderr, flush=True)
    for name, errors in found.items():
        mse, seconds = np.median(np.array(errors), axis=0)
        print(f"{name:<20} median MSE {mse:.3g} of {len(errors)} images, {seconds:.0f} s each")


def _by_breaching(folder: Path, name: str, view: Any) -> np.ndarray:
    """Run one of breaching's attacks at its defaults.

    Breaching's total variation penalty needs images with three channels. So the attack
    `invertinggradients` seeks a colour image, and the model sees the mean of the channels.
    """
    import breaching.attacks
    from omegaconf import OmegaConf

    training, channels = view.known.training, 3 if name == "invertinggradients" else 1

    class Grey(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = training.model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x.mean(1, keepdim=True))

    settings = folder / "breaching/config/attack"
    own = OmegaConf.load(settings / f"{name}.yaml")
    own.pop("defaults")
    config = OmegaConf.merge(OmegaConf.load(settings / "_default_optimization_attack.yaml"), own)
    model = Grey().eval()
    gradient = torch.from_numpy(-view.reading.estimate / training.plan.lr).float()
    metadata = {"shape": [channels, 28, 28], "modality": "vision"}
    metadata |= {"task": "classification", "classes": 10}
    metadata |= {"mean": [0.5] * channels, "std": [0.5] * channels}
    payload = {
        "parameters": [p.detach() for p in model.parameters()],
        "buffers": [],
        "metadata": OmegaConf.create(metadata),
    }
    about = {"num_data_points": 1, "labels": None, "local_hyperparams": None}
    shared = {"gradients": training.layout.views(gradient), "buffers": None, "metadata": about}
    setup = {"dtype": torch.float, "device": torch.device("cpu")}
    torch.manual_seed(0)
    loss = torch.nn.CrossEntropyLoss()
    attacker = breaching.attacks.prepare_attack(model, loss, config, setup)
    found, _ = attacker.reconstruct([payload], [shared], {})
    return found["data"].detach().mean(1, keepdim=True).double().numpy()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--effort", choices=EFFORTS, default="quick")
    parser.add_argument("--part", choices=("plain", "positions", "all"), default="all")
    parser.add_argument("--rows", default="", help="only rows whose name contains this text")
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--peer-cases", type=int, default=3)
    parser.add_argument("--peer-attacks", nargs="+", default=["deepleakage", "invertinggradients"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peer is not None:
        peer(options.peer, options.peer_cases, options.effort, options.peer_attacks)
        return 0
    rows = (PLAIN if options.part != "positions" else {}) | (
        POSITIONS if options.part != "plain" else {}
    )
    if options.rows in rows:
        rows = {options.rows: rows[options.rows]}
    rows = {name: overrides for name, overrides in rows.items() if options.rows in name}
    print(HEAD, flush=True)
    found = table(rows, options.effort, options.pictures)
    first = next(iter(PLAIN))
    return show(floors(found[first])) if first in found else 0


if __name__ == "__main__":
    sys.exit(main())
