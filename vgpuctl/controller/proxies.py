# SPDX-License-Identifier: Apache-2.0
"""What a reverse proxy says of the request that it passes on, if it is one that is trusted; else nobody believes it.

Each proxy adds the address of who asked it at the end of X-Forwarded-For. So the last one there that is no trusted
proxy is the browser's; what stands before it may be invented.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from vgpuctl.errors import InvalidInput

MAX_PROXIES = 50
_HOST = re.compile(r"[A-Za-z0-9.\-]{1,253}(:\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:\d{1,5})?", re.ASCII)
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_proxies(texts: Sequence[str]) -> tuple[_Network, ...]:
    """Return the networks of trusted proxies: addresses, or `ADDRESS/BITS`.

    Raises:
        InvalidInput: one is none, or is everybody's.
    """
    networks: list[_Network] = []
    for text in texts:
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise InvalidInput(
                f"--trusted-proxy {text[:60]}: {error}", hint="such as 127.0.0.1 or 10.0.0.0/29"
            ) from error
        if not network.prefixlen:
            raise InvalidInput(f"--trusted-proxy {text}: then anybody could say where he is")
        networks.append(network)
    if len(networks) > MAX_PROXIES:
        raise InvalidInput(f"--trusted-proxy: {len(networks)} networks, and at most {MAX_PROXIES} are allowed")
    return tuple(networks)


def through_proxies(app: Any, networks: Sequence[_Network]) -> Any:
    """Return an application for requests that may come through a proxy of these networks."""
    if not networks:
        return app

    async def passed_on(
        scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        await app(forwarded(scope, networks), receive, send)

    return passed_on


def forwarded(scope: Mapping[str, Any], networks: Sequence[_Network]) -> dict[str, Any]:
    """Return the scope of a request as its browser made it, where a trusted proxy passed it on."""
    result = dict(scope)
    peer = _address_of((scope.get("client") or ("",))[0])
    if scope["type"] not in ("http", "websocket") or peer is None or not _is_in(peer, networks):
        return result
    headers: list[tuple[bytes, bytes]] = list(scope["headers"])
    result["client"] = (str(_find_client(peer, _values(headers, b"x-forwarded-for"), networks)), 0)
    scheme = next(reversed(_values(headers, b"x-forwarded-proto")), "").lower()
    if scheme in ("http", "https"):
        result["scheme"] = scheme.replace("http", "ws") if scope["type"] == "websocket" else scheme
    host = next(reversed(_values(headers, b"x-forwarded-host")), "")
    if _HOST.fullmatch(host):
        result["headers"] = [(b"host", host.encode()), *(one for one in headers if one[0] != b"host")]
    return result


def _find_client(peer: _Address, addresses: Sequence[str], networks: Sequence[_Network]) -> _Address:
    client = peer
    for text in reversed(addresses):
        address = _address_of(text)
        if address is None or not _is_in(client, networks):
            break
        client = address
    return client


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[str]:
    """Return the values of a header in order, also of several of this name."""
    text = ",".join(value.decode("latin-1") for key, value in headers if key == name)
    return [one.strip() for one in text.split(",") if one.strip()]


def _address_of(text: str) -> _Address | None:
    """Return an address, also one with a port behind it; None: it is none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_in(address: _Address, networks: Sequence[_Network]) -> bool:
    return any(address in network for network in networks)
