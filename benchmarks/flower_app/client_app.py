"""The client of benchmarks/flower.py, with a clock before and after `ProtectMod`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import task
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedveil.flower import ProtectMod

Call = Callable[[Message, Context], Message]
training_s = 0.0


def outer_clock(message: Message, context: Context, call_next: Call) -> Message:
    """Write the training time of a message, and the rest of its time, to the file `clocks`."""
    began = time.perf_counter()
    reply = call_next(message, context)
    seconds = time.perf_counter() - began
    line = {"node": context.node_id, "training_s": training_s, "rest_s": seconds - training_s}
    with Path(str(context.run_config["clocks"])).open("a") as file:
        file.write(json.dumps(line) + "\n")
    return reply


def inner_clock(message: Message, context: Context, call_next: Call) -> Message:
    """Measure the time of the app itself, for `outer_clock`."""
    global training_s
    began = time.perf_counter()
    reply = call_next(message, context)
    training_s = time.perf_counter() - began
    return reply


def choose(message: Message, context: Context, call_next: Call) -> Message:
    """Apply `ProtectMod`, except in the run without protection."""
    if context.run_config["how"] == "plain":
        return call_next(message, context)
    return protect(message, context, call_next)


protect = ProtectMod()
app = ClientApp(mods=[outer_clock, choose, inner_clock])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as Flower's quickstart does."""
    model = task.network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = task.train(model, context.node_id % 1000)
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"loss": loss, "num-examples": task.EXAMPLES}),
    }
    return Message(RecordDict(content), reply_to=message)
