# SPDX-License-Identifier: Apache-2.0
"""The rules of a VM's network cards, memory pages and CPUs; `rules` explains how a rule works.

A network card is one text, `lan` or `bridge=br0,vlan=30`, or a mapping of the same keys. Both have one canonical
spelling, the text, so host.yaml, spec files, options and JSON compare equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vgpuctl.config import rules
from vgpuctl.config.arguments import (
    CPU_PIN_AUTO,
    HUGEPAGES_KIB,
    NETWORK_MODELS,
    NONE,
    RENDERING_MODE,
)
from vgpuctl.model.numbers import format_ranges, parse_ranges
from vgpuctl.model.vm import Nic

MAX_CPUS = 8192
MAX_VLAN = 4094
NETWORK_KEYS = ("network", "bridge", "vlan", "model", "mac")
BRIDGE_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,14}"
"""The name of a network interface: at most 15 characters (IFNAMSIZ), of those that people use."""

_MAC_PATTERN = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.ASCII)
_CPU_LIST = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*", re.ASCII)


def network(value: object) -> str:
    """Return one network card's canonical text, or `none`."""
    if isinstance(value, Mapping):
        return _nic_from(value).text
    text = rules.as_text(value).strip()
    if text == NONE:
        return NONE
    if "=" not in text and "," not in text:
        return rules.resource_name(text)
    options: dict[object, object] = {}
    for part in text.split(","):
        key, equals, entry = part.partition("=")
        if not equals:
            raise ValueError(
                f"'{part}' in '{text}' is not KEY=VALUE: write it like network=lan,model=e1000e or bridge=br0,vlan=30"
            )
        if key in options:
            raise ValueError(f"{key} is given twice in '{text}'")
        options[key] = int(entry) if key == "vlan" and entry.isascii() and entry.isdigit() else entry
    return _nic_from(options).text


def parse_nic(text: str) -> Nic:
    """Return the network card that a checked text describes."""
    if "=" not in text:
        return Nic(network=text)
    options: dict[str, str] = dict(part.split("=", 1) for part in text.split(","))
    vlan = options.get("vlan")
    return Nic(
        network=options.get("network"),
        bridge=options.get("bridge"),
        vlan=None if vlan is None else int(vlan),
        model=options.get("model"),
        mac=options.get("mac"),
    )


def find_device_contradictions(fields: Mapping[str, object]) -> tuple[rules.Problem, ...]:
    """Check network cards together, and the display with the mode; works on unchecked values too."""
    networks, problems = fields.get("networks"), []
    cards = networks if isinstance(networks, tuple) else ()
    if NONE in cards and len(cards) > 1:
        problems.append(rules.Problem(("networks",), "none means no network card: specify either none or networks"))
    macs = [text.rpartition("mac=")[2] for text in map(str, cards) if ",mac=" in text]
    for duplicate in sorted({mac for mac in macs if macs.count(mac) > 1}):
        problems.append(rules.Problem(("networks",), f"the MAC address {duplicate} is given twice"))
    if fields.get("display") and fields.get("mode") in ("sriov", "passthrough", RENDERING_MODE):
        problems.append(rules.Problem(("display",), f"mode {fields['mode']} has no vGPU whose screen could be shown"))
    return tuple(problems)


def _nic_from(options: Mapping[object, object]) -> Nic:
    unknown = [str(key) for key in options if key not in NETWORK_KEYS]
    if unknown:
        raise ValueError(
            f"'{unknown[0]}' is not one of {', '.join(NETWORK_KEYS)}{rules.suggest_word(unknown[0], NETWORK_KEYS)}"
        )
    given = {str(key): value for key, value in options.items() if value is not None}
    if ("network" in given) == ("bridge" in given):
        raise ValueError("specify one of network (a libvirt network) and bridge (a bridge of the host)")
    if "vlan" in given and "bridge" not in given:
        raise ValueError("vlan requires bridge; a libvirt network defines the VLAN itself, in its <vlan>")
    return Nic(
        network=_network_name(given["network"]) if "network" in given else None,
        bridge=_bridge_name(given["bridge"]) if "bridge" in given else None,
        vlan=rules.whole_number(1, MAX_VLAN)(given["vlan"]) if "vlan" in given else None,
        model=rules.one_of(NETWORK_MODELS)(given["model"]) if "model" in given else None,
        mac=mac_address(given["mac"]) if "mac" in given else None,
    )


def _network_name(value: object) -> str:
    name = rules.resource_name(value)
    if "," in name or "=" in name:
        raise ValueError(f"'{name}' is not a network name here: ',' and '=' separate the options of --network")
    return name


def _bridge_name(value: object) -> str:
    name = rules.as_text(value)
    if not re.fullmatch(BRIDGE_PATTERN, name):
        raise ValueError(f"{name!a} is not the name of a bridge, like br0")
    return name


def mac_address(value: object) -> str:
    """Return a MAC address that a network card can have, in lower case with colons."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{value} is a number: put the MAC address in quotes")
    text = rules.as_text(value)
    mac = text.lower().replace("-", ":")
    if not _MAC_PATTERN.fullmatch(mac):
        raise ValueError(f"{text!a} is not a MAC address: write it like 52:54:00:12:34:56")
    if int(mac[:2], 16) & 1:
        raise ValueError(f"{mac} is a multicast address: the first byte of a network card's address is even, like 52")
    if mac == "00:00:00:00:00:00":
        raise ValueError(f"{mac} is not an address of a network card")
    return mac


def hugepages(value: object) -> str:
    """Return the size of huge pages in its shortest spelling, or `none`."""
    text = rules.as_text(value)
    if text.lower() == NONE:
        return NONE
    size = next((size for size in HUGEPAGES_KIB if text.lower() in (size.lower(), size.lower()[:2])), None)
    if size is None:
        raise ValueError(f"{text!a} is not a size of huge pages: write 2MiB, 1GiB or none")
    return size


def cpu_pin(value: object) -> str:
    """Return a list of CPUs in its shortest spelling, `auto`, or `none`."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    text = rules.as_text(value)
    if text.lower() in (CPU_PIN_AUTO, NONE):
        return text.lower()
    joined = "".join(text.split())
    cpus = parse_ranges(joined, MAX_CPUS) if _CPU_LIST.fullmatch(joined) else frozenset()
    if not cpus:
        raise ValueError(f"{text!a} is not a list of CPUs like 8-15,24-31, and not auto or none")
    return format_ranges(cpus)
