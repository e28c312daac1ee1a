"""The Flower app that a job is written to."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from fedveil.cli.main import app as cli
from fedveil.errors import DeploymentError, JobError
from fedveil.federated.job import Job
from fedveil.flower.job.app_folder import read_job
from fedveil.flower.job.deploy import deployable, write_app
from flower_parts import app_of, job


def fedveil_command(*words: str) -> Any:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


@pytest.mark.parametrize(
    "name", ["small", "Ein Lauf (2. Versuch)", "~", "7" * 90, f"{'cut after a hyphen':x<31} y"]
)
def test_flower_takes_the_app_as_it_is(tmp_path: Path, name: str):
    folder, deployed = app_of(tmp_path / "app", job(name=name))
    config, warnings = load_and_validate(folder / "pyproject.toml")
    assert warnings == []
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?", config["project"]["name"])
    assert config["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "server_app:app",
        "clientapp": "client_app:app",
    }
    bundle = build_fab_from_disk(folder)
    for file in (b"job.yaml", b"client_app.py", b"server_app.py", b"parts.py"):
        assert file in bundle
    assert read_job(folder) == deployed


def test_the_apps_code_is_a_few_lines(tmp_path: Path):
    folder, _ = app_of(tmp_path / "app", job())
    for name in ("server_app.py", "client_app.py"):
        source = (folder / name).read_text()
        compile(source, name, "exec")
        assert len(source.splitlines()) < 10
    dependencies = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [re.split(r"[\[=>]", entry)[0] for entry in dependencies] == ["flwr", "fedveil"]


def test_reports_draw_from_the_system_whatever_the_job_says():
    for randomness in ("seeded", "secure"):
        settings = job(privacy={"randomness": randomness})
        assert deployable(settings).privacy.randomness == "secure"
        assert deployable(settings, seeded=True).privacy.randomness == "seeded"
    assert deployable(job()).model_copy(update={"privacy": job().privacy}) == job()


def test_as_many_clients_as_the_data_has_owners():
    settings = job(clients={"number": None}, data={"name": "parts:data", "split": "by_client"})
    assert deployable(settings).clients.number == 8


def test_a_fault_plan_is_refused():
    with pytest.raises(DeploymentError, match="is a fault plan of the simulator"):
        deployable(job(simulation={"dropouts": {"masked": 0.5}}))


def test_an_existing_file_is_never_overwritten(tmp_path: Path):
    folder, _ = app_of(tmp_path / "app", job())
    app_of(tmp_path / "app", job())  # writing the same app again changes nothing
    with pytest.raises(DeploymentError, match=r"already holds job.yaml with other content"):
        app_of(tmp_path / "app", job(seed=1))
    assert read_job(folder).seed == 0
    (tmp_path / "taken" / "job.yaml").mkdir(parents=True)
    with pytest.raises(DeploymentError, match=r"already holds job.yaml with other content"):
        app_of(tmp_path / "taken", job())
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["job.yaml"]


def test_a_package_travels_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "travelling"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "deep" / "__init__.py").write_text("")
    (package / "deep" / "nets.py").write_text("from parts import plain as net\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    write_app(tmp_path / "app", deployable(job(model="travelling.deep.nets:net")))
    assert (
        tmp_path / "app/travelling/deep/nets.py"
    ).read_text() == "from parts import plain as net\n"
    with pytest.raises(DeploymentError, match="nowhere:net: there is no module nowhere, neither"):
        write_app(tmp_path / "other", deployable(job(model="nowhere:net")))
    assert not (tmp_path / "other").exists()
    sys.modules.pop("travelling.deep.nets", None)


def test_an_own_module_takes_the_place_of_no_file_of_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "client_app.py").write_text("def net(*args): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "client_app", raising=False)
    with pytest.raises(DeploymentError, match=r"own module client_app\.py has the name"):
        write_app(tmp_path / "app", deployable(job(model="client_app:net")))
    monkeypatch.delitem(sys.modules, "client_app")
    assert not (tmp_path / "app").exists()


def test_the_command(tmp_path: Path):
    target = tmp_path / "app"
    (tmp_path / "job.yaml").write_text("rounds: 2")
    result = fedveil_command("deploy", str(target), str(tmp_path / "job.yaml"))
    assert result.exit_code == 0
    assert "next: flwr run" in result.stdout
    assert "a report reveals its client's number of examples" in result.stderr
    assert read_job(target) == deployable(Job(rounds=2))
    result = fedveil_command("deploy", str(tmp_path / "b"), "--seeded", "--set", "protection=rr")
    assert "anyone who can read the job can remove the protection" in result.stderr
    assert "number of examples" not in result.stderr


def test_the_readme_has_a_node_of_the_most_clients(tmp_path: Path):
    app_of(tmp_path / "one", job())
    app_of(tmp_path / "four", job(deployment={"clients_per_node": 4}))
    for name, configuration in (("one", "'client=0'"), ("four", "'clients=\"0-3\"'")):
        readme = (tmp_path / name / "README.md").read_text()
        assert "SuperNodes for the 6 clients" in readme
        assert f"--node-config {configuration} " in readme


def test_the_app_of_a_language_model_needs_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = deployable(job())
    for name, language in (("plain", False), ("language", True)):
        monkeypatch.setattr(Job, "has_language_model", language)
        write_app(tmp_path / name, settings)
        project = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())["project"]
        extras = "torch,flower,language" if language else "torch,flower"
        assert project["dependencies"][1].startswith(f"fedveil[{extras}]==")


def test_active_security_comes_with_a_roster_to_fill_in(tmp_path: Path):
    settings = (
        "protection=pw_encrypt",
        "protection.pw_encrypt.active_security=true",
        "clients.fraction=1.0",
    )
    words = [word for setting in settings for word in ("--set", setting)]
    fedveil_command("deploy", str(tmp_path / "app"), *words)
    assert "fedveil identity" in (tmp_path / "app/roster.yaml").read_text()
    result = fedveil_command("identity", str(tmp_path / "me.pem"))
    assert re.fullmatch(r"[0-9a-f]{64}\n", result.stdout)


def test_a_job_reveals_what_it_may(tmp_path: Path):
    assert job(deployment={"reveal": ["examples"]}).deployment.reveal == ["examples"]
    with pytest.raises(JobError, match=r"deployment.reveal = 'loss' is not a list of examples"):
        job(deployment={"reveal": ["loss"]})
    with pytest.raises(JobError, match=r"deployment.start_clients = 7 is outside \[1, 6\]"):
        job(deployment={"start_clients": 7})
