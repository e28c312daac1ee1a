"""The server of benchmarks/flower.py. Writes the rounds' seconds to the file that the run names."""

from __future__ import annotations

import json
import time
from pathlib import Path

import task
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from fedveil.flower import ProtectedStrategy

app = ServerApp()

SETTINGS = {
    "dp_encrypt": {},
    "signds": {},
    "rr": {},
    "oue": {},
    "pw_encrypt": {"reconstruct_secrets_threshold": 2, "share_secrets_ratio": 1.0},
}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds one by one and time each."""
    config = context.run_config
    how, clients = str(config["how"]), int(config["clients"])
    strategy: Strategy = FedAvg(
        fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
    )
    if how != "plain":
        strategy = ProtectedStrategy(strategy, protection=how, **SETTINGS[how])
    while len(list(grid.get_node_ids())) < clients:
        time.sleep(0.2)
    arrays = ArrayRecord(task.network().state_dict())
    seconds, bytes_up = [], []
    for _ in range(int(config["rounds"])):
        began = time.perf_counter()
        arrays = strategy.start(grid, arrays, num_rounds=1, timeout=120).arrays
        seconds.append(time.perf_counter() - began)
        if how != "plain":
            record = strategy.rounds[-1]
            assert record.reports == clients, str(record)
            bytes_up.append(record.bytes_up / clients)
    result = {"how": how, "seconds": seconds, "bytes_up": bytes_up}
    Path(str(config["result"])).write_text(json.dumps(result))
