# SPDX-License-Identifier: Apache-2.0
"""PCI domains of more than four digits, as under Intel's VMD, and guests with room for a GPU's big BARs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from lxml import etree

from tests.unit.cli.conftest import Ran, Run
from vgpuctl.sim.scenario_gpu import load_models

MODELS = tuple(name for name in load_models() if name != "mtty")
DOMAINS = ("10000", "fffff", "10000000")


@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_card_has_a_vm(scenario: Callable[[str], Run], model: str) -> None:
    domain = DOMAINS[MODELS.index(model) % len(DOMAINS)]
    address = f"{domain}:01:00.0"
    host = scenario(f'version: 1\ngpus:\n  - {{model: {model}, address: "{address}"}}\n')

    def run(*words: str, status: tuple[int, ...] = (0,)) -> Ran:
        ran = host(shlex.join(words))
        assert ran.status in status, (words, ran.out, ran.err)
        return ran

    (gpu,) = run("--json", "list-gpus").document["data"]
    assert gpu["address"] == address
    profiles = run("--json", "list-profiles").document["data"]
    ways = [("--profile", profile["profile"], "--gpu", f"{domain.upper()}:1:0.0") for profile in profiles[:1]]
    ways += [("--mode", mode, "--gpu", address) for mode in ("sriov", "passthrough")]
    results = (run("--json", "create-vm", "web", *way, status=(0, 3, 4, 6)) for way in ways)
    made = next(result for result in results if result.status == 0)
    (vgpu,) = made.document["data"]["vm"]["vgpus"] if "vm" in made.document["data"] else made.document["data"]["vgpus"]
    assert vgpu["gpu"] == address
    assert vgpu["carrier"].startswith(f"{domain}:") or "-" in vgpu["carrier"]
    for words in (("list-vgpus",), ("show-gpu", address), ("show-vm", "web")):
        assert address in run(*words).out
    assert "create-vm web" in run("log", "--gpu", address).out
    run("doctor", status=(0, 1, 7))
    run("stop-vm", "web", "--force", "--yes")
    run("start-vm", "web")
    run("apply", "--set", f"gpus[{address}].cordoned=true", "--yes", status=(0, 3))
    run("delete-vm", "web", "--yes")
    assert json.loads(run("--json", "list-vms").out)["data"] == []


BIG, SMALL = "0000:3b:00.0", "0000:3f:00.0"
HOST = """version: 1
libvirt: {running: true, version: "VERSION"}
storage: {pools: [{name: default}]}
networks: [{name: default}]
gpus: [{model: H100, driver: vfio-pci}, {model: T4, driver: vfio-pci}]
"""


@pytest.fixture
def run(scenario: Callable[[str], Run]) -> Run:
    """Run a command on a host with this libvirt version and an H100 and a T4 for passthrough."""
    return lambda *words, libvirt="10.0.0": scenario(HOST.replace("VERSION", libvirt))(shlex.join(words))


@pytest.mark.parametrize(
    ("gpu", "options", "libvirt", "expected"),
    [
        (BIG, "", "10.0.0", (str(256 << 20), True)),
        (BIG, "", "8.6.0", (str(256 << 20), False)),
        (BIG, "--os windows11 --memory 8GiB", "10.0.0", (str(256 << 20), True)),
        (BIG, "--pci-window none", "10.0.0", (None, False)),
        (SMALL, "", "10.0.0", (None, False)),
        (SMALL, "--pci-window 64", "10.0.0", (str(64 << 20), True)),
    ],
)
def test_the_window_is_as_large_as_the_bars_need(run: Run, gpu, options, libvirt, expected) -> None:
    """Expected: the window in KiB, and whether the guest has the host's address width."""
    ran = run(
        "create-vm", "vm", "--mode", "passthrough", "--gpu", gpu, *options.split(), "--print-xml", libvirt=libvirt
    )
    root = etree.fromstring(ran.out)
    made = (root.findtext("devices/controller/pcihole64"), root.find("cpu/maxphysaddr") is not None)
    assert (ran.status, made) == (0, expected)


@pytest.mark.parametrize(
    ("options", "libvirt", "reported"),
    [
        ("--pci-window none", "10.0.0", "keeps the guest's default window"),
        ("--pci-window 64GiB", "10.0.0", "too small for the GPU"),
        ("--os generic", "10.0.0", "boot with UEFI"),
        ("", "8.6.0", "only libvirt 8.7 or newer"),
        ("", "10.0.0", None),
        ("--pci-window 512GiB", "10.0.0", None),
    ],
)
def test_a_small_pci_window_is_noted_in_a_dry_run(run: Run, options, libvirt, reported) -> None:
    words = ("create-vm", "vm", "--mode", "passthrough", "--gpu", BIG, *options.split(), "--dry-run", "--json")
    notes = [note for note in run(*words, libvirt=libvirt).document["data"]["notes"] if "BARs" in note]
    assert len(notes) == (reported is not None)
    assert all(reported in note and "need 128 GiB" in note for note in notes)


@pytest.mark.parametrize("size", ["63KiB", "512MiB", "65TiB", "wide", "off"])
def test_an_invalid_window_is_refused(run: Run, size: str) -> None:
    ran = run("create-vm", "vm", "--mode", "passthrough", "--gpu", BIG, "--pci-window", size, "--json")
    assert (ran.status, ran.document["error"]["code"]) == (2, "invalid-input")
    assert "--pci-window" in ran.document["error"]["message"]


@pytest.mark.parametrize(("first", "other"), [("512GiB", "none"), ("auto", "1TiB"), ("none", "auto")])
def test_the_pci_window_of_a_vm_is_stored_and_compared(run: Run, tmp_path: Path, first: str, other: str) -> None:
    def ensure(window: str) -> Ran:
        spec = tmp_path / "vm.yaml"
        spec.write_text(f"name: vm\nmode: passthrough\ngpu: '{BIG}'\npci_window: {window}\n")
        return run("ensure-vm", "-f", str(spec), "--json")

    assert [ensure(first).document["changed"] for _ in range(2)] == [True, False]
    refused = ensure(other).document["error"]
    assert "pci_window" in f"{refused['message']} {refused['hint']}"
