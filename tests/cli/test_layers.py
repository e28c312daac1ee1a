"""`fedveil job show` says what trains each layer, as a table or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.cli.layers import show_layers
from fedveil.engine.trainer_choice import LayerTraining
from fedveil.federated.job import Job
from fedveil.starter import DEFAULT_JOB

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is native without numba")

Command = Callable[..., tuple[int, str, str]]
#: A chain with an unknown layer, on a built-in data set, whose file need not be here.
OWN = "--set", "model=curved:net", "--set", "data.name=femnist"
TABLE = """\
layer  type      weights  trained by      why not native code
0      Flatten   0        PyTorch's loop  could be native; PyTorch's loop trains it because of layer
                                          2 (Softplus)
1      Linear    7,065    PyTorch's loop  could be native; PyTorch's loop trains it because of layer
                                          2 (Softplus)
2      Softplus  0        PyTorch's loop  native code does not know Softplus
3      Linear    620      PyTorch's loop  could be native; PyTorch's loop trains it because of layer
                                          2 (Softplus)
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path) -> None:
    (tmp_path / "curved.py").write_text(
        "from torch import nn\n"
        "def net(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 9), nn.Softplus(), "
        "nn.Linear(9, 62))\n"
    )


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_the_table_is_on_standard_error_and_the_job_alone_on_standard_output(
    command: Command, tmp_path: Path
) -> None:
    code, out, err = command("job", "show", *OWN)
    assert code == 0
    assert lines(err) == lines(TABLE)
    (tmp_path / "again.yaml").write_text(out)
    assert Job.load(tmp_path / "again.yaml") == Job.load(DEFAULT_JOB, [OWN[1], OWN[3]])
    code, out, err = command("job", "show", *OWN, "--json")
    assert Job.read(json.loads(out), ()) == Job.load(DEFAULT_JOB, [OWN[1], OWN[3]])
    assert lines(err) == lines(TABLE)


def test_the_table_alone_is_the_answer_where_it_is_asked_for(command: Command) -> None:
    code, out, err = command("job", "show", "--layers", *OWN)
    assert (code, lines(out), err) == (0, lines(TABLE), "")


def test_json_has_the_facts_of_the_table(command: Command) -> None:
    code, out, err = command("job", "show", "--layers", *OWN, "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    cause = "could be native; PyTorch's loop trains it because of layer 2 (Softplus)"
    assert told[1:3] == [
        {"layer": "1", "type": "Linear", "parameters": 7065, "trained_by": "PyTorch's loop",
         "could_be_native": True, "reason": cause},
        {"layer": "2", "type": "Softplus", "parameters": 0, "trained_by": "PyTorch's loop",
         "could_be_native": False, "reason": "native code does not know Softplus"},
    ]  # fmt: skip
    assert len(told) == 4


def test_a_model_that_cannot_be_built_here_is_a_note_or_the_answers_error(command: Command) -> None:
    elsewhere = "--set", "model=elsewhere:net"
    code, out, err = command("job", "show", *elsewhere)
    assert code == 0
    assert "\nmodel: elsewhere:net\n" in out
    note, error = err.splitlines()[0], command("job", "show", "--layers", *elsewhere)
    assert note.startswith("note: the layers are not listed: model = 'elsewhere:net'")
    assert error[:2] == (1, "")
    assert note.partition("listed: ")[2] in error[2]


def test_a_job_is_shown_without_torch(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fedveil.engine.trainer_choice")
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, err = command("job", "show", *OWN)
    assert (code, err) == (0, "note: the layers are not listed: torch is not installed\n")
    assert "\nrounds: " in out
    code, out, err = command("job", "show", "--layers")
    assert (code, out) == (1, "")
    assert "pip install 'fedveil[torch]'" in err


def test_a_built_in_model_has_the_table_only_where_it_is_asked_for(command: Command) -> None:
    assert command("job", "show")[2] == ""
    assert command("job", "show", "--layers")[1].splitlines()[2].split() == [
        "1", "Linear", "7,850", "native", "code",
    ]  # fmt: skip


def test_a_long_table_has_one_line_for_layers_that_differ_in_a_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [
        LayerTraining(f"body.{i}.{name}", name.title(), 7 * (1 + (i == 5)), "nothing", None, "")
        for i in range(20)
        for name in ("first", "second")
    ]
    show_layers(found)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 40
    head = LayerTraining("12", "Linear", 9, "native code", True, "")
    show_layers([*found, head])
    _, *shown = (line.split()[:4] for line in lines(capsys.readouterr().out))
    assert shown == [
        ["body.*.first", "(19x)", "First", "7"], ["body.*.second", "(19x)", "Second", "7"],
        ["body.5.first", "First", "14", "nothing"], ["body.5.second", "Second", "14", "nothing"],
        ["12", "Linear", "9", "native"],
    ]  # fmt: skip
