"""Sites that serve a real SuperLink: the uploaded app is data, whatever code it brings."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedveil.flower.job.app_folder import ROSTER
from fedveil.flower.job.deploy import deployable, write_app
from fedveil.site.site_folder import Site, create
from folders import EXAMPLES
from site_parts import policy_of, study, write_policy

sys.path.append(str(EXAMPLES / "flower"))
from loopback import Loopback

pytestmark = pytest.mark.slow

CLIENTS, LIMIT_S = 3, 240.0
CODE = """\
from pathlib import Path

from flwr.clientapp import ClientApp

Path({mark!r}).write_text("the server's code ran")
app = ClientApp()


@app.train("masked")
def train(message, context):
    raise ValueError("what the data say")
"""


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {LIMIT_S:g} s"
        time.sleep(0.2)


def log_of(site: Path) -> str:
    path = site / "logs" / "study" / "site.log"
    return path.read_text() if path.exists() else ""


def test_an_accepted_job_trains_and_a_hostile_app_runs_no_code(tmp_path: Path) -> None:
    protection = {"name": "distributed_dp", "distributed_dp": {
        "noise_multiplier": 5.0, "clip": 0.5, "active_security": True}}  # fmt: skip
    clients = {"number": CLIENTS, "fraction": 1.0}
    app, mark = tmp_path / "app", tmp_path / "mark"
    settings = study(rounds=1, clients=clients, protection=protection,
                     deployment={"answer_s": 60.0, "wait_s": 90.0})  # fmt: skip
    write_app(app, deployable(settings))
    # Every app brings code of the server's, also the one whose job is accepted.
    (app / "client_app.py").write_text(CODE.format(mark=str(mark)))
    sites = [tmp_path / f"site-{number}" for number in range(CLIENTS)]
    roster = "".join(f'client-{n}: "{create(site)}"\n' for n, site in enumerate(sites))
    (app / ROSTER).write_text(roster)
    with Loopback(tmp_path / "flower", CLIENTS, secured=False) as loopback:
        loopback.start_superlink()
        for number, site in enumerate(sites):
            (site / "roster.yaml").write_text(roster)
            server = {"superlink": f"127.0.0.1:{loopback._port}", "client": number,
                      "roster": "roster.yaml", "insecure": True}  # fmt: skip
            keys = policy_of(app, strength={"survivors": 2}, clear={"answer_after_s": 4.0},
                             servers={"study": server})  # fmt: skip
            write_policy(site, keys)
            loopback._start(f"site-{number}", "fedveil", "site", "serve", str(site))
        assert loopback.run(app, tmp_path / "run").wait(LIMIT_S) == 0
        assert (tmp_path / "run" / "model.safetensors").exists()
        for site in sites:
            assert len(Site.open(site).account("heart").charges) == 1
            assert "train.masked" in log_of(site)
        hostile = shutil.copytree(app, tmp_path / "hostile")
        job = (app / "job.yaml").read_text()
        (hostile / "job.yaml").write_text(job.replace("name: distributed_dp", "name: not_encrypt"))
        run = loopback.run(hostile, tmp_path / "hostile-run")
        until(lambda: all(" refused " in log_of(site) for site in sites), "a refusal")
        loopback.kill("run")
        assert run.poll() is not None
    for site in sites:
        assert len(Site.open(site).account("heart").charges) == 1
        (line, *_) = (line for line in log_of(site).splitlines() if " refused " in line)
        assert "protection.name is not_encrypt" in line
    assert not mark.exists()


ASKING = """\
import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    said = []
    for kind in ("query.introduce", "train.masked", "evaluate"):
        records = RecordDict({{"fedveil": ConfigRecord({{"encoded": b""}})}})
        (reply,) = grid.send_and_receive([Message(records, nodes[0], kind)], timeout=60)
        said.append([reply.error.code, reply.error.reason] if reply.has_error()
                    else {{name: list(record) for name, record in reply.content.items()}})
    Path({out!r}).write_text(json.dumps(said))
"""


def test_a_supernode_answers_through_the_door_alone(tmp_path: Path) -> None:
    """The server's app is a stranger's, and asks for what no job sends."""
    app, mark, out, site = (tmp_path / name for name in ("app", "mark", "out.json", "site"))
    write_app(app, deployable(study()))
    (app / "client_app.py").write_text(CODE.format(mark=str(mark)))
    (app / "server_app.py").write_text(ASKING.format(out=str(out)))
    create(site)
    with Loopback(tmp_path / "flower", 1, secured=False) as loopback:
        loopback.start_superlink()
        server = {"superlink": f"127.0.0.1:{loopback._port}", "client": 2, "insecure": True}
        keys = policy_of(app, clear={"answer_after_s": 4.0}, servers={"study": server})
        write_policy(site, keys)
        loopback._start("site", "fedveil", "site", "serve", str(site))
        loopback.run(app, tmp_path / "run")
        until(out.exists, "the last reply")
    answer, *refused = json.loads(out.read_text())
    assert answer == {"fedveil": ["encoded"]}
    assert refused == [[200, "withheld"]] * 2
    lines = [line.partition(" ")[2] for line in log_of(site).splitlines()]
    assert [line.split()[0] for line in lines] == ["began", "sent", "refused", "refused"]
    assert not mark.exists()
