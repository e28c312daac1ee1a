"""A link's settings: the proxy in the environment, passwords, names and rights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedveil.errors import CertificateError, InvalidValue, RightMissing, SplitInvalid
from fedveil.link import proxy
from fedveil.link.names import check_name
from fedveil.link.rights import check_right, may
from fedveil.link.streams import Address
from fedveil.link.tls_settings import TlsSettings


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, ...]]:
    """Return the place to which a connection goes, and the headers for a proxy."""
    asked: list[Any] = []

    class Tunnel:
        sock = None

        def __init__(self, host: str, port: int, timeout: float) -> None:
            asked[:] = [host, port]

        def set_tunnel(self, host: str, port: int, headers: dict[str, str]) -> None:
            asked.extend([host, port, headers])

        def connect(self) -> None: ...

    monkeypatch.setattr(proxy.http.client, "HTTPConnection", Tunnel)
    monkeypatch.setattr(proxy.socket, "create_connection", lambda at, _: asked.__setitem__(
        slice(None), at))  # fmt: skip
    for name in (*proxy._PROXIES, *proxy._EXCEPTIONS):
        monkeypatch.delenv(name, raising=False)

    def connect(host: str, **variables: str) -> tuple[Any, ...]:
        with monkeypatch.context() as here:
            for name, value in variables.items():
                here.setenv(name, value)
            proxy.connect(Address(host, 8443), 1.0)
        return tuple(asked)

    return connect


def test_the_first_proxy_in_grpcs_order_is_taken(connected: Callable[..., Any]) -> None:
    both = {"https_proxy": "http://second:3128", "grpc_proxy": "http://m%65:p%40ss@first"}
    host, port, to, its, headers = connected("bank.example", http_proxy="http://third", **both)
    assert (host, port, to, its) == ("first", 80, "bank.example", 8443)
    assert headers == {"Proxy-Authorization": "Basic bWU6cEBzcw=="}
    assert connected("bank.example", https_proxy="http://second:3128")[:2] == ("second", 3128)
    assert connected("bank.example", grpc_proxy="socks5://x:1") == ("bank.example", 8443)


def test_an_empty_variable_is_the_first_that_is_set(connected: Callable[..., Any]) -> None:
    """In gRPC, an empty proxy is none, and an empty list of exceptions has none."""
    host, proxied = "bank.example", {"https_proxy": "http://second:3128"}
    assert connected(host, grpc_proxy="", **proxied) == (host, 8443)
    assert connected(host, no_proxy=host, **proxied) == (host, 8443)
    assert connected(host, no_grpc_proxy="", no_proxy=host, **proxied)[:2] == ("second", 3128)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cret/t0ken@proxy.example:3128", "http://user:s3cret#t0ken@proxy.example",
        "http://user:s3cret?t0ken@proxy.example:3128", "http://user:31/s3cret@proxy.example:3128",
        "http://s3cret/t0ken@proxy.example:3128", "http://s3cret@proxy.example:port",
        "http://user:s3cret@[proxy.example", "http://user:s3cret@pro xy.example:3128",
        "http://user:s3cret@proxy..example:3128", "http://user:s3cret\udcff@proxy.example:3128",
        "http://user:s3cret@proxy.example:70000",
    ],
)  # fmt: skip
def test_a_malformed_proxy_is_one_sentence_without_its_password(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slash, for example, ends the part of a URL that has the user, the password and the host."""
    for name in (*proxy._PROXIES, *proxy._EXCEPTIONS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(proxy.socket, "create_connection", None)
    monkeypatch.setenv("https_proxy", url)
    address = Address("bank.example", 8443)
    for act in (lambda: proxy.check_proxy(address), lambda: proxy.connect(address, 1.0)):
        with pytest.raises(InvalidValue) as error:
            act()
        said = str(error.value)
        assert said.startswith("the environment variable https_proxy is no URL of a proxy: write ")
        assert not [part for part in ("s3cret", "t0ken", "example", "70000") if part in said]
        assert error.value.__context__ is None, "a traceback would show it"
    monkeypatch.setenv("no_proxy", "bank.example")
    proxy.check_proxy(address)


@pytest.mark.parametrize(
    ("entries", "host", "direct"),
    [
        ("x, .Example", "bank.example", True), (".example", "Bank.Example", True),
        ("other", "bank.example", False),
        ("10.1.2.3/16", "10.1.9.9", True), ("10.1.2.3/16", "10.2.9.9", False),
        ("", "bank.example", False),
    ],
)  # fmt: skip
def test_exceptions_are_ends_of_names_and_networks(
    entries: str, host: str, direct: bool, connected: Callable[..., Any]
) -> None:
    for name in ("no_proxy", "no_grpc_proxy"):
        found = connected(host, http_proxy="http://proxy:1", **{name: entries})
        assert (found[:2] == (host, 8443)) == direct


def test_a_password_is_the_line_of_its_file_and_for_its_owner_alone(tmp_path: Path) -> None:
    own, file = TlsSettings(tmp_path, password_file="pass"), tmp_path / "pass"
    file.write_bytes(b"secret \r\n")
    file.chmod(0o600)
    assert own.password() == b"secret "
    file.write_bytes(b"\n")
    with pytest.raises(CertificateError, match="is empty: put the key's password into it"):
        own.password()
    for mode in (0o640, 0o602):
        file.chmod(mode)
        with pytest.raises(CertificateError, match=f"has mode 0{mode:o}"):
            own.password()


def test_a_variable_that_is_empty_holds_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = TlsSettings(tmp_path, password_env="OWN_KEY")
    for value in (None, ""):
        if value is not None:
            monkeypatch.setenv("OWN_KEY", value)
        with pytest.raises(CertificateError, match="is not set, or empty"):
            own.password()
    monkeypatch.setenv("OWN_KEY", "secret")
    assert own.password() == b"secret"


@pytest.mark.parametrize("name", ["*.example", ""])
def test_a_name_is_written_in_full(name: str, tmp_path: Path) -> None:
    (tmp_path / "tls.yaml").write_text(f"names: {{left: '{name}'}}\n")
    with pytest.raises(CertificateError, match="is not one DNS name or IP address"):
        TlsSettings.read(tmp_path)


def test_a_party_is_named_by_its_entry_or_by_itself(tmp_path: Path) -> None:
    own = TlsSettings(tmp_path, names={"left": "fl.left.example"})
    assert (own.name_of("left"), own.name_of("right")) == ("fl.left.example", "right")


def test_a_right_is_held_by_the_names_that_have_it() -> None:
    def own(roles: dict[str, list[str]] | None) -> Any:
        settings = SimpleNamespace(roles=roles, path=Path)
        return SimpleNamespace(settings=settings, parties=["lead", "bank"], party="shop",
                               name_of=lambda party: f"{party}.example")  # fmt: skip

    assert may(own(None), ["bank.example"], "train")
    assert not may(own(None), ["shop.example"], "train")
    roles = own({"bank": ["train"], "shop": ["predict"]})
    assert may(roles, ["x", "bank.example"], "train")
    assert not may(roles, ["bank.example"], "predict")
    assert not may(roles, ["lead.example"], "train")
    for without_tls_or_roles in (None, own(None)):
        check_right(without_tls_or_roles, "bank", "train")
    check_right(roles, "bank", "train")
    for listed, right in ((roles, "predict"), (own({}), "train")):
        with pytest.raises(RightMissing, match=f"bank may not {right} with shop: roles in tls.ya"):
            check_right(listed, "bank", right)


def test_a_partys_name_has_at_most_63_characters() -> None:
    assert check_name("the party", "a" * 63) == "a" * 63
    with pytest.raises(SplitInvalid, match="at most 63 in all"):
        check_name("the party", "a" * 64)
