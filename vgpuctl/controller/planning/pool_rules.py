# SPDX-License-Identifier: Apache-2.0
"""The rules of single values in a pool's spec; `vgpuctl.config.rules` explains how a rule works."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping

from vgpuctl.config import rules
from vgpuctl.config.agent_spec import ACCOUNT_PATTERN
from vgpuctl.config.rules import Problem, ValidationError
from vgpuctl.config.shape import Rule, nonempty_list
from vgpuctl.config.vm_fields import JsonSchema, pattern_schema
from vgpuctl.config.vm_spec import check_pattern
from vgpuctl.controller.model import EVERYBODY, Logon, PoolSpec, ReadyWhen
from vgpuctl.controller.planning.desktop_address import ADDRESS, NAME, OPEN_RDP, USER
from vgpuctl.controller.planning.rdp_file import check_rdp_key
from vgpuctl.controller.planning.schedules import DAY_NAMES, zone_of
from vgpuctl.errors import InvalidInput
from vgpuctl.model.guest_logon import is_account, is_guest_user

MAX_DESKTOPS = 10_000
MAX_LINK = 500
MAX_NAME, MAX_DNS = 63, 253
"""So long may a desktop's name be, and a name in the DNS."""
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
LINK_WORDS = (ADDRESS, USER, NAME)
_UNSAFE_SCHEMES = (
    "javascript",
    "data",
    "vbscript",
    "file",
    "blob",
    "about",
    "view-source",
    "filesystem",
    "chrome",
    "edge",
    "intent",
    "ms-officecmd",
    "search-ms",
    "ms-msdt",
)
USER_PATTERN = ACCOUNT_PATTERN
RESERVED = frozenset((EVERYBODY, "controller"))
"""Everybody who can sign in; and in the journal, the controller itself."""
DAY_WORDS = {"weekdays": (0, 1, 2, 3, 4), "weekend": (5, 6), "daily": (0, 1, 2, 3, 4, 5, 6)}
CLOCK_SCHEMA = pattern_schema("(([01]?[0-9]|2[0-3]):[0-5][0-9]|24:00)")
MINUTES_SCHEMA: JsonSchema = {"anyOf": [pattern_schema("[0-9]{1,4}(m|h)?"), {"minimum": 0, "type": "integer"}]}
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])|(24):00", re.ASCII)
_MINUTES = re.compile(r"([0-9]{1,4})(m|h)?", re.ASCII)
_PORT = re.compile(r"port(?: ([0-9]{1,5}))?", re.ASCII)
_DIGITS = re.compile(r"\{:0([1-9])\}", re.ASCII)


def names(value: object) -> str:
    """Check the pattern of a pool's names."""
    text = rules.as_text(value)
    if len(text) > 63 + len("{:03}"):
        raise ValueError(f"a pattern of {len(text)} characters is too long: names have at most 63")
    if "{" not in text:
        raise ValueError(f"{text!a} has no number: write it like office-{{:03}} for office-001, office-002 and so on")
    return check_pattern(text)


def digits(pattern: str) -> int | None:
    """Return how many digits the numbers of a pattern have at least; None: as many as they need."""
    match = _DIGITS.search(pattern)
    return int(match[1]) if match else None


def checked_name(name: str) -> str:
    """Return the name of a pool, host, image or token.

    Raises:
        InvalidInput: it is none.
    """
    try:
        return rules.name(name)
    except ValueError as error:
        raise InvalidInput(f"name: {error}") from error


def user(value: object) -> str:
    """Check the name of a user, also of a directory service: `ada@example.org`."""
    text = rules.as_text(value)
    if not re.fullmatch(USER_PATTERN, text, re.ASCII):
        raise ValueError(f"{text[:99]!a} is not the name of a user")
    if text in RESERVED:
        raise ValueError(f"{text} is no user's name: it means something else here")
    return text


def logon_problem(name: str, logon: Logon | None) -> str | None:
    """Return why a user cannot have a desktop of a pool with this `logon`; None: he can."""
    if logon is Logon.LOCAL and not is_account(name):
        return f"{name[:99]!a} is not the name of a local account: at most 32 of a to z, digits, _ and -"
    if logon is Logon.DOMAIN and not is_guest_user(name):
        return f"{name[:99]!a} means more than one user in a guest"
    return None


def ready_when(value: object) -> tuple[ReadyWhen, int]:
    """Return when a desktop is ready, and the port."""
    text = " ".join(rules.as_text(value).split())
    match = _PORT.fullmatch(text)
    if match is not None:
        port = int(match[1] or PoolSpec.port)
        if not 1 <= port <= 65535:
            raise ValueError(f"{port} is not a port between 1 and 65535")
        return ReadyWhen.PORT, port
    if text not in (ReadyWhen.RUNNING, ReadyWhen.GUEST):
        raise ValueError(f"{text[:99]!a} is not running, guest or port 3389")
    return ReadyWhen(text), PoolSpec.port


def minutes(minimum: int, maximum: int) -> Callable[[object], int]:
    """Return the rule for a time in minutes: `15`, `15m` or `1h`."""

    def rule(value: object) -> int:
        match = _MINUTES.fullmatch(value.strip()) if isinstance(value, str) else None
        if isinstance(value, str):
            if match is None:
                raise ValueError(f"{value[:99]!a} is not a time in minutes: write it like 15m or 1h")
            value = int(match[1]) * (60 if match[2] == "h" else 1)
        return rules.whole_number(minimum, maximum)(value)

    return rule


def clock_time(value: object) -> int:
    """Return a local time in minutes after midnight."""
    text = rules.as_text(value)
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:99]!a} is not a time between 00:00 and 24:00, like 07:30")
    return 1440 if match[3] else int(match[1]) * 60 + int(match[2])


def days(value: object) -> tuple[int, ...]:
    """Return weekdays, Monday is 0, from their names or from words for several."""
    numbers: list[int] = []
    listed = nonempty_list(rules.one_of((*DAY_NAMES, *DAY_WORDS)))(value)
    for word in listed if isinstance(listed, tuple) else ():
        numbers += DAY_WORDS.get(word) or (DAY_NAMES.index(word),)
    doubled = sorted({number for number in numbers if numbers.count(number) > 1})
    if doubled:
        raise ValueError(f"{DAY_NAMES[doubled[0]]} is given twice")
    return tuple(sorted(numbers))


def day_texts(numbers: tuple[int, ...]) -> object:
    """Return weekdays as people write them."""
    word = next((word for word, group in DAY_WORDS.items() if group == numbers), None)
    return word or [DAY_NAMES[number] for number in numbers]


def time_zone(value: object) -> str:
    """Check the IANA name of a time zone."""
    text = rules.as_text(value)
    zone_of(text)
    return text


def flag(value: object) -> bool:
    """Check true or false."""
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def unique_list(rule: Rule, most: int) -> Rule:
    """Return the rule of a field that takes one value or a list of at most so many, none of them twice."""
    listed = nonempty_list(rule)

    def check(value: object) -> object:
        if isinstance(value, list | tuple) and len(value) > most:
            raise ValueError(f"{len(value)} entries; at most {most} are allowed")
        entries = listed(value)
        seen: set[object] = set()
        for number, entry in enumerate(entries if isinstance(entries, tuple) else ()):
            if entry in seen:
                raise rules.ValidationError((rules.Problem((number,), "is given twice"),))
            seen.add(entry)
        return entries

    return check


def opening(value: object) -> str:
    """Check how a desktop is opened: `rdp`, or the template of a link."""
    text = rules.as_text(value)
    if text == OPEN_RDP:
        return text
    if len(text) > MAX_LINK or not text.isascii() or not text.isprintable() or re.search(r'[\s"<>\\^`|]', text):
        raise ValueError(f"rdp, or a link of at most {MAX_LINK} printable ASCII characters")
    scheme, colon, rest = text.partition(":")
    if not colon or not rest or not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        raise ValueError("rdp, or a link such as https://gateway.example.org/?host={address}&user={user}")
    if scheme in _UNSAFE_SCHEMES:
        raise ValueError(f"{scheme}: links run in the browser itself, or open its own pages or files")
    if rest.startswith("//") and "@" in rest[2:].partition("/")[0].replace(USER, ""):
        raise ValueError("a link with a name or password before its server: everybody who opens it would see that")
    unknown = [word for word in re.findall(r"\{[^{}]*\}|[{}]", text) if word not in LINK_WORDS]
    if unknown:
        raise ValueError(f"{unknown[0]} is not known: it can have {', '.join(LINK_WORDS)}")
    return text


def dns_name(value: object) -> str:
    """Check the pattern of a desktop's name in the DNS."""
    text = rules.as_text(value)
    longest = text.replace(NAME, "x" * MAX_NAME)
    labels = longest.removesuffix(".").split(".")
    is_name = len(longest) <= MAX_DNS and all(re.fullmatch(_LABEL, label, re.ASCII) for label in labels)
    if text.count(NAME) != 1 or not is_name or labels[-1].isdigit():
        raise ValueError("a name in the DNS with {name} for the desktop's own, like {name}.vdi.example.org")
    return text


def subnet(value: object) -> str:
    """Check a subnet, and write it as the kernel does."""
    try:
        network = ipaddress.ip_network(rules.as_text(value))
    except ValueError as error:
        raise ValueError(f"{value!a} is no subnet, like 10.20.0.0/16: {error}") from None
    is_mapped = network.version == 6 and network.network_address.ipv4_mapped is not None
    if network.is_loopback or network.is_link_local or network.is_multicast or is_mapped:
        raise ValueError(f"{network}: no desktop is there")
    return str(network)


def rdp_keys(value: object) -> dict[str, int | str]:
    """Check the keys of a pool's RDP files."""
    if not isinstance(value, Mapping):
        raise ValueError("keys of RDP files with their values, like redirectclipboard: 1")
    keys: dict[str, int | str] = {}
    problems = []
    for name, given in value.items():
        try:
            keys[str(name)] = check_rdp_key(str(name), given)
        except ValueError as error:
            problems.append(Problem((str(name)[:60],), str(error)))
    if problems:
        raise ValidationError(tuple(problems))
    return keys
