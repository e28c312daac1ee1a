"""Label counts and property inference from single reports (docs/attacks/classes.md).

    FEDVEIL_DATA=FOLDER python benchmarks/attack_classes.py [--effort quick] [--only digits]

digits: multinomial regression, 30 clients of about 48 examples. MNIST: LeNet, 1,000 clients of 60
examples. Clients have unequal shares of the classes (Dirichlet, alpha 0.5). They take one step over
all their examples or, in the rows of five epochs, many steps of 10. Takes 10 minutes of one core.
"""

from __future__ import annotations

import argparse
import time
import warnings

import torch

from fedveil.attacks.class_shares import attack
from fedveil.attacks.effort import Watch
from fedveil.attacks.target import Target
from fedveil.errors import FedveilWarning
from fedveil.federated.job import Job
from fedveil.privacy import epsilon_text
from fedveil.privacy.finding import EFFORTS
from row_choice import chosen

ONE_STEP = ("training={epochs: 1, batch_size: 1000, lr: 0.1}",)
EPOCHS = ("training={epochs: 5, batch_size: 10, lr: 0.1}",)
UNEQUAL = ("data.split=dirichlet", "data.alpha=0.5")
DATA = {
    "digits": ("data.name=digits", "model=logistic", "clients={number: 30, fraction: 1.0}"),
    "MNIST": ("data.name=mnist", "model=lenet", "clients={number: 1000, fraction: 0.01}"),
}
#: The sums of secure aggregation are those of four clients.
FOUR = "reconstruct_secrets_threshold=4"
ROWS = {
    "not_encrypt, one step": (*ONE_STEP, "protection.name=not_encrypt"),
    "not_encrypt, five epochs": (*EPOCHS, "protection.name=not_encrypt"),
    **{
        f"{name}, one step": (*ONE_STEP, f"protection.name={name.partition(' ')[0]}", *settings)
        for name, settings in {
            "pw_encrypt": (f"protection.pw_encrypt.{FOUR}",),
            "distributed_dp target_epsilon 8": (
                f"protection.distributed_dp.{FOUR}", "protection.distributed_dp.target_epsilon=8",
            ),
            "central_gaussian target_epsilon 8": ("protection.central_gaussian.target_epsilon=8",),
            "dp_encrypt dp_eps 50": ("protection.dp_encrypt.dp_eps=50",),
            "dp_encrypt dp_eps 1": ("protection.dp_encrypt.dp_eps=1",),
            "signds sign_eps 100 sign_k 0.1": ("protection.signds.sign_k=0.1",),
            "signds sign_eps 1 sign_k 0.1": (
                "protection.signds.sign_k=0.1", "protection.signds.sign_eps=1",
            ),
            "rr eps 4.8": ("protection.unary.eps=4.8",),
            "oue eps 4.8": ("protection.unary.eps=4.8",),
        }.items()
    },
}  # fmt: skip
SHOWN = (
    "labels counted, median client", "clients with all counts right",
    "property balanced accuracy", "property AUC",
)  # fmt: skip


def main() -> None:
    """Print a line for each dataset and protection."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--effort", default="quick", choices=EFFORTS)
    parser.add_argument("--only", default="", help="rows whose name starts with this")
    arguments = parser.parse_args()
    jobs = {
        f"{data}, {name}": [*job, *UNEQUAL, *changes]
        for data, job in DATA.items()
        for name, changes in ROWS.items()
    }
    names = chosen(parser, jobs, arguments.only)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FedveilWarning)
    print(
        f"| job, effort {arguments.effort} | epsilon of a report | {' | '.join(SHOWN)} | seconds |"
    )
    print("|---" * (3 + len(SHOWN)) + "|")
    for name in names:
        began = time.monotonic()
        target = Target.of(Job.load(None, jobs[name]))
        finding = attack(target, arguments.effort, Watch())
        figures = {figure.name: figure for figure in finding.figures}
        cells = [str(figures[shown]).removeprefix(shown) for shown in SHOWN]
        spent = epsilon_text(finding.epsilon, finding.delta)
        taken = f"{time.monotonic() - began:.0f}"
        print(f"| {name} | {spent} |{' |'.join(cells)} | {taken} |", flush=True)


if __name__ == "__main__":
    main()
