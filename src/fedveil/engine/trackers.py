"""Callbacks for MLflow and Weights & Biases: log the job's settings and every round's metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from fedveil.engine.callbacks import Beginning, Callback
from fedveil.errors import MissingExtra
from fedveil.record.recorder import Record


class MLflow(Callback):
    """Logs to MLflow. Without $MLFLOW_TRACKING_URI it writes to the run's folder."""

    def __init__(self) -> None:
        try:
            import mlflow
        except ImportError:
            raise MissingExtra("mlflow", "trackers", "record.callbacks") from None
        self._mlflow: Any = mlflow

    def begin(self, run: Beginning) -> None:
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            self._mlflow.set_tracking_uri(f"sqlite:///{(run.folder / 'mlflow.db').resolve()}")
        self._mlflow.set_experiment(run.job.name)
        self._mlflow.start_run(run_name=run.folder.name)
        self._mlflow.log_params(dict(_flat(run.job.model_dump(mode="json"))))

    def round(self, record: Record) -> None:
        self._mlflow.log_metrics(_figures(record), step=record["round"])

    def end(self, run: Any) -> None:
        self._mlflow.end_run("KILLED" if run is None else "FINISHED")


class WandB(Callback):
    """Logs to Weights & Biases. Without $WANDB_MODE it writes to the run's folder."""

    def __init__(self) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtra("wandb", "trackers", "record.callbacks") from None
        self._wandb: Any = wandb
        self._run: Any = None

    def begin(self, run: Beginning) -> None:
        self._run = self._wandb.init(
            project=run.job.name,
            name=run.folder.name,
            dir=str(run.folder),
            config=run.job.model_dump(mode="json"),
            mode=os.environ.get("WANDB_MODE") or "offline",
            settings=self._wandb.Settings(silent=True),
        )

    def round(self, record: Record) -> None:
        self._run.log(_figures(record), step=record["round"])

    def end(self, run: Any) -> None:
        if self._run is not None:
            self._run.finish(exit_code=int(run is None))


def _figures(record: Record) -> dict[str, float]:
    numbers = {k: v for k, v in record.items() if isinstance(v, int | float) and k != "round"}
    return {name: float(value) for name, value in numbers.items()}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)
