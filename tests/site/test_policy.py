"""A site's policy: its defaults, its problems, and the effect of every key on a job."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

pytest.importorskip("flwr")

from fedveil.errors import JobError
from fedveil.federated.job import Job
from fedveil.settings.allowed import dotted, keys
from fedveil.settings.yaml_file import put
from fedveil.site.account import Limits
from fedveil.site.admission import Admission, weak_sum
from fedveil.site.order import _BOUND, Order
from fedveil.site.policy import RULES, Policy
from fedveil.site.policy_start import START
from fedveil.site.site_folder import create
from fedveil.site.supernode import command
from site_house import job, noised
from site_parts import write_policy

SOUND: dict[str, Any] = {
    "clear": {"answer_after_s": 5.0},
    "data": {"heart": {"named": "digits"}},
    "jobs": {"digests": [Order(job(), None).digest.hex()]},
}


def of(*changes: tuple[str, Any], base: dict[str, Any] = SOUND) -> Policy:
    data, problems = put(base, [(tuple(path.split(".")), value) for path, value in changes], Policy)
    assert not problems
    return Policy(**data)


def reasons(policy: Policy, asked: Job, folder: Path = Path()) -> list[str]:
    """Return why a policy refuses an unsigned job."""
    return list(Admission.of(policy, folder).reasons(Order(asked, None)))


@pytest.mark.parametrize("key", ["data", "servers", "code.modules"])
def test_a_name_has_at_most_64_letters(key: str) -> None:
    value: Any = {"data": {"named": "mnist"}, "servers": {"client": 3}}.get(key, "ab" * 32)
    for name in ("a" * 64, "b7"):
        assert of((key, {name: value}))
    for name in ("a" * 65, "7b" if key == "code.modules" else "_b", "a.b", ""):
        with pytest.raises(JobError, match=key.replace(".", r"\.")):
            of((key, {name: value}))


@pytest.mark.parametrize(
    "jobs", [{"template": "job.yaml"}, {"digests": ["ab" * 32]}, {"signed_by": ["ada"]}]
)
def test_a_policy_with_any_kind_of_job_lets_one_run(jobs: dict[str, Any]) -> None:
    people = {"ada": "cd" * 32}
    assert of(("jobs", jobs), ("people", people), base={**SOUND, "jobs": {}}).warnings == []


def test_the_file_of_a_new_site_has_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(START)
    assert Policy.load(tmp_path / "policy.yaml") == Policy()
    assert Policy().epsilon.month == 2
    assert Policy().protections == ["distributed_dp", "pw_encrypt"]
    assert Policy().strength.active_security


def test_a_new_site_refuses_everything_and_says_why() -> None:
    found = reasons(Policy(), job())
    assert any("neither in jobs.digests nor signed" in one for one in found)
    assert any("but the policy has: none" in one for one in found)
    assert [one.partition(" ")[0] for one in Policy().warnings] == ["no", "no"]
    loose = of(("strength.active_security", False), ("clear.answer_after_s", None))
    assert [one.partition(" ")[0] for one in loose.warnings] == [
        "strength.active_security", "clear.answer_after_s",
    ]  # fmt: skip
    assert of().warnings == []
    assert of(("code.isolation", "weak")).warnings == []  # without code of a study
    for isolation, warned in (("strong", []), ("weak", ["code.isolation"])):
        own = of(("code", {"modules": {"net": "ab" * 32}, "isolation": isolation}))
        assert [one.partition(" ")[0] for one in own.warnings] == warned
    found = reasons(own, job(model="net:net", data={"name": "mnist"}))
    assert found[-1] == "data.name is mnist, but the policy has: digits"
    signed = of(("jobs.digests", []), ("jobs.signed_by", ["ada"]), ("people", {"ada": "ab" * 32}))
    assert signed.warnings == []


#: A key of the policy with another value -> a job, and a part of the reason for which it alone is
#: refused. A job of None is the sound one.
STRICTER: list[tuple[tuple[str, Any], Job | None, str]] = [
    (("protections", ["pw_encrypt"]), None, "protection.name is distributed_dp"),
    (("strength.unit", "client"), job(privacy={"randomness": "secure", "unit": "example"},
      training={"sampling_rate": 0.3, "epochs": 1}), "privacy.unit is example, but the policy"),
    (("strength.survivors", 6), None, "a sum may have 5 clients, but strength.survivors is 6"),
    (("strength.honest", 0.8), None, "assume_honest is 0.9, but at most 0.8 is allowed"),
    (("clear.answer_after_s", 9.0), None, "the server waits 9 s for an answer"),
    (("jobs.digests", ["ab" * 32]), None, "neither in jobs.digests nor signed"),
    (("data.heart.named", "mnist"), None, "data.name is digits, but the policy has: mnist"),
    (("starters", ["ada"]), None, "none of starters (ada) has signed"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "asked", "why"), STRICTER, ids=lambda v: str(v)[:40])
def test_a_stricter_key_refuses_what_a_sound_policy_accepts(
    change: tuple[str, Any], asked: Job | None, why: str
) -> None:
    asked = job() if asked is None else asked
    listed = ("jobs.digests", [Order(asked, None).digest.hex()])
    people = ("people", {"ada": "cd" * 32})
    assert reasons(of(listed, people), asked) == []
    (found,) = reasons(of(listed, people, change), asked)
    assert why in found


def test_a_looser_key_accepts_what_a_sound_policy_refuses() -> None:
    unsigned = {**job().protection.distributed_dp.model_dump(), "active_security": False}
    weighted = job(protection={"name": "pw_encrypt", "pw_encrypt": {"active_security": True}},
                   server={"weighting": "by_size"})  # fmt: skip
    cases: list[tuple[tuple[str, Any], Job]] = [
        (("strength.active_security", False),
         job(protection={"name": "distributed_dp", "distributed_dp": unsigned})),
        (("clear.counts", True), weighted),
        (("clear.counts", True), job(protection=weighted.protection.model_dump(), server={})),
        (("clear.counts", True), job(deployment={"reveal": ["examples"]})),
        (("protections", ["dp_encrypt"]), noised(deployment={"answer_s": 9.0})),
    ]  # fmt: skip
    for change, asked in cases:
        listed = ("jobs.digests", [Order(asked, None).digest.hex()])
        assert len(reasons(of(listed), asked)) == 1, change
        assert reasons(of(listed, change), asked) == [], change


def test_a_job_differs_from_the_template_only_where_it_may(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(job().to_yaml())
    template = (("jobs.digests", []), ("jobs.template", "study.yaml"))
    free = ("jobs.may_differ", ["rounds", "training"])
    other = job(rounds=9, training={"lr": 0.5, "epochs": 3})
    assert reasons(of(*template), job(), tmp_path) == []
    assert len(reasons(of(*template), other, tmp_path)) == 4
    assert reasons(of(*template, free), other, tmp_path) == []
    (found,) = reasons(of(*template, free), job(rounds=9, name="lung"), tmp_path)
    assert found == "name is 'lung', but 'heart' in the template study.yaml"
    rate = ("jobs.may_differ", ["training.lr"])
    faster = {**job().training.model_dump(exclude_unset=True), "lr": 0.5, "lr_schedule": "cosine"}
    (found,) = reasons(of(*template, rate), job(training=faster), tmp_path)
    assert found.startswith("training.lr_schedule is 'cosine'")


def test_a_job_that_is_only_written_otherwise_is_not_the_template(tmp_path: Path) -> None:
    """It has another digest, and so the whole epsilon of one job again."""
    (tmp_path / "study.yaml").write_text(job().to_yaml())
    template = (("jobs.digests", []), ("jobs.template", "study.yaml"))
    other = job().with_({"training.weight_decay": -0.0, "training.proximal": -0.0})
    assert other == job()
    assert Order(other, None).digest != Order(job(), None).digest
    assert len(reasons(of(*template), other, tmp_path)) == 2
    free = ("jobs.may_differ", ["training.proximal"])
    (found,) = reasons(of(*template, free), other, tmp_path)
    assert found == "training.weight_decay is -0.0, but 0.0 in the template study.yaml"


def test_no_job_chooses_a_folder_of_the_sites_machine(tmp_path: Path) -> None:
    """The template's own folder, a bundled model and a listed job are allowed."""
    language = {"model": "hf:models/small", "task": "next_token", "data": {"name": "own:letters"}}
    (tmp_path / "language.yaml").write_text(job(**language).to_yaml())
    (tmp_path / "digits.yaml").write_text(job().to_yaml())
    free = ("jobs.may_differ", sorted(Job.model_fields))
    named = ("data.heart", {"named": "own:letters", "reader": "readers:letters"})

    def of_template(file: str, *changes: tuple[str, Any]) -> Policy:
        return of(("jobs.digests", []), ("jobs.template", file), free, *changes)

    policy = of_template("language.yaml", named)
    assert reasons(policy, job(**language, rounds=9), tmp_path) == []
    for folder in ("hf:/home/ada/letters", "hf:models/../../ada", "hf:models/small/"):
        hostile = job(**{**language, "model": folder})
        (found,) = reasons(policy, hostile, tmp_path)
        assert found == (
            f"model is '{folder}', but 'hf:models/small' in the template language.yaml, and a job "
            f"cannot choose a folder of this machine. Add the job to jobs.digests"
        )
        listed = of(("jobs.digests", [Order(hostile, None).digest.hex()]), named)
        assert reasons(listed, hostile, tmp_path) == []
    (found,) = reasons(of_template("digits.yaml", named), job(**language), tmp_path)
    assert found.startswith("model is 'hf:models/small', but 'logistic' in the template")
    assert reasons(of_template("digits.yaml"), job(model="lenet"), tmp_path) == []


def test_a_site_imports_no_module_for_the_name_of_a_data_set(tmp_path: Path) -> None:
    """Without a reader, the data set would be loaded by the job's own name for it."""
    mine = job(data={"name": "own:hearts"})
    listed = ("jobs.digests", [Order(mine, None).digest.hex()])
    data = {"named": "own:hearts"}
    (found,) = reasons(of(listed, ("data.heart", data)), mine, tmp_path)
    assert found == (
        "data.heart.reader is null, but own:hearts is no bundled data set: name your function that "
        "returns the examples"
    )
    read = {**data, "reader": "readers:hearts"}
    assert reasons(of(listed, ("data.heart", read)), mine, tmp_path) == []


def test_a_template_is_a_job_as_its_author_wrote_it(tmp_path: Path) -> None:
    """`fedveil deploy` gives every job secure randomness, and a job's author none."""
    seeded = job(privacy={**job().privacy.model_dump(exclude_unset=True), "randomness": "seeded"})
    (tmp_path / "study.yaml").write_text(seeded.to_yaml())
    template = (("jobs.digests", []), ("jobs.template", "study.yaml"))
    assert job().privacy.randomness == "secure"
    assert reasons(of(*template), job(), tmp_path) == []
    assert reasons(of(*template), seeded, tmp_path)


def test_a_signature_permits_what_its_person_may_and_no_more() -> None:
    keys = {name: Ed25519PrivateKey.generate() for name in ("ada", "bob", "cy")}
    people = {name: key.public_key().public_bytes_raw().hex() for name, key in keys.items()}
    listed = [Order(job(), None).digest.hex()]

    def refused(signer: str, *changes: tuple[str, Any]) -> list[str]:
        order = Order(job(), keys[signer].sign(_BOUND + Order(job(), None).digest))
        policy = of(("people", people), *changes)
        return list(Admission.of(policy, Path()).reasons(order))

    for digests, may in (([], ("jobs.signed_by", ["bob"])), (listed, ("starters", ["bob"]))):
        assert refused("bob", may, ("jobs.digests", digests)) == []
        for other in ("ada", "cy"):
            assert len(refused(other, may, ("jobs.digests", digests))) == 1


def test_a_sum_needs_as_many_neighbours_as_fedveil_would_choose() -> None:
    loose = Policy(strength={"active_security": False})
    block = {**job().protection.distributed_dp.model_dump(), "active_security": False}
    for neighbours, why in ((4, ["4 clients reconstruct a secret, but at least 5"]), ("auto", [])):
        asked = job(protection={"name": "distributed_dp",
                                "distributed_dp": {**block, "neighbours": neighbours}})  # fmt: skip
        weak = weak_sum(loose, asked.protection.position, asked.protection.settings, 6)
        assert [any(part in reason for part in why) for reason in weak] == [True] * len(why)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("protections", ["not_encrypt"]), "protections = 'not_encrypt' is not a list of"),
        (("protections", []), "protections"),
        (("strength.survivors", 1), "strength.survivors = 1 is outside [2, inf)"),
        (("epsilon.month", 0.0), "epsilon.month = 0.0 is outside (0, inf)"),
        (("epsilon.exact_sums", -1), "epsilon.exact_sums = -1 is outside [0, inf)"),
        (("people", {"ada": "x"}), "people.ada = 'x' is not 64 hexadecimal digits"),
        (("starters", ["bob"]), "starters has bob, whose public key is not in people"),
        (("jobs", {"signed_by": ["bob"]}), "jobs.signed_by has bob, whose public key is not in"),
        (("jobs.may_differ", ["rounds"]), "jobs.may_differ needs jobs.template"),
        (("code.modules", {"a.b": "ab" * 32}), "code.modules has a.b: name a module"),
        (("code", {"memory_gb": 0.5}), "code.memory_gb = 0.5 is outside [1, inf)"),
        (("data", {"a": {}, "b": {}}), "data has two blocks with named = digits"),
        (("data", {"../a": {}}), "data has the name ../a: use letters"),
        (("data", {"-a": {}}), "data has the name -a: use letters"),
        (("servers", {"a b": {}}), "servers has the name a b: use letters"),
        (("servers", {"a": {"superlink": "host"}}), "superlink = 'host' is not HOST:PORT"),
        (("servers", {"a": {"superlink": "h:650000"}}), "superlink = 'h:650000' is not HOST:PORT"),
    ],
)  # fmt: skip
def test_a_wrong_policy_is_one_sentence(change: tuple[str, Any], problem: str) -> None:
    with pytest.raises(JobError) as raised:
        of(change)
    assert problem in str(raised.value)


def test_a_port_has_up_to_five_digits() -> None:
    servers = {"a": {"superlink": "study.org:65000"}, "b": {"superlink": "127.0.0.1:1"}}
    policy = of(("servers", servers))
    assert [server.superlink for server in policy.servers.values()] == [
        "study.org:65000", "127.0.0.1:1",
    ]  # fmt: skip


def test_code_of_a_job_leaves_at_a_fixed_time_under_any_isolation() -> None:
    modules, at_once = ("code.modules", {"net": "ab" * 32}), ("clear.answer_after_s", None)
    for kind in ("strong", "weak"):
        with pytest.raises(JobError, match=r"code\.modules needs clear\.answer_after_s"):
            of(modules, at_once, ("code.isolation", kind))
        of(modules, ("code.isolation", kind))


def test_the_limits_of_an_account_are_the_policys() -> None:
    epsilon = {"run": 1.5, "month": 1.25, "ever": 7.0, "delta": 1e-7, "exact_sums": 3}
    policy = Policy(epsilon=epsilon, strength={"unit": "client"})
    assert policy.limits == Limits(1.5, 1.25, 7.0, 1e-7, "client", 3)


def test_a_supernode_connects_as_the_server_is_described(tmp_path: Path) -> None:
    create(tmp_path / "site")
    server = {"superlink": "study.org:9092", "root_certificates": "ca.crt", "supernode_key": "key"}
    site = write_policy(
        tmp_path / "site", {"servers": {"study": server, "test": {"insecure": True}, "plain": {}}}
    )
    study = command(site, site.policy.servers["study"], Path("secret"), 8123)
    assert study[1:] == [
        "--isolation", "process", "--superexec-auth-secret-file", "secret",
        "--superlink", "study.org:9092", "--host", "127.0.0.1", "--port", "8123",
        "--root-certificates", str(site.folder / "ca.crt"),
        "--auth-supernode-private-key", str(site.folder / "key"),
    ]  # fmt: skip
    assert command(site, site.policy.servers["test"], Path("secret"), 1)[-1] == "--insecure"
    plain = command(site, site.policy.servers["plain"], Path("secret"), 1)
    assert plain[1:] == [*study[1:5], "--superlink", "127.0.0.1:9092", *study[7:10], "1"]


def test_every_key_is_tried() -> None:
    """Keys that a door or a SuperNode reads are changed in the other tests of this folder."""
    here = {change[0] for change, *_ in STRICTER} | {"strength.active_security", "clear.counts"}
    here |= {"jobs.template", "jobs.may_differ"}
    elsewhere = {
        "code.modules", "code.isolation", "code.memory_gb",
        "name", "people", "counter", "jobs.signed_by", "epsilon.run", "epsilon.month",
        "epsilon.ever", "epsilon.delta", "epsilon.exact_sums", "data.NAME.named",
        "data.NAME.reader", *(f"servers.NAME.{key}" for key in
        ("superlink", "client", "roster", "root_certificates", "supernode_key", "insecure")),
    }  # fmt: skip
    assert {dotted(path) for path in keys(Policy)} == (here | elsewhere) - {"data.heart.named"}


def test_each_rule_says_what_it_returns() -> None:
    """The reference has only the first paragraph, which is the rule."""
    said = [inspect.cleandoc(rule.__doc__ or "").split("\n\n") for rule in RULES._reads]
    assert len(said) == 5
    assert {rest for _, rest in said} == {
        "Returns an error message, or None if the policy follows this rule."
    }
    assert RULES.texts() == [" ".join(first.split()) for first, _ in said]
