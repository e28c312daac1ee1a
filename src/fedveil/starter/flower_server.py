"""The server of a Flower app: its strategy sees averaged updates alone."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedveil.flower import ProtectedStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The rounds, and what they have cost."""
    strategy = ProtectedStrategy(FedAvg(fraction_evaluate=0.0), run_config=context.run_config)
    start = ArrayRecord({"w": Array(np.zeros((64, 10), np.float32))})
    rounds = int(context.run_config["rounds"])
    result = strategy.start(grid, start, num_rounds=rounds)
    np.save("model.npy", result.arrays["w"].numpy())
    print("epsilon of the run:", strategy.ledger.epsilon("run", delta=1e-5))
