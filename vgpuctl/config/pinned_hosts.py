# SPDX-License-Identifier: Apache-2.0
"""`agent: allow: migrate_to:` of host.yaml: hosts with which VMs of accounts may be exchanged, each with its SSH key.

migrate_to:
gpu02: {host_key: "SHA256:...", libvirt: qemu+tls://gpu02.example.org/system, address: 10.0.0.2}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.shape import Key, Shape, mapping_of
from vgpuctl.config.vm_fields import pattern_schema
from vgpuctl.value import Value, as_dict

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}"
HOST_KEY_PATTERN = r"([a-z0-9@.-]+ )?SHA256:[A-Za-z0-9+/]{43}"
ADDRESS_PATTERN = r"([A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
LIBVIRT_PATTERN = r"(qemu(\+[a-z0-9]+)?://\S+|sim:.+)"


class PinnedHost(Value):
    """A host that VMs may move to and come from. `host_key`: of its SSH server, `SHA256:...`, perhaps after its type.

    `libvirt`: the URI by which this host's libvirt reaches that one's; None: by SSH, under its name. `address`: where
    memory and disks go; None: as libvirt decides.
    """

    host_key: str
    libvirt: str | None = None
    address: str | None = None

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint alone."""
        return self.host_key.rpartition(" ")[2]

    def uri(self, name: str) -> str:
        """Return the URI of its libvirt; `name`: under which host.yaml has it."""
        return self.libvirt or f"qemu+ssh://{name}/system"


def libvirt_uri(value: object) -> str:
    """Return the URI of another host's libvirt."""
    text = rules.as_text(value)
    if not re.fullmatch(LIBVIRT_PATTERN, text, re.ASCII):
        raise ValueError(f"'{text}' is not a URI of libvirt, such as qemu+ssh://HOST/system")
    if text.startswith(("qemu:///", "qemu+unix:///system")) and "socket=" not in text:
        raise ValueError(f"'{text}' is this host's own libvirt: name the other host, as in qemu+ssh://HOST/system")
    if re.fullmatch(r"qemu[^?]*/session(\?.*)?", text):
        raise ValueError(f"'{text}' is a user's own libvirt: use /system")
    if "no_verify" in text:
        raise ValueError(f"'{text}' does not check who answers: leave no_verify out")
    return text


def transfer_address(value: object) -> str:
    """Return the address, perhaps with a port, to which memory and disks are sent."""
    text = rules.as_text(value)
    if _is_ipv6(text):
        raise ValueError(f"an IPv6 address needs brackets: [{text}]")
    match = re.fullmatch(ADDRESS_PATTERN, text, re.ASCII)
    host = "" if match is None else match[1]
    if match is None or not _is_whole(host):
        raise ValueError(f"'{text}' is not a host's name or address")
    return text


def _is_ipv6(text: str) -> bool:
    try:
        return isinstance(ip_address(text), IPv6Address)
    except ValueError:
        return False


def _is_whole(host: str) -> bool:
    """Return whether a host's name is none, or all of an address: 10.0.0 would be read as 10.0.0.0."""
    if not re.fullmatch(r"[0-9.]+|\[.*\]", host):
        return True
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def read_pinned_hosts(given: Mapping[str, Mapping[str, Any]]) -> dict[str, PinnedHost]:
    """Return the hosts of the checked key."""
    return {name: PinnedHost(**entry) for name, entry in given.items()}


def dump_pinned_hosts(hosts: Mapping[str, PinnedHost]) -> dict[str, dict[str, str]]:
    """Return the hosts as host.yaml writes them."""
    return {
        name: {key: text for key, text in as_dict(host).items() if text is not None} for name, host in hosts.items()
    }


def _host_name(value: object) -> str:
    """Return the name of another host."""
    text = rules.as_text(value)
    if not re.fullmatch(NAME_PATTERN, text, re.ASCII):
        raise ValueError(f"{text!a} is not the name of a host")
    return text


def _host_key(value: object) -> str:
    text = rules.as_text(value)
    if not re.fullmatch(HOST_KEY_PATTERN, text, re.ASCII):
        raise ValueError(
            f"{text!a} is not the fingerprint of a host's key, SHA256:...: on that host, "
            "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub prints it"
        )
    return text


_HOST_SHAPE = Shape(
    "AgentPinnedHost",
    "A host that VMs of members may move to and come from; the two hosts name each other.",
    (
        Key(
            "host_key",
            _host_key,
            "the fingerprint of its SSH host key (ed25519, where it has one), as ssh-keygen -lf prints it",
            pattern_schema(HOST_KEY_PATTERN),
            required=True,
        ),
        Key(
            "libvirt",
            libvirt_uri,
            "the URI by which root of this host reaches its libvirt; without it, qemu+ssh://NAME/system",
            pattern_schema(LIBVIRT_PATTERN),
        ),
        Key(
            "address",
            transfer_address,
            "the address to which memory and disks are sent; without it, the name that its libvirt knows",
            pattern_schema(ADDRESS_PATTERN),
        ),
    ),
)
MIGRATE_TO = Key(
    "migrate_to",
    mapping_of(_host_name, _HOST_SHAPE),
    "hosts to which their VMs may move, and from which they may come, by the names that a controller has",
    map_value_shape=_HOST_SHAPE,
)
