# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - one configuration in one line
"""User-data and network configurations that cloud-init would ignore or that leave the guest without a network.

They are refused, or warned of, with their line and without their text.
"""

from __future__ import annotations

import traceback

import pytest

from vgpuctl.config.cloud_init_files import (
    MAX_USER_DATA_BYTES,
    match_cards,
    parse_network_config,
    parse_user_data,
    static_addresses,
)
from vgpuctl.errors import InvalidInput
from vgpuctl.model.vm import Nic

SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        "#cloud-config\npassword: hunter2\n",
        "#cloud-config\r\npassword: hunter2\r\n",
        "#cloud-config\n# a note\n\nusers: [default, {name: &one ada}, {name: *one}]\n",
        "#cloud-config-archive\n- type: text/cloud-config\n  content: 'a: 1'\n",
        "#!/bin/sh\necho hunter2\n",
        "#include\nhttps://example.org/a\n",
        "#include https://example.org/a",
        "## template: jinja\n#cloud-config\n{% if x %}\na: 1\n{% endif %}\n",
        "#cloud-boothook\n#!/bin/sh\ntrue\n",
        "Content-Type: multipart/mixed; boundary=x\nMIME-Version: 1.0\n\n--x--\n",
    ],
)
def test_valid_user_data_is_not_changed(text):
    made = parse_user_data(text, "/ud")
    assert (made.text, made.path) == (text, "/ud")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "/ud:1:1: cloud-init would ignore it: its first line must begin with one of #cloud-config"),
        ("password: hunter2\n", "/ud:1:1: cloud-init would ignore it"),
        ("\n#cloud-config\npassword: hunter2\n", "/ud:1:1: cloud-init would ignore it"),
        (" #cloud-config\npassword: hunter2\n", "/ud:1:1: cloud-init would ignore it"),
        ("#cloud_config\npassword: hunter2\n", "/ud:1:1: cloud-init would ignore it"),
        ("\ufeff#cloud-config\npassword: hunter2\n", "/ud:1:1: it begins with a byte order mark"),
        ("#cloud-config\n", "/ud:1:1: nothing follows its first line; expected a mapping"),
        ("#cloud-config\n# only a note\n", "/ud:1:1: nothing follows its first line; expected a mapping"),
        ("#cloud-config\n\n- hunter2\n", r"/ud:3:1: expected a mapping \(key: value\)"),
        ("#cloud-config\nhunter2\n", r"/ud:2:1: expected a mapping \(key: value\)"),
        ("#cloud-config more\n- hunter2\n", "/ud:2:1: expected a mapping"),
        ("#cloud-config\npassword: [hunter2\n", "/ud:3:1: it is not YAML"),
        ("#cloud-config\na: b\n\tpassword: hunter2\n", "/ud:3:1: it is not YAML"),
        ("#cloud-config\na: \x01hunter2\n", "/ud:2:4: it is not YAML"),
        ("#cloud-config-archive\na: hunter2\n", "/ud:2:1: expected a list of parts"),
        ("#!/bin/sh\n", "/ud:1:1: nothing follows its header"),
        ("#include\n\n", "/ud:1:1: nothing follows its header"),
        ("## template: jinja\na: hunter2\n", "/ud:2:1: cloud-init would ignore it: its second line"),
        ("## template: jinja", "/ud:2:1: cloud-init would ignore it: its second line"),
        ("#!/bin/sh\nhunter2\0\n", "/ud:2:1: it is not text: it contains a NUL byte"),
        ("#!/bin/sh\n" + "x" * MAX_USER_DATA_BYTES, "/ud:1:1: it is larger than 1024 KiB"),
    ],
)
def test_ignored_user_data_is_refused_by_line_and_never_quoted(text, message):
    with pytest.raises(InvalidInput, match=f"^{message}") as caught:
        parse_user_data(text, "/ud")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(caught.value.facts)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_repr_hides_the_text():
    assert SECRET not in repr(parse_user_data("#cloud-config\npassword: hunter2\n", "/ud"))


MAC = "52:54:00:00:00:99"
LAN = Nic(network="default")


@pytest.mark.parametrize(
    "text",
    [
        "version: 2\nethernets: {lan: {dhcp4: true}}\n",
        "network:\n  version: 1\n  config: []\n",
        '{"version": 2, "wifis": {"wlan0": {}}}',
    ],
)
def test_a_network_configuration_of_version_1_or_2_is_taken(text: str) -> None:
    assert parse_network_config(text, "/nc").text == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "/nc:1:1: nothing follows its first line; expected a mapping"),
        ("- hunter2\n", "/nc:1:1: expected a mapping"),
        ("a: [hunter2\n", "it is not YAML"),
        ("ethernets: {}\npassword: hunter2\n", "/nc:1:1: it has no version"),
        ("version: 3\nhunter2: 1\n", "/nc:1:10: cloud-init reads version: 1 and version: 2"),
        ("version: 2\nconfig: [hunter2]\n", "/nc:1:1: version 2 needs one of ethernets"),
        ("network: hunter2\n", "/nc:1:10: expected a mapping"),
        ("version: 1\0", "/nc:1:1: it is not text"),
    ],
)
def test_another_network_configuration_is_refused_by_line_and_never_quoted(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_network_config(text, "/nc")
    assert problem in caught.value.message
    assert "hunter2" not in repr(caught.value.facts) + caught.value.message


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        (
            "{version: 2, ethernets: {lan: {addresses: [192.0.2.1/24, '2001:db8::1/64']}}}",
            ("192.0.2.1/24", "2001:db8::1/64"),
        ),
        ("{version: 2, ethernets: {lan: {dhcp4: true, nameservers: {addresses: [192.0.2.53]}}}}", ()),
        ("{network: {version: 2, vlans: {v: {addresses: [{192.0.2.1/24: {lifetime: 0}}]}}}}", ("192.0.2.1/24",)),
        (
            "{version: 1, config: [{type: physical, subnets: [{type: static, address: 192.0.2.1/24}]}]}",
            ("192.0.2.1/24",),
        ),
        (
            "{version: 1, config: [{type: bond, subnets: [{type: dhcp}]}, {type: nameserver, address: 192.0.2.53}]}",
            (),
        ),
    ],
)
def test_static_addresses_are_those_of_the_cards(text: str, addresses: tuple[str, ...]) -> None:
    assert static_addresses(parse_network_config(text, "/nc")) == addresses


PROBLEMS = {
    "{version: 2, ethernets: {lan: {match: {name: 'e*'}, addresses: [192.0.2.11]}}}": "192.0.2.11 has no prefix length: "
    "write it like 192.0.2.11/24",
    "{version: 2, ethernets: {lan: {addresses: ['2001:db8::1']}}}": "2001:db8::1 has no prefix length: write it like "
    "2001:db8::1/64",
    "{version: 2, ethernets: {lan: {addresses: [192.0.2.11/33]}}}": "192.0.2.11 has a prefix length that no such address",
    "{version: 2, ethernets: {lan: {addresses: [hunter2]}}}": "it is not an IP address with a prefix length",
    "{version: 2, bridges: {br0: {addresses: [192.0.2.256/24]}}}": "it is not an IP address with a prefix length",
    "{version: 2, ethernets: {lan: {addresses: [{192.0.2.11: {lifetime: 0}}]}}}": "192.0.2.11 has no prefix length",
    "{network: {version: 2, ethernets: {lan: {addresses: [192.0.2.11]}}}}": "192.0.2.11 has no prefix length",
    "{version: 2, ethernets: {a: {addresses: [192.0.2.1/24]}, b: {addresses: [192.0.2.1/25]}}}": "the address 192.0.2.1 "
    "appears twice (first in line 1)",
    "{version: 1, config: [{type: physical, subnets: [{address: 192.0.2.1/24}, {address: 192.0.2.1/24}]}]}": "appears "
    "twice",
    "{version: 1, config: [{type: bond, subnets: [{type: static, address: hunter2}]}]}": "it is not an IP address",
    "{version: 1, config: [{type: vlan, subnets: [{address: 192.0.2.1, netmask: 255.0.255.0}]}]}": "192.0.2.1 has a prefix length that no such address has",
    "{version: 2, ethernets: {lan: {set-name: lan0}}}": "set-name needs match: netplan refuses it",
    "{version: 2, ethernets: {lan: {match: {macaddress: hunter2}}}}": "it is not a MAC address",
    "{version: 1, config: [{type: physical, name: eth0, mac_address: hunter2}]}": "it is not a MAC address",
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_what_certainly_fails_in_the_guest_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_network_config(text, "/nc")
    assert caught.value.message.startswith("/nc:1:")
    assert PROBLEMS[text] in caught.value.message
    assert "hunter2" not in caught.value.message


def cards(text: str, *nics: Nic) -> tuple[str, ...]:
    return match_cards(parse_network_config(text, "/nc"), nics)


BY_MAC = (
    f"{{version: 2, ethernets: {{lan: {{match: {{macaddress: '{MAC}'}}, set-name: lan0, dhcp4: true}}}}}}",
    f"{{version: 1, config: [{{type: physical, name: eth0, mac_address: '{MAC.upper()}'}}]}}",
    f"{{network: {{version: 1, config: [{{type: physical, name: eth0, mac_address: '{MAC}'}}]}}}}",
)


@pytest.mark.parametrize("text", BY_MAC)
def test_a_mac_address_is_that_of_a_card(text: str) -> None:
    assert cards(text, LAN, Nic(network="lan", mac=MAC)) == ()
    bridge = Nic(bridge="br0", vlan=30)
    for nics, option in (((LAN,), f"network=default,mac={MAC}"), ((bridge,), f"bridge=br0,vlan=30,mac={MAC}")):
        with pytest.raises(InvalidInput, match=f"no network card of the VM has the MAC address {MAC}") as caught:
            cards(text, *nics)
        assert caught.value.hint.startswith(f"--network {option} gives it to a card")
        assert caught.value.message.startswith("/nc:1:")


WARNED = {
    "{version: 2, ethernets: {eth0: {dhcp4: true}}}": "/nc:1: most guests have no card named eth0",
    "{version: 1, config: [{type: physical, name: eth0}]}": "/nc:1: most guests have no card named eth0",
    "{version: 2, ethernets: {enp1s0: {addresses: [192.0.2.2/24], gateway4: 192.0.3.1}}}": "/nc:1: the gateway 192.0.3.1 "
    "is not in the network of enp1s0 (192.0.2.0/24)",
    "{version: 2, ethernets: {ens3: {addresses: [192.0.2.2/24], routes: [{to: default, via: 192.0.3.1}]}}}": "/nc:1: the "
    "gateway 192.0.3.1",
    "{version: 2, ethernets: {ens3: {addresses: ['2001:db8::2/64'], gateway6: '2001:db9::1'}}}": "/nc:1: the gateway "
    "2001:db9::1",
    "{version: 2, ethernets: {ens3: {addresses: [192.0.2.2/24], gateway4: router}}}": "/nc:1: the gateway of ens3 is not "
    "an IP address",
    "{version: 1, config: [{type: physical, name: ens3, subnets: [{address: 192.0.2.2/24, gateway: 192.0.3.1}]}]}": "/nc:1: "
    "the gateway 192.0.3.1",
    "{version: 1, config: [{type: physical, name: ens3, subnets: [{type: static, address: 192.0.2.2}]}]}": "/nc:1: "
    "192.0.2.2 has neither netmask nor prefix length: cloud-init assumes /24",
}


@pytest.mark.parametrize("text", WARNED)
def test_what_may_fail_is_warned_of_with_its_line(text: str) -> None:
    (warning,) = cards(text, LAN)
    assert warning.startswith(WARNED[text])


@pytest.mark.parametrize(
    "text",
    [
        "{version: 2, ethernets: {lan: {match: {name: 'e*'}, addresses: [192.0.2.2/24], gateway4: 192.0.2.1}}}",
        "{version: 2, ethernets: {lan: {match: {driver: virtio*}, dhcp4: true}}}",
        "{version: 2, ethernets: {enp1s0: {addresses: [192.0.2.2/32], routes: [{to: default, via: 10.0.0.1, on-link: true}]}}}",
        "{version: 2, ethernets: {ens3: {addresses: [192.0.2.2/24], routes: [{to: 10.0.0.0/8, via: 192.0.3.1}]}}}",
        "{version: 2, ethernets: {ens3: {addresses: ['2001:db8::2/64'], gateway6: 'fe80::1'}}}",
        "{version: 2, ethernets: {ens3: {}}, bridges: {br0: {interfaces: [ens3], dhcp4: true}}}",
        "{version: 1, config: [{type: physical, name: ens3, subnets: [{address: 192.0.2.2, netmask: 255.255.255.0}]}]}",
        "{version: 1, config: [{type: nameserver, address: 192.0.2.53}, {type: physical, name: ens3}]}",
        "{version: 1, config: hunter2}",
        "{version: 2, ethernets: {ens3: hunter2}, bonds: [hunter2]}",
        "{version: 2, ethernets: {ens3: {addresses: {}, routes: hunter2, match: [hunter2]}}}",
    ],
)
def test_what_fits_or_is_unknown_is_not_warned_of(text: str) -> None:
    assert cards(text, LAN) == ()


def test_a_vm_without_cards_is_warned_of() -> None:
    (warning,) = cards("{version: 2, ethernets: {ens3: {dhcp4: true}}}")
    assert warning == "/nc:1: ens3 configures a network card, and the VM has none"
