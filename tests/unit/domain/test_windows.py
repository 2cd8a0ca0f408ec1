# SPDX-License-Identifier: Apache-2.0
"""The domain of Windows 11: its golden file, libvirt's schema, and the parts that libvirt must not drop."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from lxml import etree

from tests.unit.domain.designs import designs, windows11
from tests.unit.domain.test_render import FILES, SCHEMA, made
from vgpuctl.domain.compare import find_differences
from vgpuctl.model.request import DomainDesign
from vgpuctl.value import replace


@pytest.fixture(scope="module")
def schema() -> etree.RelaxNG:
    return etree.RelaxNG(etree.parse(SCHEMA))


def test_the_golden_file() -> None:
    path, xml = FILES / "windows11.xml", made(windows11())
    if os.environ.get("VGPUCTL_REGENERATE") == "1":
        path.write_text(xml + "\n", encoding="utf-8")
    assert xml + "\n" == path.read_text(encoding="utf-8")


def test_secure_boot_tpm_local_time_and_no_virtio_driver_to_boot() -> None:
    root = etree.fromstring(made(windows11()))
    assert root.find("os[@firmware='efi']/firmware/feature[@name='secure-boot'][@enabled='yes']") is not None
    assert root.find("os/firmware/feature[@name='enrolled-keys'][@enabled='yes']") is not None
    assert root.find("devices/tpm[@model='tpm-crb']/backend[@type='emulator'][@version='2.0']") is not None
    assert root.find("clock[@offset='localtime']/timer[@name='hypervclock']") is not None
    assert root.find("features/hyperv/stimer[@state='on']") is not None
    assert {power.get("enabled") for power in root.iterfind("pm/*")} == {"no"}
    assert {disk.get("bus") for disk in root.iterfind("devices/disk/target")} == {"sata"}
    assert [disk.get("dev") for disk in root.iterfind("devices/disk/target")] == ["sda", "sdb"]
    assert [card.get("type") for card in root.iterfind("devices/interface/model")] == ["e1000e"]


@given(designs())
def test_all_cpus_are_cores_of_one_socket_for_windows_uses_no_more_than_two(design: DomainDesign) -> None:
    topology = etree.fromstring(made(replace(design, os="windows11", firmware="uefi"))).find("cpu/topology")
    assert topology is not None
    assert dict(topology.attrib) == {"sockets": "1", "cores": str(design.vcpus), "threads": "1"}


def test_without_kvm_there_is_nothing_of_hyper_v() -> None:
    xml = made(replace(windows11(), kvm=False))
    assert "hyperv" not in xml


@given(designs())
def test_any_design_of_windows_is_valid_and_reads_back(schema: etree.RelaxNG, design: DomainDesign) -> None:
    design = replace(design, os="windows11", firmware="uefi")
    xml = made(design)
    assert schema.validate(etree.fromstring(xml)), str(schema.error_log)
    assert find_differences(design, xml) == ()


@pytest.mark.parametrize(
    ("text", "instead", "sentence"),
    [
        ("enabled='yes' name='secure-boot'", "enabled='no' name='secure-boot'", "secure boot is not on"),
        ("type='emulator'", "type='passthrough'", "the TPM is missing"),
    ],
)
def test_a_loss_is_named(text: str, instead: str, sentence: str) -> None:
    design = windows11()
    assert find_differences(design, made(design).replace(text, instead)) == (sentence,)


def test_a_secure_loader_that_libvirt_chose_is_secure_boot() -> None:
    design = windows11()
    chosen = made(design).replace("<firmware>", "<loader secure='yes' type='pflash'>/f.fd</loader><firmware>")
    assert find_differences(design, chosen.replace("enabled='yes' name='secure-boot'", "enabled='no' name='x'")) == ()
