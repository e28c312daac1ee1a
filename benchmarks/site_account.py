"""A site's account after 10,000 charges: the time to open it, and the time of one more charge.

    python benchmarks/site_account.py [--charges 10000]

Each case writes an account with the given number of charges, without waiting for the disk. A new
process then opens it, and charges 50 more, each of which waits for the disk. The clock of "opened"
starts after the imports. The cases differ in the charges:

    one noise     one Gaussian loss
    five kinds    three Gaussians, a sampled Gaussian (a table of losses) and a pure loss
    all differ    as many Gaussian losses as charges, half of them with a stated epsilon
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fedveil.privacy.gaussian_curve import epsilon_for
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.privacy.sampled_gaussian import SampledGaussian
from fedveil.site.account import Limits, Release, SiteAccount

KEY = bytes(range(32))
DELTA = 1e-6
MORE = 50
JOBS = 37


def noisy(ratio: float, stated: bool = True) -> PrivacyLoss:
    epsilon, delta = (epsilon_for(ratio, DELTA / 1e6), DELTA / 1e6) if stated else (float("inf"), 1)
    return PrivacyLoss(epsilon, delta, release=Gaussian(ratio))


FIVE = [
    noisy(900.0), noisy(1200.0), noisy(2500.0), PrivacyLoss(1e-4),
    PrivacyLoss.of_release(SampledGaussian(3.0, 1e-4)),
]  # fmt: skip
CASES: dict[str, Callable[[int], PrivacyLoss]] = {
    "one noise": lambda n: FIVE[0],
    "five kinds": lambda n: FIVE[n % 5],
    "all differ": lambda n: noisy(900.0 + n / 7, stated=n % 2 == 0),
}


def charge(account: SiteAccount, loss: PrivacyLoss, n: int) -> None:
    released = Release(f"job {n % JOBS}", f"report {n}", "dp_encrypt", [(loss, 1)])
    account.charge(released, limit=Limits(run=1e3, month=1e3, ever=1e3, delta=DELTA))


def write(folder: Path, case: str, charges: int) -> None:
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    account = SiteAccount.open(folder, "a", key=KEY, counter=folder / "c")
    free = Limits(month=None, delta=DELTA)
    for n in range(charges):
        released = Release(f"job {n % JOBS}", f"report {n}", "dp_encrypt", [(CASES[case](n), 1)])
        account.charge(released, limit=free)


def measure(folder: Path, case: str, charges: int) -> None:
    losses = [CASES[case](charges + n) for n in range(MORE)]
    noisy(3.0)  # imports scipy
    start = time.perf_counter()
    account = SiteAccount.open(folder, "a", key=KEY, counter=folder / "c")
    opened = time.perf_counter() - start
    times = []
    for n, loss in enumerate(losses):
        start = time.perf_counter()
        charge(account, loss, charges + n)
        times.append(time.perf_counter() - start)
    size = account_bytes(folder) / 1e6
    print(
        f"| {case} | {opened:.2f} | {1e3 * times[0]:.0f} | "
        f"{1e3 * statistics.median(times[1:]):.1f} | {1e3 * max(times[1:]):.1f} | {size:.1f} |",
        flush=True,
    )


def account_bytes(folder: Path) -> int:
    return (folder / "a.account").stat().st_size


def alone(work: Callable[..., None], *args: object) -> None:
    process = multiprocessing.get_context("spawn").Process(target=work, args=args)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--charges", type=int, default=10_000)
    charges = parser.parse_args().charges
    print("| charges | opened, s | first charge, ms | median, ms | longest, ms | file, MB |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            alone(write, Path(folder), case, charges)
            alone(measure, Path(folder), case, charges)


if __name__ == "__main__":
    main()
