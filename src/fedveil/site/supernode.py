"""Answers the messages that a Flower SuperNode receives, instead of the uploaded code.

With `--isolation process`, Flower's SuperNode hands each message to a process of the operator. This
module is such a process. It reads the app's archive as data, and lets `Door` answer. A shared
secret keeps other local processes from taking tasks.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedveil.base.files import write_new
from fedveil.entropy import Secure
from fedveil.errors import SiteError
from fedveil.flower.job.job_client import load_training
from fedveil.record.run_folder import temporary_folder
from fedveil.site import ends_with_parent
from fedveil.site.door import Door
from fedveil.site.policy_blocks import ServerSettings
from fedveil.site.site_folder import Site, SiteLog

_HOST = "127.0.0.1"
_START_S = 60.0
_LOOK_S = 0.5
_STOP_S = 10.0
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
#: Turns off Flower's telemetry and its search for updates.
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def serve(site: Site, server: str, event: Callable[[str], None]) -> None:
    """Serve a server's jobs until the process is interrupted.

    `event` is called with a sentence for the operator. Raises `SiteError` if the SuperNode ends.
    """
    os.environ.update(_QUIET)
    sys.path.append(str(site.folder.resolve()))
    with ExitStack() as stack:
        log = stack.enter_context(site.log(server, wait=False))
        load_training()
        scratch = stack.enter_context(temporary_folder("fedveil-site-"))
        secret = Secure().token(32)
        write_new(scratch / "secret", secret)
        port = _free_port()
        words = command(site, site.policy.servers[server], scratch / "secret", port)
        node = stack.enter_context(_started(words))
        _wait_for(node, port)
        event(f"serving {server}; what leaves and what is refused is in logs/{server}")
        log.line(f"began to serve {server}")
        tasks = _client(
            port,
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(
                master_secret=secret, protected_methods=frozenset({_ACQUIRE})
            ),
        )
        door = Door(site, server, log)
        while node.poll() is None:
            _look(tasks, door, log, port)
        raise SiteError(
            f"the SuperNode of {server} ended with code {node.returncode}: its output says why"
        )


def _look(tasks: RuntimeHttpClient, door: Door, log: SiteLog, port: int) -> None:
    """Let `door` answer the SuperNode's next task. If there is no task, wait and return.

    `tasks` is a connection to the SuperNode, which listens on the local port `port`. `log` gets a
    line about an answer that cannot be sent.
    """
    kinds = [TaskType.CLIENT_APP, TaskType.AGENT_APP]
    taken = tasks.AcquireTask(AcquireTaskRequest(supported_task_types=kinds))
    if not (taken.HasField("task") and taken.token):
        time.sleep(_LOOK_S)
        return
    client = _client(
        port,
        RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
        RuntimeTokenHttpInterceptor(taken.token),
    )
    try:
        _answer(client, door)
    except Exception as error:
        # Flower could not deliver the message or accept the reply. Without a heartbeat, the
        # SuperNode itself replies that the process stopped.
        log.line(f"lost a message: {type(error).__name__}: {error}")
    finally:
        client.close()


def _answer(client: RuntimeHttpClient, door: Door) -> None:
    beat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    beat.start()
    try:
        message, context, _, fab = pull_task_input(client)
        reply: Message = door.answer(lambda: fab.content, message, context)
        push_message(client, reply, context)
        push_task_output(client=client, context=context, sub_status=SubStatus.COMPLETED, details="")
    finally:
        beat.stop()


def command(site: Site, of: ServerSettings, secret: Path, port: int) -> list[str]:
    """Return the command that starts a SuperNode for the server `of`, on a local port.

    `secret` is a file with the secret that the SuperNode and this process share.
    """
    words = [
        str(Path(sys.executable).parent / "flower-supernode"),
        "--isolation", "process",
        "--superexec-auth-secret-file", str(secret),
        "--superlink", of.superlink,
        "--host", _HOST,
        "--port", str(port),
    ]  # fmt: skip
    if of.insecure:
        words.append("--insecure")
    if of.root_certificates is not None:
        words += ["--root-certificates", str(site.folder / of.root_certificates)]
    if of.supernode_key is not None:
        words += ["--auth-supernode-private-key", str(site.folder / of.supernode_key)]
    return words


@contextmanager
def _started(words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(ends_with_parent.command(words), stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_for(node: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and node.poll() is None:
        with suppress(OSError), socket.create_connection((_HOST, port), 1):
            return
        time.sleep(_LOOK_S)
    raise SiteError("the SuperNode did not start: its output says why")


def _client(port: int, *interceptors: ProtobufClientInterceptor) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=f"{_HOST}:{port}",
        insecure=True,
        root_certificates=None,
        interceptors=list(interceptors),
        retry_invoker=make_simple_http_retry_invoker(),
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
