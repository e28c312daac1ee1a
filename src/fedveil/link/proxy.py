"""Opens a TCP connection, through an HTTP proxy if the environment variables of gRPC name one."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import os
import socket
from urllib.parse import SplitResult, unquote, urlsplit

from fedveil.errors import InvalidValue
from fedveil.link.streams import Address

# gRPC reads these in this order, in lower case only.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def connect(address: Address, timeout_s: float) -> socket.socket:
    """Open a connection. Raises InvalidValue if the proxy's URL is malformed."""
    tunnel = _tunnel(address, timeout_s)
    if tunnel is None:
        return socket.create_connection((address.host, address.port), timeout_s)
    try:
        tunnel.connect()
    except http.client.HTTPException as error:
        raise OSError(f"the proxy {tunnel.host} gives no connection: {error!r}") from None
    opened: socket.socket = tunnel.sock
    return opened


def check_proxy(address: Address) -> None:
    """Raise InvalidValue if connections to `address` use a proxy whose URL is malformed."""
    _tunnel(address, 0.0)


def _tunnel(address: Address, timeout_s: float) -> http.client.HTTPConnection | None:
    """Return an unopened tunnel to `address` through the proxy, or None without a proxy.

    Raises InvalidValue, which names the variable with the proxy's URL. The URL may have a password,
    so no error quotes it or a part of it.
    """
    variable, value = _first(_PROXIES)
    exceptions = [entry.strip() for entry in _first(_EXCEPTIONS)[1].split(",")]
    if any(_excepts(entry, address.host) for entry in exceptions if entry):
        return None
    try:
        proxy = urlsplit(value)
        if proxy.scheme != "http" or proxy.hostname is None:
            return None
        # Otherwise the host would be a part of the user or the password.
        is_cut = "@" in f"{proxy.path}{proxy.query}{proxy.fragment}"
        proxy.hostname.encode("idna")
        tunnel = http.client.HTTPConnection(proxy.hostname, proxy.port or 80, timeout=timeout_s)
        headers = _authorization(proxy)
    except (ValueError, http.client.HTTPException):
        is_cut = True
    if is_cut:
        raise InvalidValue(
            f"the environment variable {variable} is no URL of a proxy: write it as "
            f"http://USER:PASSWORD@HOST:PORT, with %2F for a slash in the user or the password, "
            f"%3F for a question mark and %23 for a number sign"
        )
    tunnel.set_tunnel(address.host, address.port, headers)
    return tunnel


def _authorization(proxy: SplitResult) -> dict[str, str]:
    """Return the HTTP header with the user and password in the proxy's URL, if it has any."""
    if proxy.username is None:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}


def _first(names: tuple[str, ...]) -> tuple[str, str]:
    """Return the first variable that is set, and its value, or ("", "") if none is.

    An empty value counts, as in gRPC: an empty `grpc_proxy` means no proxy.
    """
    return next(((name, os.environ[name]) for name in names if name in os.environ), ("", ""))


def _excepts(entry: str, host: str) -> bool:
    """Return True if `entry`, an entry of `no_proxy`, covers `host`."""
    if host.lower().endswith(entry.lower()):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
