"""Flower's quickstart on real SuperNodes, protected, beside the same app in clear."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from folders import EXAMPLES

pytest.importorskip("flwr")

sys.path.append(str(EXAMPLES / "flower"))
from loopback import Loopback

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]

APP = Path(__file__).parents[1] / "support" / "quickstart"
LIMIT_S = 300.0
#: A window in which no client drops out of these rounds.
WINDOW = {"cipher_time_window": 120_000, "reconstruct_secrets_threshold": 2}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with Loopback(tmp_path_factory.mktemp("quickstart"), 3, secured=True) as loopback:
        loopback.start_superlink()
        for number in range(3):
            loopback.start_node(number, f"partition-id={number}")
        yield loopback


def ended(
    federation: Loopback, folder: Path, strategy: str, rounds: int, protection: dict[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Run the app, and return its last model, and what the strategy says if it is protected."""
    app, out = folder / "app", folder / "out"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    (app / "pyproject.toml").write_text(project(strategy, rounds, protection))
    assert federation.run(app, out).wait(LIMIT_S) == 0
    said = json.loads((out / "said.json").read_text()) if protection else {}
    with np.load(out / "model.npz") as model:
        return dict(model), said


def project(strategy: str, rounds: int, protection: dict[str, Any]) -> str:
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in protection.items())
    block = f"[tool.flwr.app.config.fedveil]\n{keys}" if protection else ""
    return (
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "quickstart"\nversion = "1.0.0"\nlicense = {text = "none"}\n'
        'dependencies = ["flwr", "fedveil[torch,flower]"]\n'
        '[tool.flwr.app]\npublisher = "quickstart"\n'
        '[tool.flwr.app.components]\nserverapp = "server_app:app"\nclientapp = "client_app:app"\n'
        f'[tool.flwr.app.config]\nfolder = ""\nstrategy = "{strategy}"\nrounds = {rounds}\n{block}'
    )


def differences(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> np.ndarray:
    assert one.keys() == other.keys()
    return np.concatenate([(one[name] - other[name]).ravel() for name in one]).astype(np.float64)


def test_fedadam_under_pw_encrypt_ends_where_the_app_does(
    federation: Loopback, tmp_path: Path
) -> None:
    """Only the rounding of updates to multiples of 1.5e-5 separates the two models."""
    clear, _ = ended(federation, tmp_path / "clear", "FedAdam", 2, {})
    settings = {"protection": "pw_encrypt", **WINDOW}
    protected, said = ended(federation, tmp_path / "protected", "FedAdam", 2, settings)
    assert said["reports"] == [3, 3]
    apart = np.abs(differences(protected, clear))
    assert 0 < apart.max() < 1e-2
    with np.load(tmp_path / "clear" / "out" / "start.npz") as start:
        moved = np.abs(differences(clear, dict(start)))
    assert np.median(moved) > 3e-2


def test_fedprox_under_distributed_dp_differs_from_the_app_by_its_noise(
    federation: Loopback, tmp_path: Path
) -> None:
    clear, _ = ended(federation, tmp_path / "clear", "FedProx", 1, {})
    settings = {
        "protection": "distributed_dp", **WINDOW, "clip": 20.0, "noise_multiplier": 1.5,
        "dropout_tolerance": 0.0,
    }  # fmt: skip
    protected, said = ended(federation, tmp_path / "protected", "FedProx", 1, settings)
    assert said["reports"] == [3]
    assert 0.1 < said["epsilon"] < 20
    noise = differences(protected, clear)
    expected = 1.5 * 2 * 20.0 / 3  # the mean of three reports
    # 650 normal numbers: their sample deviation is within 15% but for 1e-7 of all cases.
    assert noise.std() == pytest.approx(expected, rel=0.15)
