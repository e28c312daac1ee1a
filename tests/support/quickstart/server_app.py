"""The server of Flower's quickstart-pytorch. Writes the model, the reports and the epsilon."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import task
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp, strategy

from fedveil.flower import ProtectedStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy that the run configuration names."""
    config = context.run_config
    nodes = {"fraction_evaluate": 0.0, "min_train_nodes": 3, "min_available_nodes": 3}
    inner = getattr(strategy, str(config["strategy"]))(**nodes)
    outer = ProtectedStrategy(inner, run_config=config) if task.PROTECTED else inner
    start = ArrayRecord(task.network().state_dict())
    result = outer.start(grid, start, num_rounds=int(config["rounds"]), timeout=180)
    folder = Path(str(config["folder"]))
    folder.mkdir()
    for name, arrays in (("start", start), ("model", result.arrays)):
        np.savez(folder / f"{name}.npz", **{k: v.numpy() for k, v in arrays.items()})
    if task.PROTECTED:
        said = {
            "reports": [record.reports for record in outer.rounds],
            "epsilon": outer.ledger.epsilon("run", delta=1e-5),
        }
        (folder / "said.json").write_text(json.dumps(said))
