"""Opens a TCP connection, through an HTTP proxy if the environment variables of gRPC name one."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import os
import socket
from urllib.parse import unquote, urlsplit

from fedveil.link.streams import Address

# gRPC reads these in this order, in lower case only.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def connect(address: Address, timeout_s: float) -> socket.socket:
    proxy = urlsplit(_first(_PROXIES))
    exceptions = [entry.strip() for entry in _first(_EXCEPTIONS).split(",")]
    is_direct = any(_excepts(entry, address.host) for entry in exceptions if entry)
    if proxy.scheme != "http" or proxy.hostname is None or is_direct:
        return socket.create_connection((address.host, address.port), timeout_s)
    headers = {}
    if proxy.username is not None:
        user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    tunnel = http.client.HTTPConnection(proxy.hostname, proxy.port or 80, timeout=timeout_s)
    tunnel.set_tunnel(address.host, address.port, headers)
    try:
        tunnel.connect()
    except http.client.HTTPException as error:
        raise OSError(f"the proxy {proxy.hostname} gives no connection: {error!r}") from None
    opened: socket.socket = tunnel.sock
    return opened


def _first(names: tuple[str, ...]) -> str:
    """Return the value of the first variable that is set, or "" if none is.

    An empty value counts, as in gRPC: an empty `grpc_proxy` means no proxy.
    """
    return next((os.environ[name] for name in names if name in os.environ), "")


def _excepts(entry: str, host: str) -> bool:
    """Return True if `entry`, an entry of `no_proxy`, covers `host`."""
    if host.lower().endswith(entry.lower()):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
