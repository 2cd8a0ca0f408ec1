# SPDX-License-Identifier: Apache-2.0
"""Where a request comes from, behind proxies and for who pretends to be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from tests.controller.controllers import running_controller
from tests.controller.test_access import PASSWORD
from vgpuctl.controller.callers import address_of
from vgpuctl.controller.proxies import forwarded, parse_proxies
from vgpuctl.controller.routes import API
from vgpuctl.errors import InvalidInput

TRUSTED = parse_proxies(["127.0.0.1", "10.0.0.0/29", "fd00::/64"])


def seen(peer: str | None, *headers: tuple[str, str], kind: str = "http") -> Request:
    """Return a request as the controller sees it that comes from a peer."""
    scope: dict[str, Any] = {
        "type": kind, "scheme": "ws" if kind == "websocket" else "http", "path": "/", "query_string": b"",
        "headers": [(b"host", b"inside:8443"), *((name.encode(), text.encode("latin-1")) for name, text in headers)],
        "client": None if peer is None else (peer, 1234), "server": ("inside", 8443),
    }  # fmt: skip
    return Request({**forwarded(scope, TRUSTED), "type": "http"})


@pytest.mark.parametrize(
    ("peer", "chain", "address"),
    [
        ("127.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("127.0.0.1", "8.8.8.8, 192.0.2.7", "192.0.2.7"),
        ("127.0.0.1", "8.8.8.8, 192.0.2.7, 10.0.0.3", "192.0.2.7"),
        ("127.0.0.1", "10.0.0.2, 10.0.0.3", "10.0.0.2"),
        ("127.0.0.1", "192.0.2.7, rubbish", "127.0.0.1"),
        ("127.0.0.1", "rubbish, 192.0.2.7", "192.0.2.7"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "192.0.2.7:4711", "192.0.2.7"),
        ("fd00::5", "[2001:db8::1]:4711", "2001:db8::1"),
        ("::ffff:10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.9", "192.0.2.7", "10.0.0.9"),
        ("203.0.113.9", "192.0.2.7, 127.0.0.1", "203.0.113.9"),
    ],
)
def test_the_last_address_that_is_no_proxy_counts(peer: str, chain: str, address: str) -> None:
    assert address_of(seen(peer, ("x-forwarded-for", chain))) == address
    several = [("x-forwarded-for", one) for one in chain.split(", ")]
    assert address_of(seen(peer, *several)) == address, "in several headers"


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_only_a_trusted_proxy_says_how_a_request_came(kind: str) -> None:
    headers = (("x-forwarded-proto", "https"), ("x-forwarded-host", "desks.example.org"))
    url = seen("127.0.0.1", *headers, kind=kind).url
    assert (url.scheme, url.netloc) == ("wss" if kind == "websocket" else "https", "desks.example.org")
    other = seen("203.0.113.9", *headers, kind=kind).url
    assert (other.scheme, other.netloc) == ("ws" if kind == "websocket" else "http", "inside:8443")
    for wrong in ("a b", "a/b", "", "x" * 300, "evil@host"):
        assert seen("127.0.0.1", ("x-forwarded-host", wrong)).url.netloc == "inside:8443"
    assert seen("127.0.0.1", ("x-forwarded-proto", "gopher")).url.scheme == "http"
    assert address_of(seen(None, ("x-forwarded-for", "192.0.2.7"))) == "socket"


@given(st.text(max_size=60), st.sampled_from(["127.0.0.1", "203.0.113.9"]))
def test_any_text_is_an_address_or_ignored(text: str, peer: str) -> None:
    address = address_of(seen(peer, ("x-forwarded-for", text.encode("utf-8", "replace").decode("latin-1"))))
    if peer != "127.0.0.1":
        assert address == peer
    assert len(address) <= 100


@pytest.mark.parametrize("text", ["", "proxy.example.org", "10.0.0.1/8", "0.0.0.0/0", "::/0", "10.0.0.0/33"])
def test_networks_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput, match="--trusted-proxy"):
        parse_proxies([text])


def test_a_controller_believes_the_proxies_that_are_named(tmp_path: Path) -> None:
    with running_controller(tmp_path / "controller") as one:
        one.run("ensure-person", "ada")
        secret = tmp_path / "password"
        secret.write_text(PASSWORD)
        one.run("set-password", "ada", "--password-file", str(secret))
        one.run("entitle", "ada", "admin")
        sent = {"user": "ada", "password": PASSWORD}
        more = {"X_Forwarded_For": "192.0.2.7", "X_Forwarded_Proto": "https"}
        _, _, headers = one.request("POST", f"{API}/session", sent, **more)
        assert "Secure" not in headers["Set-Cookie"]
        one.stop()
        assert one.run("run", "--trusted-proxy", "127.0.0.1").returncode == 2
        one.start("--listen", f"127.0.0.1:{one.port}", "--trusted-proxy", "127.0.0.1")
        status, body, headers = one.request("POST", f"{API}/session", sent, **more)
        assert "__Host-vgpuctl=" in headers["Set-Cookie"]
        assert "Secure" in headers["Set-Cookie"]
        good = {
            "Cookie": headers["Set-Cookie"].partition(";")[0], body["header"].replace("-", "_"): body["token"],
            "Sec_Fetch_Site": "same-origin", **more,
        }  # fmt: skip
        assert (status, one.request("PUT", f"{API}/people/eve", {}, **good)[0]) == (200, 200)
        events = [(event["kind"], event["address"]) for event in one.data("list-events")[-3:]]
        assert events == [("signed-in", "127.0.0.1"), ("signed-in", "192.0.2.7"), ("person-added", "192.0.2.7")]
        for _ in range(5):
            wrong = {"user": "ada", "password": "wrong password"}
            assert one.request("POST", f"{API}/session", wrong, **{**more, "X_Forwarded_For": "198.51.100.1"})[0] == 401
        statuses = [
            one.request("POST", f"{API}/session", wrong, **{**more, "X_Forwarded_For": address})[0]
            for address in ("198.51.100.1", "9.9.9.9, 198.51.100.1", "198.51.100.2")
        ]
        assert statuses == [429, 429, 401], "tries count by where they come from"
