"""Log lines of a vertical run's records, in the format of MindSpore Federated's log."""

from __future__ import annotations

from fedveil.record.byte_count import shown_bytes
from fedveil.record.metric_names import digits
from fedveil.record.recorder import Record


def line(record: Record) -> str:
    """Format a record of training steps, of an evaluation or of a calibration as a log line.

    A line about training steps begins with, for example, `epoch 0 step 10/43391 loss: 10.653997`.
    """
    if "calibration" in record:
        return f"epoch {record['epoch']} calibrated on {record['examples']:,} training examples"
    if "look" in record:
        shown = (
            f"{name.removeprefix('test_')} {digits(name, value)}"
            for name, value in record.items()
            if name.startswith("test_")
        )
        return f"epoch {record['epoch']} held-out examples: " + (" ".join(shown) or "sent")
    text = f"epoch {record['epoch']} step {record['step']}/{record['steps']}"
    if "loss" in record:
        text += f" loss: {record['loss']:.6f}"
    seconds = record["seconds_per_unit"]
    crossed = record["bytes_sent_per_step"] + record["bytes_received_per_step"]
    rate = f"{1 / seconds:,.0f}" if seconds else "-"
    return (
        f"{text}, {rate} {record['unit']}/s, {shown_bytes(crossed)} a step, "
        f"{record['seconds_waiting']:.2f} s waiting"
    )
