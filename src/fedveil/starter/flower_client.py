"""A client of a Flower app: it trains as it would without protection."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits

from fedveil.flower import ProtectMod

app = ClientApp(mods=[ProtectMod()])  # what leaves is the report of the protection alone


def examples(client: int) -> tuple[np.ndarray, np.ndarray]:
    """This client's own; here, every tenth scan."""
    x, y = load_digits(return_X_y=True)
    return x[client % 10 :: 10] / 16, y[client % 10 :: 10]


@app.train()
def train(message: Message, context: Context) -> Message:
    """Ten steps of a linear model."""
    w = message.content.array_records["arrays"]["w"].numpy().astype(np.float64)
    x, y = examples(int(context.node_config.get("partition-id", context.node_id)))
    for _ in range(10):
        p = np.exp(x @ w - (x @ w).max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        w -= 0.5 * x.T @ (p - np.eye(10)[y]) / len(y)
    arrays = ArrayRecord({"w": Array(w.astype(np.float32))})
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
