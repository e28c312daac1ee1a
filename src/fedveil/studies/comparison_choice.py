"""Recommends a protection after a comparison, and warns if the guarantees are not equal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from fedveil.engine.candidates import GAUSSIAN, OTHERS
from fedveil.federated.job import Job
from fedveil.pages.guarantee_text import listed
from fedveil.pages.page import Fact
from fedveil.pages.run_summary import TONES
from fedveil.privacy.guarantee_strength import Figure, epsilon_text
from fedveil.privacy.loss import format_delta, format_epsilon
from fedveil.protections.catalog import POSITIONS
from fedveil.record.metric_names import best, deciding, digits, word
from fedveil.studies.better_than_guessing import guessing, has_learnt
from fedveil.studies.comparison_table import Line, assumed

#: The epsilons of a comparison that names none.
EPSILONS = (2.0, 8.0)
_HELP = "More clients, `privacy.unit: example` or a model with fewer weights help."


def side_by_side(job: Job) -> list[str]:
    """Return the names of the protections that a comparison has by default.

    These are `not_encrypt`, all protections with a guarantee, and the job's own protection.
    `pw_encrypt` is omitted, because it adds the same noise as `central_gaussian`.
    """
    built_in = ("not_encrypt", *(name for name in (*GAUSSIAN, *OTHERS) if name != "pw_encrypt"))
    return list(dict.fromkeys((*built_in, job.protection.name)))


def decides_cost(key: str) -> bool:
    """Return True if a job key decides a protection's epsilon, such as its noise multiplier."""
    for position in POSITIONS.values():
        cost = position.cost_key(position.settings_type())
        if cost is not None:
            names = (cost.parameter, *cost.instead)
            if key in [f"protection.{position.block}.{name}" for name in names]:
                return True
    return False


def unequal(found: Sequence[Line]) -> str | None:
    """Return a warning if settings have different finite epsilons, or None.

    `found` has one `Line` of results per setting.
    """
    spent = [line.spent("run_every_round") for line in found if line.setting.epsilon is None]
    finite = {epsilon_text(*figure) for figure in spent if figure and math.isfinite(figure.epsilon)}
    solved = {line.setting.epsilon for line in found} - {None}
    if not finite or len(finite) + len(solved) < 2:
        return None
    return (
        "The promises are unequal, so the accuracies do not compare: each setting has its own "
        "epsilon. `--epsilons 2,8` makes them equal."
    )


def choice(found: Sequence[Line]) -> Fact | None:
    """Return a card for the page that recommends a protection at each target epsilon.

    Of the protections under which the model learns, the best that needs no trusted server is
    recommended or, if all need a trusted server, the best of all. Returns None if no setting has a
    target epsilon. `found` has one `Line` of results per setting.
    """
    bare = [line for line in found if line.setting.position == "not_encrypt" and _whole(line)]
    levels = sorted({line.setting.epsilon for line in found if line.setting.epsilon is not None})
    words, values = [], []
    for epsilon in levels:
        lines = [line for line in found if line.setting.epsilon == epsilon and _whole(line)]
        if not lines:
            words.append(f"At epsilon {format_epsilon(epsilon)}, no run has a result.")
            continue
        able = [line for line in lines if has_learnt(line, bare[0] if bare else None)]
        if not able:
            words.append(_none(_best(lines), epsilon, bare[0] if bare else None))
            continue
        apart = [line for line in able if not _trusts(line)]
        taken = _best(apart or able)
        values.append((taken, epsilon))
        words.append(_sentence(taken, able, epsilon) + _unsure(taken, apart or able))
    if not levels:
        return None
    if bare:
        words.append(f"Without protection: {_reached(bare[0])}.")
    words += filter(None, [assumed([line for line, _ in values])])
    if not values:
        results = any(_whole(line) for line in found if line.setting.epsilon is not None)
        value = "none of these" if results else "no result"
        return Fact("Which to take", value, " ".join(words), "poor")
    taken, epsilon = values[0]
    spent = taken.spent("run_every_round")
    tone = TONES[spent.promise] if spent is not None else ""
    value = f"{taken.setting.position} at epsilon {format_epsilon(epsilon)}"
    return Fact("Which to take", value, " ".join(words), tone)


def _sentence(taken: Line, lines: Sequence[Line], epsilon: float) -> str:
    text = (
        f"{_level(taken, epsilon)}, take {taken.setting}: {_reached(taken)}. Its promise holds "
        f"against {_against(taken)}."
    )
    if not _improved(taken):
        text += (
            " It is no better than after its first test, so these clients are too few for this "
            f"epsilon. {_HELP}"
        )
    first = _best(lines)
    if first is not taken and _reached(first) != _reached(taken):
        text += f" {first.setting.position} reaches {_reached(first)}, but trusts the server."
    return text


def _none(nearest: Line, epsilon: float, bare: Line | None) -> str:
    """Return the sentences for an epsilon at which even the best line, `nearest`, only guesses.

    `bare` is the line without protection, or None.
    """
    why = f"These clients are too few for this epsilon. {_HELP}"
    if bare is not None and not has_learnt(bare, bare):
        why = "The model does not learn without protection either: change its training first."
    return (
        f"{_level(nearest, epsilon)}, take none of these: no model is much better than guessing. "
        f"The best is that of {nearest.setting.position}, with {_reached(nearest)} "
        f"({guessing(nearest)}). {why}"
    )


def _level(line: Line, epsilon: float) -> str:
    """Return the start of a sentence about one target epsilon, and about a line that meets it."""
    spent = line.spent("run_every_round") or Figure(epsilon, 0.0)
    return (
        f"At epsilon {format_epsilon(epsilon)} and delta {format_delta(spent.delta)} "
        f"({spent.promise})"
    )


def _unsure(taken: Line, lines: Sequence[Line]) -> str:
    """Return a sentence if the seeds do not show that `taken` is the best of `lines`, or ""."""
    others = [line for line in lines if line is not taken]
    if len(_values(taken)) == 1:
        return " With one seed, its lead over the others may be chance." if others else ""
    alike = [str(replace(o.setting, epsilon=None)) for o in others if _overlap(o, taken)]
    if not alike:
        return ""
    return f" Its lead over {listed(alike)} may be chance: the results of the seeds overlap."


def _overlap(a: Line, b: Line) -> bool:
    """Return True if the ranges of two lines' results over the seeds have a value in common."""
    least, most = (side(end(_values(a)), end(_values(b))) for side, end in ((max, min), (min, max)))
    return least <= most


def _whole(line: Line) -> bool:
    values = _values(line)
    return bool(values) and not line.lost and all(map(math.isfinite, values))


def _values(line: Line) -> list[float]:
    return line.last(deciding(line.runs[0].last)[0]) if line.runs else []


def _best(lines: Sequence[Line]) -> Line:
    means = [statistics.fmean(_values(line)) for line in lines]
    better = deciding(lines[0].runs[0].last)[1]
    return lines[means.index(best(means, better))]


def _improved(line: Line) -> bool:
    """Return True if the runs' mean metric is better in the last test than in the first.

    Also returns True if every run was tested only once.
    """
    name, better = deciding(line.runs[0].last)
    each = [run.figures(name)[1] for run in line.runs]
    before, after = (statistics.fmean(one[place] for one in each) for place in (0, -1))
    return all(len(one) < 2 for one in each) or (
        after != before and best([before, after], better) == after
    )


def _reached(line: Line) -> str:
    name = deciding(line.runs[0].last)[0]
    return f"{word(name)} {digits(name, statistics.fmean(_values(line)))}"


def _trusts(line: Line) -> bool:
    return any(run.last.get("rests_on_server") for run in line.runs)


def _against(line: Line) -> str:
    switch = line.runs[0].job["protection"]
    position = POSITIONS.get(str(switch["name"]))
    if position is None:
        return "those that the protection names"
    return position.against(position.settings_type(**switch.get(position.block, {})))
