# SPDX-License-Identifier: Apache-2.0
"""The files for cloud-init, checked before a VM gets them: what would leave the guest without a user or a network.

Version 1 is a list of cards, version 2 is netplan's; cloud-init takes `network:` around either. Sources:
doc/rtd/reference/network-config-format-v1.rst and -v2.rst; netplan's src/parse.c refuses an address without a prefix
length and set-name without match. No message quotes a value that is not an address: it may be a password.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from vgpuctl.config.yaml_reader import LocatedProblem, problems_error
from vgpuctl.errors import InvalidInput
from vgpuctl.model.json_yaml import YamlError, compose_yaml
from vgpuctl.model.request import CloudInitFile
from vgpuctl.model.vm import Nic
from vgpuctl.value import Value, replace

MAX_USER_DATA_BYTES = 1 << 20
CLOUD_CONFIG = "#cloud-config"
_ARCHIVE = "#cloud-config-archive"
_JINJA = "## template: jinja"
_INCLUDES = ("#include", "#include-once")
_HEADERS = (CLOUD_CONFIG, _ARCHIVE, "#cloud-config-jsonp", "#cloud-boothook", *_INCLUDES, "#part-handler")
_MIME = ("mime-version:", "content-type: multipart/")


def parse_user_data(text: str, path: str) -> CloudInitFile:
    """Return user-data that cloud-init understands; `path` is its file, for messages.

    Raises:
        InvalidInput: the first problem, as `file:line:column: what is wrong`.
    """
    check_text(text, path)
    if text.startswith("\ufeff"):
        raise _problem_error(path, 1, "it begins with a byte order mark, after which cloud-init finds no header")
    lines = [line.rstrip() for line in text.split("\n")]
    if lines[0].lower().startswith(_MIME):
        return CloudInitFile(path, text)
    jinja = lines[0] == _JINJA
    header_line = lines[1] if jinja and len(lines) > 1 else lines[0]
    word, _, rest = header_line.partition(" ")
    if not header_line.startswith("#!") and word not in _HEADERS:
        allowed = ", ".join((*_HEADERS, "#!", f"'{_JINJA}'"))
        where = "its second line" if jinja else "its first line"
        raise _problem_error(path, 1 + jinja, f"cloud-init would ignore it: {where} must begin with one of {allowed}")
    has_url_in_header = bool(rest) and word in _INCLUDES
    if not jinja and word in (CLOUD_CONFIG, _ARCHIVE):  # a Jinja template becomes YAML only in the guest
        check_yaml(text, path, SequenceNode if word == _ARCHIVE else MappingNode)
    elif not any(lines[1 + jinja :]) and not has_url_in_header:
        raise _problem_error(path, 1, "nothing follows its header")
    return CloudInitFile(path, text)


def check_text(text: str, path: str) -> None:
    """Refuse a text that is too large, or is none."""
    if len(text.encode()) > MAX_USER_DATA_BYTES:
        raise _problem_error(path, 1, f"it is larger than {MAX_USER_DATA_BYTES >> 10} KiB")
    if "\0" in text:
        raise _problem_error(path, text[: text.index("\0")].count("\n") + 1, "it is not text: it contains a NUL byte")


def node_error(path: str, node: Node, text: str) -> InvalidInput:
    """Return the error for a place in a text."""
    return problems_error(path, [LocatedProblem(node.start_mark.line + 1, node.start_mark.column + 1, "", text)])


def check_yaml(text: str, path: str, expected: type[MappingNode] | type[SequenceNode]) -> Node:
    """Return a text's YAML, which must be of the expected kind.

    The parser's own error quotes the text. So ours is raised outside `except`, where it gets no `__context__`.
    """
    kind = "a mapping (key: value)" if expected is MappingNode else "a list of parts"
    problem: InvalidInput | None = None
    try:
        node = compose_yaml(text)
    except YamlError as exc:
        problem = problems_error(
            path, [LocatedProblem(exc.line, exc.column, "", "it is not YAML: the structure ends here")]
        )
    if problem is not None:
        raise problem
    if node is None or (isinstance(node, ScalarNode) and not node.value):
        raise _problem_error(path, 1, f"nothing follows its first line; expected {kind}")
    if not isinstance(node, expected):
        raise node_error(path, node, f"expected {kind}")
    return node


def _problem_error(path: str, line: int, text: str) -> InvalidInput:
    return problems_error(path, [LocatedProblem(line, 1, "", text)])


_SECTIONS = {"1": ("config",), "2": ("ethernets", "bonds", "bridges", "vlans", "wifis")}
"""What a network configuration of each version must have for any card to be configured."""

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.ASCII | re.IGNORECASE)
_KERNEL_NAMES = ("en", "wl", "ww")
"""How systemd names the cards of a guest: enp1s0, ens3. Only images with net.ifnames=0 have an eth0."""
_DEFAULT_ROUTES = ("default", "0.0.0.0/0", "::/0")

_Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


class _Address(Value):
    """A static address: its node, its text with a prefix length, or None where that is missing."""

    node: Node
    text: str
    interface: _Interface | None


class _Card(Value):
    """One card of a configuration. `is_physical`: it must be a card of the VM, not one that the guest creates."""

    name: str
    node: Node
    is_physical: bool
    has_match: bool
    mac: Node | None
    addresses: tuple[_Address, ...]
    gateways: tuple[Node, ...]


def parse_network_config(text: str, path: str) -> CloudInitFile:
    """Return a network configuration that cloud-init understands: a YAML mapping of version 1 or 2.

    cloud-init ignores a file without a version it knows, and the guest then has no network (cloudinit/net/
    network_state.py); it takes `network:` around the mapping too.

    Raises:
        InvalidInput: the problems, as `file:line:column: what is wrong`.
    """
    check_text(text, path)
    config = _config_node(text, path)
    version = _find_value(config, "version")
    if version is None:
        raise node_error(path, config, "it has no version: cloud-init reads version: 1 and version: 2")
    if not isinstance(version, ScalarNode) or version.value not in _SECTIONS:
        raise node_error(path, version, "cloud-init reads version: 1 and version: 2")
    sections = _SECTIONS[version.value]
    if not any(_find_value(config, name) is not None for name in sections):
        raise node_error(path, config, f"version {version.value} needs one of {', '.join(sections)}")
    problems = [LocatedProblem(_line(node), _column(node), "", problem) for node, problem in _find_problems(config)]
    if problems:
        raise problems_error(path, problems)
    return CloudInitFile(path, text)


def static_addresses(file: CloudInitFile) -> tuple[str, ...]:
    """Return the static addresses in a checked network configuration, as they are written."""
    return tuple(address.text for card in _read_cards(_config_node(file.text, file.path)) for address in card.addresses)


def match_cards(file: CloudInitFile, nics: Sequence[Nic]) -> tuple[str, ...]:
    """Return warnings, with their places, about what in a checked configuration may fit no card of the VM.

    Raises:
        InvalidInput: it names a MAC address that no card of the VM has; libvirt chooses those that are not requested.
    """
    warnings: list[str] = []
    macs = {nic.mac for nic in nics}
    for card in _read_cards(_config_node(file.text, file.path)):
        if card.mac is not None and str(card.mac.value).lower() not in macs:
            raise _unknown_mac_error(file.path, card.mac, nics)
        where = f"{file.path}:{_line(card.node)}"
        if card.is_physical and not nics:
            warnings.append(f"{where}: {card.name} configures a network card, and the VM has none")
        elif card.is_physical and not card.has_match and not card.name.startswith(_KERNEL_NAMES):
            warnings.append(
                f"{where}: most guests have no card named {card.name}, and nothing else says which card it is: "
                "add match: {name: 'e*'} (version 2), or the MAC address of a card"
            )
        warnings += [f"{file.path}:{_line(node)}: {text}" for node, text in _find_doubts(card)]
    return tuple(warnings)


def _config_node(text: str, path: str) -> Node:
    root = check_yaml(text, path, MappingNode)
    config = _find_value(root, "network") or root
    if not isinstance(config, MappingNode):
        raise node_error(path, config, "expected a mapping (key: value)")
    return config


def _unknown_mac_error(path: str, node: Node, nics: Sequence[Nic]) -> InvalidInput:
    mac = str(node.value).lower()
    card = next((nic for nic in nics if nic.mac is None), None)
    option = replace(card or Nic(network="default"), mac=mac).text
    error = node_error(path, node, f"no network card of the VM has the MAC address {mac}")
    error.hint = f"--network {option} gives it to a card; without mac= libvirt chooses the address"
    return error


def _find_problems(config: Node) -> Iterator[tuple[Node, str]]:
    """Yield what would certainly fail in the guest."""
    first_lines: dict[str, int] = {}
    is_netplan = _is_netplan(config)
    for card in _read_cards(config):
        if card.mac is not None and not _MAC.fullmatch(str(card.mac.value)):
            yield card.mac, "it is not a MAC address: write it like '52:54:00:12:34:56', in quotes"
        if is_netplan and _find_value(card.node, "set-name") is not None and not card.has_match:
            yield card.node, "set-name needs match: netplan refuses it"
        for address in card.addresses:
            try:
                plain = str(ipaddress.ip_address(address.text.partition("/")[0]))
            except ValueError:
                yield address.node, "it is not an IP address with a prefix length, like 192.0.2.10/24"
                continue
            if address.interface is None and ("/" in address.text or is_netplan):
                missing = "no prefix length" if "/" not in address.text else "a prefix length that no such address has"
                yield address.node, f"{plain} has {missing}: write it like {plain}/{24 if '.' in plain else 64}"
            if plain in first_lines:
                yield address.node, f"the address {plain} appears twice (first in line {first_lines[plain]})"
            first_lines.setdefault(plain, _line(address.node))


def _find_doubts(card: _Card) -> Iterator[tuple[Node, str]]:
    """Yield what may fail in the guest: a gateway out of reach, or a prefix length that cloud-init assumes."""
    networks = [address.interface.network for address in card.addresses if address.interface is not None]
    for address in card.addresses:
        if address.interface is None:
            prefix = 24 if "." in address.text else 64
            yield address.node, f"{address.text} has neither netmask nor prefix length: cloud-init assumes /{prefix}"
    for node in card.gateways:
        try:
            gateway = ipaddress.ip_address(str(node.value))
        except ValueError:
            yield node, f"the gateway of {card.name} is not an IP address"
            continue
        same_family = [network for network in networks if network.version == gateway.version]
        if same_family and not gateway.is_link_local and not any(gateway in network for network in same_family):
            listed = ", ".join(map(str, same_family))
            yield node, f"the gateway {gateway} is not in the network of {card.name} ({listed})"


def _is_netplan(config: Node) -> bool:
    version = _find_value(config, "version")
    return isinstance(version, ScalarNode) and version.value == "2"


def _read_cards(config: Node) -> Iterator[_Card]:
    if _is_netplan(config):
        for section in _SECTIONS["2"]:
            for name, card in _pairs(_find_value(config, section)):
                yield _read_netplan_card(section, name, card)
        return
    for item in _values(_find_value(config, "config")):
        kind = _find_value(item, "type")
        if isinstance(kind, ScalarNode) and kind.value in ("physical", "bond", "bridge", "vlan", "infiniband"):
            yield _read_version_1_card(item, kind.value == "physical")


def _read_netplan_card(section: str, name: str, card: Node) -> _Card:
    match = _find_value(card, "match")
    routes = [
        via
        for route in _values(_find_value(card, "routes"))
        if _text(route, "to") in _DEFAULT_ROUTES
        and _text(route, "on-link") not in ("true", "True")
        and (via := _find_value(route, "via")) is not None
    ]
    gateways = [node for key in ("gateway4", "gateway6") if (node := _find_value(card, key)) is not None]
    addresses = _find_value(card, "addresses")
    return _Card(
        name=name,
        node=card,
        is_physical=section == "ethernets",
        has_match=match is not None,
        mac=_find_value(match, "macaddress") if match is not None and section == "ethernets" else None,
        addresses=tuple(_read_address(node, text) for node, text in _texts(addresses)),
        gateways=tuple(node for node in (*gateways, *routes) if isinstance(node, ScalarNode)),
    )


def _read_version_1_card(item: Node, is_physical: bool) -> _Card:
    subnets = _values(_find_value(item, "subnets"))
    addresses: list[_Address] = []
    for subnet in subnets:
        netmask = _text(subnet, "netmask")
        for place, text in _texts(_find_value(subnet, "address")):
            whole = f"{text}/{netmask}" if "/" not in text and netmask else text
            interface = _read_address(place, whole).interface
            addresses.append(_Address(place, text if interface is not None else whole, interface))
    gateways = [node for subnet in subnets if (node := _find_value(subnet, "gateway")) is not None]
    mac = _find_value(item, "mac_address")
    return _Card(
        name=_text(item, "name") or "a card without a name",
        node=item,
        is_physical=is_physical,
        has_match=mac is not None,
        mac=mac if is_physical and isinstance(mac, ScalarNode) else None,
        addresses=tuple(addresses),
        gateways=tuple(node for node in gateways if isinstance(node, ScalarNode)),
    )


def _read_address(node: Node, text: str) -> _Address:
    interface: _Interface | None = None
    if "/" in text:
        try:
            interface = ipaddress.ip_interface(text)
        except ValueError:
            interface = None
    return _Address(node, text, interface)


def _texts(node: Node | None) -> list[tuple[Node, str]]:
    """Return the texts of a value, of a list of them, or the keys of mappings in it, as netplan writes options."""
    if isinstance(node, ScalarNode):
        return [(node, str(node.value))] if node.value else []
    if isinstance(node, MappingNode):
        return [(key, str(key.value)) for key, _ in node.value[:1]]
    return [pair for item in node.value for pair in _texts(item)] if isinstance(node, SequenceNode) else []


def _text(mapping: Node | None, key: str) -> str:
    """Return the text of a key, or an empty one."""
    node = _find_value(mapping, key)
    return str(node.value) if isinstance(node, ScalarNode) else ""


def _find_value(mapping: Node | None, key: str) -> Node | None:
    pairs: list[tuple[Node, Node]] = mapping.value if isinstance(mapping, MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


def _pairs(node: Node | None) -> list[tuple[str, Node]]:
    return [(str(key.value), value) for key, value in node.value] if isinstance(node, MappingNode) else []


def _values(node: Node | None) -> list[Node]:
    return list(node.value) if isinstance(node, SequenceNode) else []


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _column(node: Node) -> int:
    return int(node.start_mark.column) + 1
