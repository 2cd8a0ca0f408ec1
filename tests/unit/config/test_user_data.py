# SPDX-License-Identifier: Apache-2.0
"""User-data that cloud-init would ignore is refused, with its line and without its text."""

from __future__ import annotations

import traceback

import pytest

from vgpuctl.config.user_data import MAX_USER_DATA_BYTES, parse_network_config, parse_user_data, static_addresses
from vgpuctl.errors import InvalidInput

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
