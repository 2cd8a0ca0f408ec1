# SPDX-License-Identifier: Apache-2.0
"""Network cards have one spelling, as texts and as mappings; sizes of huge pages and lists of CPUs have one too."""

from __future__ import annotations

import pytest

from vgpuctl.config import device_rules
from vgpuctl.model.vm import Nic


@pytest.mark.parametrize(
    ("value", "text", "nic"),
    [
        ("lan", "lan", Nic(network="lan")),
        ("network=lan", "lan", Nic(network="lan")),
        ({"network": "lan", "mac": None}, "lan", Nic(network="lan")),
        ("my net", "my net", Nic(network="my net")),
        ("vlan=30,bridge=br0", "bridge=br0,vlan=30", Nic(bridge="br0", vlan=30)),
        (
            {"bridge": "br0", "mac": "52-54-00-AA-BB-CC", "model": "e1000e", "vlan": 1},
            "bridge=br0,vlan=1,model=e1000e,mac=52:54:00:aa:bb:cc",
            Nic(bridge="br0", vlan=1, model="e1000e", mac="52:54:00:aa:bb:cc"),
        ),
    ],
)
def test_a_network_card_has_one_spelling(value: object, text: str, nic: Nic) -> None:
    assert device_rules.network(value) == text
    assert device_rules.parse_nic(text) == nic
    assert nic.text == text


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"network": "a,b"}, "separate the options"),
        ({"bridge": "a b"}, "not the name of a bridge"),
        ({"bridge": "b" * 16}, "not the name of a bridge"),
        ({"network": "a", "mac": 520000000001}, "put the MAC address in quotes"),
        ({"network": "a", "mac": "00:00:00:00:00:00"}, "not an address of a network card"),
        ({"network": "a", "bridge": "b"}, "specify one of"),
        ({"netwrk": "a"}, "did you mean 'network'"),
        ("bridge=a,bridge=b", "given twice"),
        (7, "not text"),
    ],
)
def test_anything_else_is_refused_with_the_reason(value: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        device_rules.network(value)


@pytest.mark.parametrize(
    ("rule", "value", "text"),
    [
        (device_rules.hugepages, "2m", "2MiB"),
        (device_rules.hugepages, "1G", "1GiB"),
        (device_rules.hugepages, "None", "none"),
        (device_rules.cpu_pin, "AUTO", "auto"),
        (device_rules.cpu_pin, 3, "3"),
        (device_rules.cpu_pin, "8-9, 10,2", "2,8-10"),
    ],
)
def test_sizes_and_lists_have_one_spelling(rule, value: object, text: str) -> None:
    assert rule(value) == text
    assert rule(text) == text


@pytest.mark.parametrize("value", ["", "a", "1-", "9-3", "^1", "1,,2", "99999", True])
def test_a_list_without_cpus_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"list of CPUs|not text"):
        device_rules.cpu_pin(value)
