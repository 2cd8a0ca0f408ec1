# SPDX-License-Identifier: Apache-2.0
"""The rules of single values that the tests of files and options do not reach, of network cards, CPUs and labels."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.config import device_rules, guest_rules, rules
from vgpuctl.config.arguments import NAME_PATTERN
from vgpuctl.config.labels import labels, owner, parse_changes, parse_selector
from vgpuctl.errors import InvalidInput
from vgpuctl.model.vm import Nic


@pytest.mark.parametrize("name", ["a", "9", "vdi-1", "A.b_c-d", "x" * 63])
def test_valid_names(name: str) -> None:
    assert rules.name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "a b", "a/b", "x" * 64, "a\n", "ä", "<a>", "a'b", "../a", "a\x00", "²"]
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        rules.name(name)


@given(st.text(max_size=70))
def test_a_name_that_passes_is_safe_in_a_path(name: str) -> None:
    try:
        rules.name(name)
    except ValueError:
        return
    assert re.fullmatch(NAME_PATTERN, name)
    assert name.isascii()
    assert not set(name) & set("/ \n\t'\"<>&,=")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A100-4C", "A100-4C"),
        ("A100-4C:1", "A100-4C"),
        ("A100-4C:16", "A100-4C:16"),
        ("NVIDIA A100-4C:2", "NVIDIA A100-4C:2"),
        ("nvidia-468", "nvidia-468"),
        ("i915-GVTg_V5_4", "i915-GVTg_V5_4"),
    ],
)
def test_profiles(text: str, expected: str) -> None:
    assert rules.profile(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a profile"),
        (":2", "is not a profile"),
        ("A\x00", "is not a profile"),
        ("A:0", "must be a number from 1 to 9999"),
        ("A:-1", "must be a number"),
        ("A:x", "must be a number"),
        ("A:", "must be a number"),
        ("A:99999", "must be a number from 1 to 9999"),
        (3, "put it in quotes"),
        (None, "not nothing"),
        (["a"], "not a list"),
    ],
)
def test_profiles_that_are_refused(text: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rules.profile(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA A100-PCIE-40GB"),
        ("mtty", "mtty"),
    ],
)
def test_gpus(value: str, expected: str) -> None:
    assert rules.gpu(value) == expected


@pytest.mark.parametrize("value", [2460.0, 60, -1])
def test_a_number_for_an_address_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="quote the PCI address"):
        rules.gpu(value)


@pytest.mark.parametrize("value", ["2460.0", "60", "1e3"])
def test_a_text_that_is_a_number_names_no_gpu(value: str) -> None:
    with pytest.raises(ValueError, match=f"'{value}' is not a GPU: GPUs are named by PCI address or model"):
        rules.gpu(value)


@pytest.mark.parametrize("value", ["", " ", "a\nb", " A100", True, None, "x" * 256])
def test_gpus_that_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"GPU|text"):
        rules.gpu(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("100", "100GiB"),
        (100, "100GiB"),
        ("1024GiB", "1TiB"),
        ("/dev/vg0/a", "/dev/vg0/a"),
        ("/a b'&.raw", "/a b'&.raw"),
    ],
)
def test_disks(value: object, expected: str) -> None:
    assert rules.disk(value) == expected


@pytest.mark.parametrize(
    "value", ["./a.qcow2", "../a", "~/a", "/a/", "/a\nb", "/a\x00", "/\ud800", "/\x9b", "/a\u2028", "/"]
)
def test_disk_paths_that_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="path"):
        rules.disk(value)


@pytest.mark.parametrize("value", ["a.qcow2", "", "big", None, True, 1.0001, "100GB"])
def test_disk_sizes_that_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"size|text|MiB|nothing"):
        rules.disk(value)


def test_memory_has_a_minimum() -> None:
    assert rules.memory("64") == "64MiB"
    with pytest.raises(ValueError, match=r"8MiB of memory is not enough .*a bare number is MiB"):
        rules.memory(8)


@pytest.mark.parametrize("value", ["a/b", "", "a\tb", " a", 3])
def test_resource_names_that_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"name|quotes"):
        rules.resource_name(value)


@pytest.mark.parametrize("value", ["../vm", "vm.xml.j2", "", "a b", "vm\n"])
def test_templates_that_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="is not a template name"):
        rules.template(value)


def test_params_come_in_three_forms() -> None:
    expected = {"a_b": "1", "c": "x=y"}
    assert rules.vgpu_params({"c": "x=y", "a_b": 1}) == expected
    assert rules.vgpu_params(["c=x=y", "a_b=1"]) == expected
    assert rules.vgpu_params("c=x=y") == {"c": "x=y"}
    assert list(rules.vgpu_params(["z=1", "a=1"])) == ["a", "z"]


@pytest.mark.parametrize(
    "value",
    [["a"], ["=1"], ["a="], ["A=1"], ["a=1 2"], ["a=1,b=2"], ["a=1", "a=1"], {"a": True}, {"a": None}, 3, ["a=é"],
     {"a=b": "c"}, ["a=1\n"]],
)  # fmt: skip
def test_params_that_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"parameter|key=value|text"):
        rules.vgpu_params(value)


@pytest.mark.parametrize("value", [True, 1.0, None, "four", 0, 4097, 10**30])
def test_vcpus_that_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"whole number|between 1 and 4096"):
        rules.vcpus(value)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(ValueError, match="…") as caught:
        rules.name("x" * 10000)
    assert len(str(caught.value)) < 400


def test_a_terminal_escape_is_not_repeated_to_the_terminal() -> None:
    with pytest.raises(ValueError, match="x1b") as caught:
        rules.name("\x1b[31m")
    assert str(caught.value).isprintable()


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
        (guest_rules.guest_sharing, " none", "none"),
        (guest_rules.guest_sharing, "mps,memory=2048,threads=050", "mps,threads=50,memory=2GiB"),
        (guest_rules.guest_sharing, "time-slicing:04", "time-slicing:4"),
    ],
)
def test_sizes_and_lists_have_one_spelling(rule, value: object, text: str) -> None:
    assert rule(value) == text
    assert rule(text) == text


@pytest.mark.parametrize("value", ["", "a", "1-", "9-3", "^1", "1,,2", "99999", True])
def test_a_list_without_cpus_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"list of CPUs|not text"):
        device_rules.cpu_pin(value)


def test_labels_come_from_a_mapping_a_text_or_a_list() -> None:
    assert labels({"b": "2", "a": ""}) == {"a": "", "b": "2"}
    assert labels("team=cad") == {"team": "cad"}
    assert labels(["a/b.c-d_e=x=y".partition("=x")[0] + "=x", "z=1"]) == {"a/b.c-d_e": "x", "z": "1"}


@pytest.mark.parametrize(
    "value", ["a", "=b", "a b=c", "-a=b", "a=b c", f"{'k' * 64}=v", ["a=1", "a=2"], 5, [f"k{n}=v" for n in range(33)]]
)
def test_other_labels_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        labels(value)


def test_changes_set_and_remove() -> None:
    assert parse_changes(["a=1", "b-"]) == {"a": "1", "b": None}
    for wrong in (["a"], ["a=1", "a-"], ["-"]):
        with pytest.raises(InvalidInput):
            parse_changes(wrong)


def test_a_selector_names_each_key_once() -> None:
    assert parse_selector(("a=1", "b=2")) == {"a": "1", "b": "2"}
    with pytest.raises(InvalidInput):
        parse_selector(("a=1", "a=2"))


@pytest.mark.parametrize("value", ["", " a", "a\n", "x" * 65, 5])
def test_an_owner_is_visible_and_short(value: object) -> None:
    assert owner("Jane Doe") == "Jane Doe"
    with pytest.raises(ValueError, match=r"."):
        owner(value)


def test_too_many_labels_are_refused_before_they_are_checked():
    with pytest.raises(ValueError, match="60000 labels are too many: a VM has at most 32"):
        labels({f"not a key {number}": "x" for number in range(60_000)})
