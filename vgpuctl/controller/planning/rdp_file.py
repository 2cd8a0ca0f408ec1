# SPDX-License-Identifier: Apache-2.0
"""The RDP file that opens a desktop, as text: `key:type:value` in each line, CR and LF after each.

An admin sets keys for a pool, of those that `KEYS` allows: what a key makes the user's own computer give away
(clipboard, drives, printers, USB) is off unless he sets it. The keys and their values are those of Microsoft Learn,
"Supported RDP properties"; keys that start programs (`alternate shell`, the RemoteApp keys) are none of them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping

RDP_PORT = 3389
MAX_TEXT = 200
TEXT, NUMBER = "s", "i"
_OWN_KEYS = ("full address", "alternate full address", "username", "signscope", "signature")
_PROGRAM_KEYS = re.compile(r"alternate shell|shell working directory|remoteapplication.*|disableremoteapp.*", re.ASCII)


def _number(*allowed: int) -> Callable[[object], int]:
    def rule(value: object) -> int:
        number = int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,4}", value, re.ASCII) else value
        if isinstance(number, bool) or not isinstance(number, int) or number not in allowed:
            shown = f"{allowed[0]} to {allowed[-1]}" if len(allowed) > 10 else ", ".join(map(str, allowed))
            raise ValueError(f"one of {shown}")
        return number

    return rule


def _text(pattern: str, words: str) -> Callable[[object], str]:
    def rule(value: object) -> str:
        text = value if isinstance(value, str) else str(value) if type(value) is int else ""
        if len(text) > MAX_TEXT or not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(words)
        return text

    return rule


_FLAG = _number(0, 1)
_PIXELS = _number(*range(200, 8193))
_DEVICES = _text(r"[ -~]*", f"at most {MAX_TEXT} ASCII characters in one line")
_PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_SERVER = _text(rf"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:{_PORT})?", "a host name, with its port if it is not 443")

KEYS: Mapping[str, Callable[[object], int | str]] = {
    "audiocapturemode": _FLAG,
    "audiomode": _number(0, 1, 2),
    "authentication level": _number(1, 2),  # 0 and 3: no word about a server that is another one
    "autoreconnection enabled": _FLAG,
    "bandwidthautodetect": _FLAG,
    "camerastoredirect": _DEVICES,
    "compression": _FLAG,
    "connection type": _number(1, 2, 3, 4, 5, 6, 7),
    "desktopheight": _PIXELS,
    "desktopscalefactor": _number(100, 125, 150, 175, 200, 250, 300, 400, 500),
    "desktopwidth": _PIXELS,
    "devicestoredirect": _DEVICES,
    "displayconnectionbar": _FLAG,
    "domain": _text(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", "the name of a domain"),
    "drivestoredirect": _DEVICES,
    "dynamic resolution": _FLAG,
    "enablecredsspsupport": _FLAG,
    "enablerdsaadauth": _FLAG,
    "gatewaycredentialssource": _number(0, 1, 2, 3, 4, 5),
    "gatewayhostname": _SERVER,
    "gatewayprofileusagemethod": _FLAG,
    "gatewayusagemethod": _number(0, 1, 2, 3, 4),
    "kdcproxyname": _text(r"[A-Za-z0-9][A-Za-z0-9.:/_-]*", "the name of a proxy"),
    "keyboardhook": _number(0, 1, 2),
    "maximizetocurrentdisplays": _FLAG,
    "networkautodetect": _FLAG,
    "prompt for credentials": _FLAG,
    "promptcredentialonce": _FLAG,
    "redirectclipboard": _FLAG,
    "redirectcomports": _FLAG,
    "redirectlocation": _FLAG,
    "redirectprinters": _FLAG,
    "redirectsmartcards": _FLAG,
    "redirectwebauthn": _FLAG,
    "screen mode id": _number(1, 2),
    "selectedmonitors": _text(r"[0-9]{1,2}(,[0-9]{1,2})*", "the numbers of screens, like 0,1"),
    "session bpp": _number(15, 16, 24, 32),
    "singlemoninwindowedmode": _FLAG,
    "smart sizing": _FLAG,
    "usbdevicestoredirect": _DEVICES,
    "use multimon": _FLAG,
    "videoplaybackmode": _FLAG,
}
"""The keys that a pool may set, each with the rule of its values."""

DEFAULTS: Mapping[str, int | str] = {
    "audiocapturemode": 0,
    "audiomode": 0,
    "authentication level": 2,
    "autoreconnection enabled": 1,
    "camerastoredirect": "",
    "devicestoredirect": "",
    "drivestoredirect": "",
    "dynamic resolution": 1,
    "enablecredsspsupport": 1,
    "networkautodetect": 1,
    "redirectclipboard": 0,
    "redirectcomports": 0,
    "redirectlocation": 0,
    "redirectprinters": 0,
    "redirectsmartcards": 0,
    "redirectwebauthn": 0,
    "screen mode id": 2,
    "usbdevicestoredirect": "",
    "videoplaybackmode": 1,
}
"""What each file has unless the pool sets it: clients switch redirections on where a file says nothing."""

_GATEWAY_DEFAULTS: Mapping[str, int | str] = {"gatewayusagemethod": 1, "gatewayprofileusagemethod": 1}
"""With a gateway: it is always used, and the file says so and not the user's own settings."""


def check_rdp_key(name: str, value: object) -> int | str:
    """Return the value of a key that a pool sets.

    Raises:
        ValueError: the key may not be set, or not so.
    """
    if name in _OWN_KEYS:
        raise ValueError("the controller sets this key: omit it")
    if _PROGRAM_KEYS.fullmatch(name):
        raise ValueError("a pool gives whole desktops: a key that starts a program is not allowed")
    rule = KEYS.get(name)
    if rule is None:
        raise ValueError("not one of the keys that a pool may set")
    try:
        return rule(value)
    except ValueError as error:
        raise ValueError(f"{_shown(value)}: {error}") from None


def _shown(value: object) -> str:
    return f"{value!a}"[:60]


def rdp_lines(keys: Mapping[str, int | str], address: str, port: int, user: str) -> list[str]:
    """Return the lines of an RDP file, without their ends.

    Raises:
        ValueError: a value would be more than a line; `check_rdp_key` lets none through.
    """
    gateway = _GATEWAY_DEFAULTS if "gatewayhostname" in keys else {}
    server = full_address(address, port)
    values = {**DEFAULTS, **gateway, **keys}
    lines = [f"full address:{TEXT}:{server}", f"alternate full address:{TEXT}:{server}", f"username:{TEXT}:{user}"]
    for name in sorted(values):
        value = values[name]
        lines.append(f"{name}:{NUMBER if isinstance(value, int) else TEXT}:{value}")
    for line in lines:
        if not line.isascii() or not line.isprintable():
            raise ValueError(f"not one line of ASCII characters: {line[:60]!a}")
    return lines


def full_address(address: str, port: int) -> str:
    """Return a server's address as an RDP file has it: the port only if it is another one than RDP's."""
    try:
        is_v6 = ipaddress.ip_address(address).version == 6
    except ValueError:
        is_v6 = False
    host = f"[{address}]" if is_v6 else address
    return host if port == RDP_PORT else f"{host}:{port}"


def rdp_text(lines: list[str]) -> str:
    """Return a file of these lines."""
    return "".join(f"{line}\r\n" for line in lines)
