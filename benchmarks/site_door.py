"""The cost of a site's policy and account in a round, with 10,000 earlier charges.

    python benchmarks/site_door.py [--charges 10000] [--rounds 100]

A site with a strict policy and a template serves a job with every key written out. "app, once" is
the reading of an app that the site has not seen. "policy" is everything else that a message costs
before it is answered: the digest of the app, the policy's rules, the signature of one of seven
people, and the template. "charge" is the charge of a report under distributed_dp, which waits for
the disk. The training and the protection are not in these times: a client without a policy has
them too.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.engine.job_protection import make_protection
from fedveil.federated.job import Job
from fedveil.flower.job.deploy import deployable, write_app
from fedveil.flower.job.signing_key_file import make_identity
from fedveil.privacy.gaussian_curve import epsilon_for
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.site.account import Limits, Release
from fedveil.site.door import Charges, Door
from fedveil.site.order import sign
from fedveil.site.site_folder import Site, create

JOB = {
    "name": "heart", "rounds": 400, "model": "logistic", "server": {"weighting": "equal"},
    "clients": {"number": 7, "fraction": 1.0},
    "protection": {"name": "distributed_dp",
                   "distributed_dp": {"active_security": True, "noise_multiplier": 900.0}},
}  # fmt: skip


def site_with(folder: Path, charges: int) -> tuple[Site, bytes]:
    """Return a site with `charges` earlier charges, and the archive of a signed app."""
    app, house = folder / "app", folder / "site"
    write_app(app, deployable(Job(**JOB)))
    ada = make_identity(folder / "ada.pem")
    sign(app, folder / "ada.pem")
    create(house)
    (house / "template.yaml").write_bytes((app / "job.yaml").read_bytes())
    others = [Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex() for _ in range(6)]
    people = {**{f"p{n}": key for n, key in enumerate(others)}, "ada": ada}
    policy = {
        "people": people, "starters": ["ada"], "jobs": {"template": "template.yaml"},
        "data": {"heart": {"named": "digits"}}, "servers": {"study": {}},
        "epsilon": {"run": 1e3, "month": 1e3, "ever": 1e3},
    }  # fmt: skip
    (house / "policy.yaml").write_text(yaml.safe_dump(policy))
    site = Site.open(house)
    write_charges(site, charges)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as files:
        for path in app.iterdir():
            files.writestr(path.name, path.read_bytes())
    return site, out.getvalue()


def write_charges(site: Site, charges: int) -> None:
    wait, os.fsync = os.fsync, lambda descriptor: None  # type: ignore[assignment]
    account, free = site.account("heart"), Limits(month=None)
    for n in range(charges):
        ratio = 900.0 + n % 5
        loss = PrivacyLoss(epsilon_for(ratio, 1e-12), 1e-12, release=Gaussian(ratio))
        account.charge(Release(f"job {n % 37}", "a report", "dp_encrypt", [(loss, 1)]), limit=free)
    os.fsync = wait


def timed(what: str, work: Callable[[], object], times: int) -> None:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - start))
    middle = statistics.median(taken)
    print(f"| {what} | {middle:.1f} | {max(taken):.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--charges", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    print("| part of a message | median, ms | longest, ms |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        site, app = site_with(Path(folder), options.charges)
        with site.log("study") as log:
            door = Door(site, "study", log)
            timed("app, once", lambda: Door(site, "study", log).order(app), options.rounds)
            order = door.order(app)
            timed("policy", lambda: door.member(app), options.rounds)
            protection = make_protection(order.job, 650)
            charges = Charges(site.account("heart"), site.policy, order, "study")
            timed("charge", lambda: charges.charge(protection, {}), options.rounds)


if __name__ == "__main__":
    main()
