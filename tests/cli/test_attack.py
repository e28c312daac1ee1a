"""`fedveil attack`: what it takes, what it writes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil.cli import attack as attack_cli
from fedveil.cli.attack_catalog import FEDERATED, VERTICAL, Attack
from fedveil.cli.exits import Exit
from fedveil.federated.job import Job
from fedveil.pages.finding_text import conclusion
from fedveil.pages.page import Picture
from fedveil.pages.run_folder_page import page_of
from fedveil.record.finding_lines import FINDINGS, read_findings
from fedveil.record.run_folder import RunFolder
from fedveil.vertical.job import VerticalJob

Command = Callable[..., tuple[int, str, str]]

SMALL = (
    "--set", "model=logistic", "--set", "clients.number=4", "--set", "clients.fraction=1",
    "--set", "training.epochs=1", "--set", "rounds=1",
)  # fmt: skip


def test_a_job_is_attacked_in_a_new_folder(command: Command, tmp_path: Path) -> None:
    asked = ("--protection", "not_encrypt", "--protection", "dp_encrypt")
    code, out, err = command("attack", "distinguish", *SMALL, *asked)
    assert code == Exit.DONE, err
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("attack-distinguish-digits-lenet-")
    found = read_findings(folder)
    assert [finding.protection for finding in found] == ["not_encrypt", "dp_encrypt"]
    assert all(f.attack == "distinguish" and f.effort == "quick" and f.seconds > 0 for f in found)
    assert out.count("at effort quick against") == 2
    end = out.splitlines()[-4:]
    assert end[0] == f"page: {folder.relative_to(tmp_path) / 'report.html'}"
    assert end[1] == f"written to {folder.relative_to(tmp_path) / FINDINGS}"
    for line, finding in zip(end[2:], found, strict=True):
        assert line == conclusion(finding)
        assert finding.protection in line
    # A folder that holds an attack holds no run.
    code, _, err = command("attack", "distinguish", str(folder))
    assert code == Exit.FAILED
    assert err == f"error: {folder} holds no finished run: it has no model.safetensors\n"
    code, _, err = command("run", "--resume", str(folder))
    assert code == Exit.FAILED
    assert (
        err == f"error: {folder} holds what attacks found of a job, and no run that could go on\n"
    )
    code, _, err = command("attack", "distinguish", *SMALL, "--out", str(folder))
    assert (code, err) == (Exit.FAILED, f"error: {folder} is not empty: name another folder\n")


def test_a_run_is_attacked_in_its_own_folder(command: Command, tmp_path: Path) -> None:
    plain = ("--set", "protection=not_encrypt")
    assert command("run", *SMALL, *plain, "--out", "mine")[0] == Exit.DONE
    for _ in range(2):
        code, _, err = command("attack", "repetition", "mine")
        assert code == Exit.DONE, err
    assert [f.attack for f in read_findings(tmp_path / "mine")] == ["repetition"] * 2
    page = (tmp_path / "mine" / "report.html").read_text()
    assert page.count("repetition at effort quick") == 2  # the page that the run left had none
    noised = ("--set", "protection=rr", "--set", "server.weighting=equal")
    code, _, err = command("attack", "repetition", "mine", *noised)
    assert code == Exit.DONE, err
    assert [f.protection for f in read_findings(tmp_path / "mine")[1:]] == ["not_encrypt", "rr"]
    code, _, err = command("attack", "membership", "mine", "--protection", "rr")
    assert code == Exit.WRONG
    assert err == (
        "error: `fedveil attack membership` attacks the final model of a run: "
        "--protection and --set are only for a job file\n"
    )
    code, _, err = command("attack", "repetition", "mine", "--out", "other")
    assert (code, err) == (
        Exit.WRONG, "error: --out is for a job file: the findings of a run are written to mine\n"
    )  # fmt: skip
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("more", [("--set", "rounds=2"), ("--protection", "rr")])
def test_a_final_model_is_attacked_as_it_is(
    more: tuple[str, str], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    code, _, err = command("attack", "membership", "run", *more)
    assert (code, "--protection and --set are only for a job file" in err) == (Exit.WRONG, True)


def test_what_is_wrong_is_said_before_anything_is_tried(command: Command, tmp_path: Path) -> None:
    code, _, err = command("attack", "gradient", "--protection", "magic")
    assert code == Exit.WRONG
    assert "protection.name = 'magic' is not one of" in err
    (tmp_path / "v.yaml").write_text("task: {name: tables}\n")
    code, _, err = command("attack", "gradient", "v.yaml")
    assert code == Exit.WRONG
    assert err.endswith("vertical job. Attack it with: fedveil attack features v.yaml\n")
    code, _, err = command("attack", "exact", *SMALL)
    assert code == Exit.FAILED
    assert err.startswith("error: the model does not begin with a dense layer, its bias and a ReLU")
    assert not (tmp_path / "runs").exists()


def test_a_vertical_run_takes_no_settings_beside_it(command: Command, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.yaml").write_text(VerticalJob().to_yaml())
    for beside, said in (
        ("--set", "--set is for a job file"),
        ("--out", "--out is for a job file"),
    ):
        code, _, err = command("attack", "features", "run", beside, "epochs=2")
        assert code == Exit.WRONG
        assert said in err


@pytest.mark.parametrize(
    ("attack", "kind", "said"),
    [
        ("gradient", VerticalJob, "vertical job. Attack its run with: fedveil attack features"),
        ("labels", Job, "federated job. Attack its run with: fedveil attack gradient"),
    ],
)
def test_a_run_of_the_other_kind_is_one_sentence(
    attack: str, kind: type[Job | VerticalJob], said: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.yaml").write_text(kind().to_yaml())
    code, _, err = command("attack", attack, "run")
    assert code == Exit.WRONG
    assert err == f"error: run/job.yaml is a {said} run\n"


def test_a_picture_never_takes_the_place_of_another(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    names = [attack_cli._keep(folder, "grid.png", b"x") for _ in range(3)]
    assert names == [f"attacks/grid{n}.png" for n in ("", "-2", "-3")]
    assert all((tmp_path / "run" / name).read_bytes() == b"x" for name in names)


@pytest.mark.parametrize("attack", [*FEDERATED, *VERTICAL])
def test_every_attack_is_there(attack: Attack) -> None:
    module = __import__(f"fedveil.attacks.{attack.home}", fromlist=["attack"])
    assert callable(module.attack)


def test_the_first_attack_of_the_readme_succeeds_and_shows_the_images(
    command: Command, tmp_path: Path
) -> None:
    code, out, err = command("attack", "gradient", "--out", "shown")
    assert code == 0, err
    reached = "an attacker could reconstruct examples with a structural similarity of 1,"
    assert f"Under not_encrypt, {reached}" in out
    assert "page: shown/report.html" in out
    assert "nan" not in out.split()
    (finding,) = read_findings(tmp_path / "shown")
    assert finding.figure("mse").value < 0.001 < finding.figure("mse").guess
    page = page_of(tmp_path / "shown")
    assert "an attacker could reconstruct examples" in page.html()
    (section,) = [part for part in page.sections if part.title == "What attacks found"]
    (picture,) = [part for part in section.parts if isinstance(part, Picture)]
    assert picture.caption.endswith("originals above, reconstructions below")
    (path,) = [line.removeprefix("picture: ") for line in out.splitlines() if "picture: " in line]
    assert (tmp_path / path).read_bytes().startswith(b"\x89PNG")
