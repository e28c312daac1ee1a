"""`fedveil site`: a new site's folder, and a job against its policy."""

from __future__ import annotations

import json
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
