"""EmbeddingDP under a language model whose text stays at home: the loss of the first 100 steps."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.evidence import SEEDS, decided, seeded, with_interval, within
from experiments.experiment import Experiment, NewPart, Outcome, Scale, Tell, Verdict
from experiments.saved_results import kept
from fedveil.base.files import write_whole
from fedveil.base.untrusted import MOST_LINES_BYTES, MOST_STATE_BYTES, read_bytes, read_text
from fedveil.data.data_folders import find
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.table import Table
from fedveil.record.run_folder import METRICS, MODEL
from fedveil.vertical.job import VerticalJob

EPS = 5.0
PLAIN, PROTECTED, APART, PLAIN_APART = "plain", "eps-5", "eps-5-apart", "plain-apart"
#: The runs by name: `privacy.embedding_dp`, and whether there are two processes.
RUNS: Mapping[str, tuple[dict[str, float] | None, bool]] = {
    PLAIN: (None, False),
    PROTECTED: ({"eps": EPS}, False),
    APART: ({"eps": EPS}, True),
    PLAIN_APART: (None, True),
}
#: The source's logs, every tenth step: 003, and without protection the README of its example.
SOURCE: Mapping[str, Sequence[float]] = {
    PLAIN: (10.616087, 10.424824, 10.209235, 9.950026, 9.712448, 9.557744, 9.501564, 9.326054,
            9.387547, 8.795234),
    PROTECTED: (10.653997, 10.570406, 10.470503, 10.242296, 9.970814, 9.735226, 9.594692, 9.340107,
                9.356388, 8.797981),
    APART: (10.669225, 10.571924, 10.440327, 10.253876, 9.958257, 9.704673, 9.543740, 9.376131,
            9.376905, 8.766671),
}  # fmt: skip
_SAID = {
    PLAIN: "no protection, one process", PROTECTED: "eps 5, one process",
    APART: "eps 5, two processes", PLAIN_APART: "no protection, two processes",
}  # fmt: skip
_EVERY, _POINTS = 10, 10
#: Largest difference from the source's share of the fall that counts as equally small.
_NEAR = 0.1
#: A run whose loss falls by a smaller share learnt nothing. The source's falls by 17%.
_LEAST_FALL = 0.05
#: The text: the available parts of WikiText-2. The source uses Wikipedia.
_TEXTS = ("wikitext2-valid.txt", "wikitext2-test.txt")


@dataclass(frozen=True)
class Settings:
    """`task.pangu` without its text, the batch, and the job's other settings."""

    pangu: Mapping[str, int | str]
    batch_size: int = 2
    optimizer: Mapping[str, float] = field(default_factory=dict)
    steps: int = _EVERY * _POINTS

    def job(self, embedding_dp: object, text: Path, windows: int = 0, seed: int = 0) -> VerticalJob:
        """Return a run's job, with enough epochs for `self.steps` steps.

        `windows` is the number of windows of text in an epoch. If it is 0, there is one epoch.
        """
        epochs = math.ceil(self.steps * self.batch_size / windows) if windows else 1
        return VerticalJob.model_validate(
            {
                "name": "pangu-embedding-dp",
                "seed": seed,
                "task": {"name": "pangu", "pangu": {**self.pangu, "text": str(text)}},
                "epochs": epochs,
                "batch_size": self.batch_size,
                "optimizer": dict(self.optimizer),
                "privacy": {"embedding_dp": embedding_dp},
                "evaluation": {"every_epochs": None},
                "record": {"every_steps": 1},
                "checkpoint": {"every_steps": 50},
            }
        )


#: `full` is the source's example as in its scripts: mode 350M, batches of 2.
FULL = Settings(
    {"preset": "350M", "layers": 16, "width": 1280, "heads": 32, "context": 1024,
     "vocabulary": 40_000},
    optimizer={"lr": 1e-4, "warmup_steps": 2000},
)  # fmt: skip
SMALL = Settings({"preset": "small", "context": 128})


@dataclass(frozen=True)
class Run:
    """A run: the loss of each step, digests of the parties' models, bytes per step, and seconds."""

    losses: Sequence[float]
    models: Mapping[str, str]
    bytes_a_step: float
    seconds: float

    @property
    def tens(self) -> list[float]:
        """The mean loss of every ten steps."""
        return [mean(self.losses[i : i + _EVERY]) for i in range(0, len(self.losses), _EVERY)]


@dataclass(frozen=True)
class Text:
    """Facts about the text. `frequencies` is the loss of a model that knows only frequencies."""

    source: str
    bytes: int
    windows: int
    tokens: int
    frequencies: float


class ProtectedLanguage(Experiment):
    """The language model with EmbeddingDP and without, in one process and in two."""

    name = "pangu-embedding-dp"
    what = (
        "The loss of a language model's first 100 steps under EmbeddingDP, in one process and two."
    )
    source = "003, the PanGu-alpha example, and its README for the figures without protection"

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds of all runs, from those of a step on one machine."""
        return len(SEEDS) * len(RUNS) * SMALL.steps * {"small": 0.8, "full": 59.0}[scale]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Run the four runs of every seed, one after the other."""
        settings = self._settings or {"small": SMALL, "full": FULL}[scale]
        text = kept(folder, "text", Text, partial(_text, settings, folder, tell))
        runs: dict[str, list[Run]] = {name: [] for name in RUNS}
        for seed in SEEDS:
            for name, (embedding_dp, two) in RUNS.items():
                job = settings.job(embedding_dp, folder / "text.txt", text.windows, seed)
                make = partial(_run, job, name, two, settings.steps, folder, tell)
                runs[name].append(kept(folder, seeded(name, seed), Run, make))
        floor = text.frequencies
        judged = [*verdicts(runs, floor)]
        return Outcome(
            _ran(settings, text), judged, [_table(runs)], [_plot(runs, floor)], seeds=len(SEEDS)
        )


def _text(settings: Settings, folder: Path, tell: Tell) -> dict[str, Any]:
    """Write enough text for the steps to `text.txt`. Returns facts about the text."""
    from fedveil.language import text
    from fedveil.vertical.job_split import make_task

    tell(NewPart("text: as much as a hundred steps need"))
    files = [path for name in _TEXTS if (path := find("text", name)) is not None]
    texts = [b"".join(text.read(file)) for file in (files or (None,))]
    whole = b"".join(texts)
    needed = settings.steps * settings.batch_size
    job = settings.job(None, folder / "text.txt")
    size = 4 * needed * int(settings.pangu["context"])
    while True:
        write_whole(folder / "text.txt", whole[: whole.find(b"\n", size) + 1] or whole)
        labels = make_task(job).owned("leader", "train").labels
        assert labels is not None, "the leader has the labels"
        if len(labels) >= needed or size >= len(whole):
            break
        size = math.ceil(1.02 * size * needed / max(len(labels), 1))
    count = Counter(labels.flatten().tolist())
    shares = [number / count.total() for number in count.values()]
    used = (folder / "text.txt").stat().st_size
    names = [file.stem for file in files[: 1 if used <= len(texts[0]) else None]]
    source = " and ".join(names) or "Python's documentation topics"
    return {
        "source": source, "bytes": used, "windows": len(labels),
        "tokens": len(count), "frequencies": -sum(p * math.log(p) for p in shares),
    }  # fmt: skip


def _run(
    job: VerticalJob, name: str, two: bool, steps: int, folder: Path, tell: Tell
) -> dict[str, Any]:
    from experiments.two_processes import apart, together
    from fedveil.vertical.job_split import make_task

    tell(NewPart(f"{_SAID[name]}, seed {job.seed}"))
    own = folder / seeded(name, job.seed)
    task = make_task(job)
    parties = [task.leader, *task.followers]
    if two:
        own.mkdir(exist_ok=True)
        write_whole(own / "job.yaml", job.to_yaml().encode())
        apart(own / "job.yaml", task.leader, task.followers, own)
        places = {party: own / party / party for party in parties}
    else:
        together(job, own)
        places = {party: own / party for party in parties}
    lines = read_text(places[task.leader] / METRICS, MOST_LINES_BYTES).splitlines()
    records = [record for record in map(json.loads, lines) if "loss" in record][:steps]
    crossed = [r["bytes_sent_per_step"] + r["bytes_received_per_step"] for r in records]
    models = {
        p: hashlib.sha256(read_bytes(at / MODEL, MOST_STATE_BYTES)).hexdigest()
        for p, at in places.items()
    }
    took = sum(record["seconds_per_unit"] for record in records) * task.units_per_example
    return {
        "losses": [record["loss"] for record in records], "models": models,
        "bytes_a_step": mean(crossed), "seconds": took * job.batch_size,
    }  # fmt: skip


def _ran(settings: Settings, text: Text) -> str:
    from fedveil.language.transformer import PRESETS

    sizes = vars(PRESETS[str(settings.pangu["preset"])]) | dict(settings.pangu)
    model = ", ".join(f"{sizes[key]:,} {name}" for key, name in (
        ("layers", "layers"), ("width", "numbers per token"), ("heads", "heads"),
        ("context", "tokens per window"), ("vocabulary", "tokens in the vocabulary")))  # fmt: skip
    rate = settings.optimizer.get("lr")
    schedule = (
        "the task's default for that width, with a warm-up"
        if rate is None
        else f"{rate:g} after {settings.optimizer.get('warmup_steps', 0)} steps"
    )
    return (
        f"The model has {model}. Batches have {settings.batch_size} windows, as in the source. The "
        f"learning rate is {schedule}. The text is {text.bytes:,} bytes of {text.source}: "
        f"{text.windows} windows with {text.tokens:,} different tokens. The source uses "
        f"Wikipedia, which was not available. Its mode 350M has 16 layers, 1,280 numbers per "
        f"token, 32 heads, 1,024 tokens per window, and 40,000 tokens in the vocabulary. Its "
        f"learning rate is 1e-4 after 2,000 steps. It has dropout, which is missing here. So only "
        f"the distances between the curves can be compared. Two processes are `fedveil vertical "
        f"leader` and `follower` over mutual TLS on a loopback address. A loss here is the mean "
        f"of ten steps; the source's logs state every tenth step of one run."
    )


def gap(one: Sequence[float], other: Sequence[float], plain: Sequence[float]) -> float:
    """Return the mean distance of the curve `one` above the curve `other`, as a share of a fall.

    The fall is the first value of the curve `plain` minus its last value.
    """
    above, fall = mean(a - b for a, b in zip(one, other, strict=True)), plain[0] - plain[-1]
    return above / fall if fall else math.inf


def apart_by(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the mean distance of two curves."""
    return mean(abs(a - b) for a, b in zip(one, other, strict=True))


def verdicts(runs: Mapping[str, Sequence[Run]], frequencies: float) -> Iterator[Verdict]:
    """Compare the source's logs with ours. `runs` has a run for each seed, in the same order.

    `frequencies` is as in `_text`.
    """
    ours = {name: [run.tens for run in of_seeds] for name, of_seeds in runs.items()}
    for name in (PLAIN, PROTECTED, APART):
        theirs, mine = SOURCE[name], ours[name]
        falls, unsure = decided([curve[0] - curve[-1] for curve in mine], slack=0.0)
        ends = (with_interval([curve[at] for curve in mine]) for at in (0, -1))
        yield Verdict.of(
            falls, f"the loss falls: {_SAID[name]}",
            f"{theirs[0]:.3f} to {theirs[-1]:.3f}", " to ".join(ends),
            held_to="the mean of the first ten steps minus that of the last ten, seed by seed: the "
            "interval lies above 0",
            same="it falls from the loss of a guess among all tokens", other="it does not fall",
            nothing=_idle(ours, name) or unsure,
        )  # fmt: skip
    yield _cost(ours, frequencies)
    yield _distance(ours)
    yield _equal(runs, ours)


def _cost(ours: Mapping[str, Sequence[Sequence[float]]], frequencies: float) -> Verdict:
    cost = gap(SOURCE[PROTECTED], SOURCE[PLAIN], SOURCE[PLAIN])
    pairs = zip(ours[PROTECTED], ours[PLAIN], strict=True)
    our_costs = [gap(protected, plain, plain) for protected, plain in pairs]
    if math.inf in our_costs:
        near, unsure, shown = False, "", "the loss does not fall without protection"
    else:
        near, unsure = within([each - cost for each in our_costs], _NEAR)
        shown = with_interval(our_costs)
    learnt = _learnt(mean(curve[-1] for curve in ours[PLAIN]), frequencies)
    return Verdict.of(
        near,
        f"what eps {EPS:g} costs: its additional loss, as a share of the fall without protection",
        f"{cost:.3f}", shown,
        held_to=f"the interval lies within {_NEAR:g} of the source's share",
        same="the cost is small, because the signs of a vector carry most of its information even "
        f"if 1 in 13 is flipped; {learnt}",
        other=f"models of other sizes learn differently in these few steps; {learnt}",
        nothing=_idle(ours, PLAIN, PROTECTED) or unsure,
    )  # fmt: skip


def _distance(ours: Mapping[str, Sequence[Sequence[float]]]) -> Verdict:
    far = apart_by(SOURCE[PROTECTED], SOURCE[APART])
    our_far = [apart_by(*pair) for pair in zip(ours[PROTECTED], ours[APART], strict=True)]
    bound = max(2 * far, 0.01)
    near, unsure = within(our_far, bound)
    return Verdict.of(
        near, f"eps {EPS:g}, one process and two: how far apart",
        f"{far:.3f}", with_interval(our_far), held_to=f"the interval ends at most at {bound:.3f}",
        same="the runs draw different noise",
        other="more than the noise explains", nothing=_idle(ours, PROTECTED, APART) or unsure,
    )  # fmt: skip


def _equal(
    runs: Mapping[str, Sequence[Run]], ours: Mapping[str, Sequence[Sequence[float]]]
) -> Verdict:
    pairs = [*zip(runs[PLAIN], runs[PLAIN_APART], strict=True)]
    same = all(one.models == other.models for one, other in pairs)
    equal = all(list(one.losses) == list(other.losses) for one, other in pairs)
    return Verdict.of(
        same and equal, "no protection, one process and two",
        "similar losses (fedveil promises equal bytes)",
        f"{'the same' if equal else 'other'} losses, {'the same' if same else 'other'} weights",
        held_to="equal bytes, for every seed",
        same="every step is the same computation, wherever a party runs",
        other="a party in its own process computed something different",
        nothing=_idle(ours, PLAIN, PLAIN_APART),
    )  # fmt: skip


def _idle(curves: Mapping[str, Sequence[Sequence[float]]], *names: str) -> str:
    """Return a sentence that names the runs whose loss hardly fell, or an empty one."""
    found = [
        f"{_SAID[name]} ({curve[0]:.3f} to {curve[-1]:.3f})"
        for name in names
        for curve in curves[name]
        if curve[-1] > (1 - _LEAST_FALL) * curve[0]
    ]
    least = f"the loss falls by less than {_LEAST_FALL:.0%}, as if nothing was learnt: "
    return f"{least}{', '.join(found)}" if found else ""


def _learnt(loss: float, frequencies: float) -> str:
    if loss >= frequencies:
        return (
            f"the final loss, {loss:.2f}, is not below the {frequencies:.2f} of word frequencies, "
            f"which need no vectors"
        )
    return f"the final loss, {loss:.2f}, is below the {frequencies:.2f} of word frequencies alone"


def _means(runs: Sequence[Run]) -> list[float]:
    """Return the mean curve of `runs`, which have different seeds."""
    return [mean(values) for values in zip(*(run.tens for run in runs), strict=True)]


def _table(runs: Mapping[str, Sequence[Run]]) -> Table:
    columns = ["step"]
    curves: list[Sequence[float]] = []
    for name in SOURCE:
        columns += [f"{_SAID[name]}: the source", "here"]
        curves += [SOURCE[name], _means(runs[name])]
    rows = [
        (str(_EVERY * (i + 1)), *(f"{curve[i]:.3f}" for curve in curves))
        for i in range(1, min(map(len, curves)), 2)
    ]
    seconds = "; ".join(
        f"{_SAID[name]}, {mean(run.seconds / len(run.losses) for run in of_seeds):.2f} s and "
        f"{mean(run.bytes_a_step for run in of_seeds):,.0f} bytes"
        for name, of_seeds in runs.items()
    )
    return Table(columns, rows, f"Losses of the steps. A step took and sent: {seconds}.")


def _plot(runs: Mapping[str, Sequence[Run]], frequencies: float) -> Plot:
    x = [float(_EVERY * (i + 1)) for i in range(_POINTS)]
    means = {name: _means(of_seeds) for name, of_seeds in runs.items() if name != PLAIN_APART}
    curves = [Curve(_SAID[name], x[: len(y)], y) for name, y in means.items()]
    curves += [Curve(f"the source: {_SAID[name]}", x, y, dashed=True) for name, y in SOURCE.items()]
    ends = [x[0], x[-1]]
    curves.append(Curve("word frequencies alone", ends, [frequencies] * 2, dashed=True))
    return Plot("loss", "The first hundred steps", Axis("step"), Axis("loss"), curves)
