"""A run's record in the format of the Differential Privacy Deployments Registry.

The keys under `deployment` are those of the registry (Nanayakkara, Ghazi and Vadhan, 2025,
arXiv:2509.13509).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedveil import __version__
from fedveil.pages.dossier.account import Evidence
from fedveil.pages.dossier.statements import Statement, worst
from fedveil.record.recorder import strict

_UNKNOWN = "Not stated: the run's folder does not hold it. Whoever deploys the model must add it."


def registry_record(evidence: Evidence, statements: list[Statement]) -> dict[str, Any]:
    """Return a run's record for the Differential Privacy Deployments Registry, as plain data.

    `evidence` has the run's saved results, and `statements` are the dossier's statements about the
    run. Infinity becomes a text.
    """
    said = {statement.key: statement.text for statement in statements}
    found = {
        "format": "fedveil dossier 1",
        "made_by": f"fedveil {__version__}",
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "product": _product(evidence),
            "dp_flavor": {
                "name": _flavour(evidence),
                "input_metric": "replace-one",
                "data_domain": said["unit"],
                "unprotected_quantities": said["not_covered"],
            },
            "privacy_loss": _privacy_loss(evidence, said),
            "model": _model(evidence, said),
            "accounting": {
                "post_processing": "The model and its metrics are computed from the releases.",
                "composition": said["composition"],
            },
            "implementation": {
                "pre_processing_eda_hyperparameter_tuning": _UNKNOWN,
                "mechanisms": f"{said['mechanism']} {said['randomness']} {said['side_channels']}",
                "justification": _UNKNOWN,
            },
            "resources": {"sources": "The run's folder.", "registry_authors": []},
        },
        "statements": {
            s.key: {"title": s.title, "lines": s.lines, "missing": s.missing * (not s.lines)}
            for s in statements
        },
        "accounts": [dataclasses.asdict(account) for account in evidence.accounts],
        "files": dict(evidence.files),
    }
    return dict(strict(found))


def _product(evidence: Evidence) -> dict[str, Any]:
    job = evidence.run.job
    what = "A split model" if evidence.vertical else "A model trained by federated learning"
    learnt = job["task"]["name"] if evidence.vertical else job["model"]
    return {
        "name": job["name"],
        "data_curators": [],
        "intended_use": _UNKNOWN,
        "data_product_type": "Machine learning model",
        "data_product_region": _UNKNOWN,
        "data_product_sector": _UNKNOWN,
        "description": f"{what}: {learnt}.",
        "publication_date": _UNKNOWN,
    }


def _flavour(evidence: Evidence) -> str:
    """Return the registry's name for the type of a run's guarantee, such as "Pure DP"."""
    found = worst(evidence.accounts)
    if found is None or found.epsilon == float("inf"):
        return "None"
    return "Pure DP" if found.delta == 0 else "Approximate DP"


def _privacy_loss(evidence: Evidence, said: Mapping[str, str]) -> dict[str, Any]:
    found = worst(evidence.accounts)
    if evidence.vertical:
        unit = "Example-level"
    else:
        unit = "Example-level" if evidence.run.last["unit"] == "example" else "User-level"
    numbers = {} if found is None else {"epsilon": found.epsilon, "delta": found.delta}
    return {
        "privacy_unit": unit,
        "privacy_unit_description": said["unit"],
        "privacy_parameters": numbers,
        "privacy_parameters_description": said["epsilon"],
    }


def _model(evidence: Evidence, said: Mapping[str, str]) -> dict[str, Any]:
    trusted = not evidence.vertical and bool(evidence.run.last["rests_on_server"])
    return {
        "model_name": "Central" if trusted else "Local",
        "model_name_description": "A sum of several clients' noise counts as local if the server "
        "sees only the sum.",
        "actors": said["trust"],
        "release_type": "Many releases",
        "release_type_description": said["composition"],
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }
