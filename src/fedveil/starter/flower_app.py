"""A Flower app: clients train as usual, and the server receives only protected updates."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits

from fedveil.flower import ProtectedStrategy, ProtectMod

client = ClientApp(mods=[ProtectMod()])  # only the protection's report is sent
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train ten steps of a linear model on this client's examples, and return the weights.

    Here, the examples are a tenth of scikit-learn's digits.
    """
    w = message.content.array_records["arrays"]["w"].numpy().astype(np.float64)
    mine = int(context.node_config.get("partition-id", context.node_id)) % 10
    x, y = (part[mine::10] for part in load_digits(return_X_y=True))
    for _ in range(10):
        scores = x / 16 @ w
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        w -= 0.5 * (x / 16).T @ (p - np.eye(10)[y]) / len(y)
    arrays = ArrayRecord({"w": Array(w.astype(np.float32))})
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and print their privacy cost."""
    strategy = ProtectedStrategy(FedAvg(fraction_evaluate=0.0), run_config=context.run_config)
    start = ArrayRecord({"w": Array(np.zeros((64, 10), np.float32))})
    result = strategy.start(grid, start, num_rounds=int(context.run_config["rounds"]))
    np.save("model.npy", result.arrays["w"].numpy())
    print("epsilon of the run:", strategy.ledger.epsilon("run", delta=1e-5))
