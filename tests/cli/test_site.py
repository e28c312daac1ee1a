"""`fedveil site`: a new site's folder, and a job against its policy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedveil.site.policy import Policy
from fedveil.site.site_folder import Site
from flower_parts import app_of
from site_parts import policy_of, study, write_policy

Command = Callable[..., tuple[int, str, str]]


def test_a_new_site_is_private_and_refuses_a_study(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("site", "init", "north", "--json")
    made: dict[str, Any] = json.loads(out)
    assert code == 0
    assert len(made["public"]) == 64
    assert {path.name: path.stat().st_mode & 0o777 for path in Path("north").iterdir()} == {
        "policy.yaml": 0o600, "identity.pem": 0o600, "account.key": 0o600,
    }  # fmt: skip
    assert Path("north").stat().st_mode & 0o777 == 0o700
    wrote, public = command("site", "init", "south")[1].splitlines()
    assert wrote == "wrote south/policy.yaml"
    assert public.startswith("this site's public key, for the studies' rosters: ")
    assert len(public.rpartition(" ")[2]) == 64
    assert command("site", "init", "north")[0] == 1
    app, _ = app_of(tmp_path / "app", study())
    code, out, err = command("site", "check", "north", str(app))
    assert code == 1
    assert "digest " in out
    assert "the job is neither in jobs.digests nor signed by one of jobs.signed_by" in err
    assert "no job may train yet" in err


def test_a_job_is_accepted_by_its_digest_or_a_signature(command: Command, tmp_path: Path) -> None:
    app, _ = app_of(tmp_path / "app", study())
    command("site", "init", "north")
    write_policy(Path("north"), policy_of(app))
    code, out, _ = command("site", "check", "north", str(app))
    assert (code, "north accepts" in out) == (0, True)
    number = study().clients.number
    assert number is not None
    servers = {"one": {"client": number - 1}, "two": {"client": number}}
    write_policy(Path("north"), policy_of(app, servers=servers))
    code, _, err = command("site", "check", "north", str(app))
    assert (code, "not from one" in err) == (0, False)
    assert f"not from two: this site is client {number}, but the job has only {number} cl" in err
    write_policy(Path("north"), policy_of(app))
    # The job's file alone has the digest of the deployed job.
    (tmp_path / "study.yaml").write_text(study().to_yaml())
    assert command("site", "check", "north", "study.yaml")[0] == 0
    public = json.loads(command("identity", "ada.pem", "--json")[1])["public"]
    signed = policy_of(people={"ada": public}, starters=["ada"], jobs={"signed_by": ["ada"]})
    write_policy(Path("north"), signed)
    assert command("site", "check", "north", str(app))[0] == 1
    code, out, _ = command("site", "sign", str(app), "--key", "ada.pem", "--json")
    assert (code, json.loads(out)) == (0, {"wrote": str(app / "signature.yaml")})
    again = command("site", "sign", str(app), "--key", "ada.pem")
    assert again[:2] == (0, f"wrote {app / 'signature.yaml'}\n")
    assert command("site", "check", "north", str(app))[0] == 0


def test_the_digest_of_own_code_is_printed_and_permits_it(command: Command) -> None:
    command("site", "init", "north")
    Path("north", "code").mkdir()
    Path("north", "code", "heart_net.py").write_text("def net(): pass\n")
    asked = study(
        model="heart_net:net", privacy={"randomness": "secure"}, deployment={"answer_s": 90.0}
    )
    Path("study.yaml").write_text(asked.to_yaml())
    code, out, err = command("site", "check", "north", "study.yaml")
    said = dict(line.split()[-2:] for line in out.splitlines() if ":" in line)
    assert (code, list(said)) == (1, ["heart_net:"])
    assert "heart_net:net, which is not in code.modules" in err
    keys = policy_of(Path("study.yaml"), clear={"answer_after_s": 5.0})
    keys["data"]["heart"]["reader"] = "parts:data"
    keys["code"] = {"modules": {"heart_net": said["heart_net:"]}, "isolation": "weak"}
    write_policy(Path("north"), keys)
    assert command("site", "check", "north", "study.yaml")[0] == 0


def test_each_module_of_a_job_is_printed_with_its_digest(command: Command) -> None:
    command("site", "init", "north")
    Path("north", "code").mkdir()
    for name in ("heart_net", "heart_rules"):
        Path("north", "code", f"{name}.py").write_text(f"def net(): return {name!r}\n")
    Path("study.yaml").write_text(study(model="heart_net:net", task="heart_rules:Own").to_yaml())
    _, out, _ = command("site", "check", "north", "study.yaml")
    said = dict(line.split()[1:] for line in out.splitlines() if line.startswith("code "))
    assert list(said) == ["heart_net:", "heart_rules:"]
    assert len({*said.values()}) == 2


READERS = """
import numpy as np

def some(n=7, wrong=(), labels=(0, 1, 2)):
    x = np.linspace(0, 1, 64 * n, dtype=np.float32).reshape(n, 64)
    x[list(wrong)] = np.nan
    y = np.array(labels)[np.arange(n) % len(labels)]
    return x, y, np.ones((3, 64), np.float32), np.array([0, 1, 2])

def heart():
    return some()

def lungs():
    return some(2)

def halves():
    return some(labels=(0.5, 1.5))

def holes():
    return some(wrong=(2, 5))

def nothing_but_holes():
    return some(wrong=range(7))

def words():
    return some(labels=("ill", "well"))

def sentences():
    return {"x_train": np.ones((4, 9), int), "x_test": np.ones((2, 9), int)}

def empty():
    return some(0)

def raising():
    raise KeyError("patient 4711")

def leaving():
    raise SystemExit(3)

def one():
    return 1
"""


@pytest.fixture
def north(command: Command) -> Path:
    """The folder of a new site with the readers above."""
    command("site", "init", "north")
    Path("north", "north_readers.py").write_text(READERS)
    return Path("north")


def test_a_policy_is_checked_by_reading_its_data(command: Command, north: Path) -> None:
    heart, lungs, digits = (
        {"named": "own:heart", "reader": "north_readers:heart"},
        {"named": "own:lungs", "reader": "north_readers:lungs"},
        {"named": "digits"},
    )
    data = {"lungs": lungs, "digits": digits, "heart": heart}
    write_policy(north, policy_of(data=data))
    code, out, err = command("site", "check", "north")
    assert (code, out.splitlines()) == (
        0,
        [
            "the policy is valid",
            "data.heart: north_readers:heart returns 7 records",
            "data.lungs: north_readers:lungs returns 2 records",
        ],
    )
    assert "data." not in err
    answered = json.loads(command("site", "check", "north", "--json")[1])
    assert answered["records"] == {"lungs": 2, "heart": 7}
    assert not (north / "accounts").exists()
    assert not (north / "logs").exists()
    assert str(north.resolve()) not in sys.path


@pytest.mark.parametrize(
    ("reader", "unit", "told"),
    [
        ("raising", "example", "the function raised KeyError: 'patient 4711' (north/north_read"),
        ("leaving", "client", "the function raised SystemExit: 3 (north/north_readers.py, line"),
        ("herat", "example", "the module north_readers has no herat"),
        ("some_readers:heart", "example", "there is no module some_readers in north, in the curr"),
        ("one", "example", "the function returned an object of type int, not four arrays"),
        ("empty", "example", "x_train has shape (0, 64), but [examples, ...] without a zero"),
        ("empty", "client", "x_train has shape (0, 64), but [examples, ...] without a zero"),
        ("words", "client", "y_train has dtype <U4, but real numbers are needed"),
        ("holes", "client", "x_train holds NaN or infinity (in float32) at example 2"),
        ("nothing_but_holes", "example", "none of 7 records can be used"),
    ],
)
def test_a_reader_that_fails_is_one_sentence_before_any_job_comes(
    command: Command, north: Path, reader: str, unit: str, told: str
) -> None:
    named = reader if ":" in reader else f"north_readers:{reader}"
    data = {"heart": {"named": "digits", "reader": named}}
    write_policy(north, policy_of(data=data, strength={"unit": unit}))
    code, out, err = command("site", "check", "north")
    (said,) = [line for line in err.splitlines() if not line.startswith("note:")]
    assert (code, out) == (1, "the policy is valid\n")
    assert said.startswith(f"error: data.heart.reader = {named}: {told}")


def test_records_that_no_training_can_use_are_counted(command: Command, north: Path) -> None:
    data = {"heart": {"named": "digits", "reader": "north_readers:holes"}}
    write_policy(north, policy_of(data=data))
    code, out, err = command("site", "check", "north")
    told = "data.heart: north_readers:holes returns 7 records"
    assert (code, out.splitlines()[1:]) == (0, [told])
    assert "data.heart: 2 records of 7 cannot be used, starting with record 2" in err


def test_a_job_reads_its_own_data_set_with_the_targets_of_its_task(
    command: Command, north: Path
) -> None:
    Path("study.yaml").write_text(study().to_yaml())

    def checked(reader: str, **jobs: Any) -> tuple[int, str, str]:
        data = {
            "lungs": {"named": "own:lungs", "reader": "north_readers:raising"},
            "heart": {"named": "digits", "reader": f"north_readers:{reader}"},
        }
        write_policy(north, policy_of(Path("study.yaml"), data=data, **jobs))
        return command("site", "check", "north", "study.yaml")

    code, out, _ = checked("heart")
    assert (code, out.splitlines()[-1]) == (0, "data.heart: north_readers:heart returns 7 records")
    # Any number is a target of some job, but this job learns classes.
    code, out, err = checked("halves")
    assert (code, "north accepts study.yaml" in out) == (1, True)
    assert (
        "reader = north_readers:halves: y_train holds 0.5 at example 0 and 6 more, but a label is a"
        in err
    )
    assert checked("sentences")[0] == 1
    # A job that is not permitted has nothing read for it.
    _, _, err = checked("raising", jobs={"digests": ["0" * 64]})
    assert "4711" not in err


def test_examples_without_targets_are_records_for_the_next_token(
    command: Command, north: Path
) -> None:
    data = {"texts": {"named": "own:texts", "reader": "north_readers:sentences"}}
    write_policy(north, policy_of(data=data))
    code, out, _ = command("site", "check", "north")
    told = "data.texts: north_readers:sentences returns 4 records"
    assert (code, out.splitlines()[1:]) == (0, [told])


def test_a_job_of_nvflare_is_accepted_by_its_digest(command: Command) -> None:
    pytest.importorskip("nvflare")
    from fedveil.site.one_report import config_digest

    command("site", "init", "north")
    Path("job", "config").mkdir(parents=True)
    Path("job", "config", "config_fed_client.json").write_text("{}")
    digest = config_digest(Path("job", "config"))
    write_policy(Path("north"), policy_of(jobs={"digests": ["0" * 64]}))
    code, out, err = command("site", "check", "north", "job")
    assert (code, out) == (1, f"digest {digest}\n")
    assert err.endswith("error: north refuses job: it is not in jobs.digests\n")
    write_policy(Path("north"), policy_of(jobs={"digests": ["0" * 64, digest]}))
    code, out, _ = command("site", "check", "north", "job", "--json")
    assert (code, json.loads(out)) == (0, {"digest": digest})


def test_a_job_of_nvflare_that_the_filter_refuses_is_not_accepted(command: Command) -> None:
    from fedveil.site.one_report import config_digest

    command("site", "init", "north")
    Path("job", "config").mkdir(parents=True)
    Path("job", "custom").mkdir()
    jobs = {"digests": [config_digest(Path("job", "config"))]}
    write_policy(Path("north"), policy_of(jobs=jobs))
    code, out, _ = command("site", "check", "north", "job")
    assert (code, out.splitlines()[1:]) == (0, ["north accepts job"])
    for code_file in ("net.py", "net.so", "package/__init__.py"):
        path = Path("job", "custom", code_file)
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
        code, _, err = command("site", "check", "north", "job")
        assert (code, "it brings its own code in custom" in err) == (1, True), code_file
        path.unlink()
    Path("job", "custom", "package").rmdir()
    ada = {"people": {"ada": "ab" * 32}, "starters": ["ada"], "jobs": jobs}
    write_policy(Path("north"), policy_of(**ada))
    code, _, err = command("site", "check", "north", "job")
    assert (code, "no one in people can sign a job of NVFlare" in err) == (1, True)


def test_a_policy_is_shown_with_all_its_keys_and_explained(command: Command) -> None:
    command("site", "init", "north")
    shown = json.loads(command("site", "show", "north", "--json")[1])
    assert shown == Site.open(Path("north")).policy.model_dump(mode="json")
    code, out, _ = command("site", "show", "--keys")
    assert code == 0
    assert (
        "epsilon.exact_sums: 20\n    a whole number in [0, inf)\n    largest number of sums" in out
    )


def test_the_server_that_is_named_is_served_and_each_command_says_the_policys_notes(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []
    monkeypatch.setattr(
        "fedveil.site.supernode.serve", lambda site, server, tell: served.append(server)
    )
    public = json.loads(command("site", "init", "north", "--json")[1])["public"]
    Path("north", "roster.yaml").write_text(f'client-0: "{public}"\n')
    server = {"roster": "roster.yaml", "client": 0}
    write_policy(Path("north"), policy_of(servers={"study": server, "trial": server}))
    monkeypatch.setattr(Policy, "warnings", ["mind this"])
    for name in ("trial", "study"):
        code, out, err = command("site", "serve", "north", name, "--json")
        assert (code, json.loads(out), err) == (0, {"served": name}, "note: mind this\n")
    assert served == ["trial", "study"]
    for name in ("check", "show"):
        assert command("site", name, "north")[2] == "note: mind this\n"
    assert command("site", "show")[1] == command("site", "show", "--keys")[1]


def test_keys_that_cannot_sign_a_round_are_noted_before_the_site_serves(command: Command) -> None:
    public = json.loads(command("site", "init", "north", "--json")[1])["public"]
    other = json.loads(command("site", "init", "south", "--json")[1])["public"]

    def notes(text: str | None, **server: Any) -> str:
        if text is not None:
            Path("north", "roster.yaml").write_text(text)
        write_policy(Path("north"), policy_of(servers={"study": server}))
        code, _, err = command("site", "check", "north")
        assert code == 0
        return err

    mine = f'client-0: "{public}"\n'
    assert "roster is null: name a file with all sites' keys" in notes(None)
    assert "roster.yaml has no key for client-0" in notes(None, roster="roster.yaml")
    assert "no key for client-1" in notes(mine, roster="roster.yaml", client=1)
    told = notes(f'client-0: "{other}"\n', roster="roster.yaml")
    assert f"own for client-0. This site's public key is {public}" in told
    assert "signed rounds" not in notes(mine, roster="roster.yaml")
    Path("north", "identity.pem").unlink()
    assert "identity.pem cannot be read" in notes(mine, roster="roster.yaml")
    write_policy(Path("north"), policy_of(protections=["dp_encrypt"]))  # sums nothing
    assert "signed rounds" not in command("site", "check", "north")[2]


def test_a_wrong_policy_is_one_sentence_and_nothing_is_served(command: Command) -> None:
    command("site", "init", "north")
    Path("north", "policy.yaml").write_text("epsilon: {month: -1}\n")
    code, _, err = command("site", "serve", "north")
    assert code == 2
    assert "epsilon.month = -1 is outside (0, inf)" in err
