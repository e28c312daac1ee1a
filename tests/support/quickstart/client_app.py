"""The client of Flower's quickstart-pytorch, protected by one line."""

from __future__ import annotations

import task
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedveil.flower import ProtectMod

app = ClientApp(mods=[ProtectMod()] if task.PROTECTED else [])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this client's digits, near the server's model if its strategy is FedProx."""
    model = task.network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = task.digits(int(context.node_config["partition-id"]))
    mu = float(message.content["config"].get("proximal-mu", 0.0))
    loss = task.train(model, x, y, mu)
    metrics = {"train_loss": loss, "num-examples": len(x)}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)
