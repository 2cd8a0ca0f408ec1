# SPDX-License-Identifier: Apache-2.0
"""The `gpus:` part: known models in three words, unknown ones in full."""

from __future__ import annotations

import pytest

from tests.unit.sim.test_scenario import compiled
from vgpuctl.errors import InvalidInput
from vgpuctl.sim.scenario_gpu import find_model, load_models, model_names


def gpus(text: str) -> list[dict]:
    return compiled(f"gpus: [{text}]\n")["gpus"]


def test_a_model_and_a_count_are_enough() -> None:
    made = gpus("{model: A16, count: 4}")
    assert [raw["address"] for raw in made] == ["0000:3b:00.0", "0000:3f:00.0", "0000:43:00.0", "0000:47:00.0"]
    assert {(raw["backend"], raw["vfs_total"], raw["vfs_enabled"]) for raw in made} == {("vendor-vf", 16, 16)}
    assert len({raw["address"] for raw in gpus("{model: A16, count: 1600}")}) == 1600


@pytest.mark.parametrize(
    ("kernel", "model", "backend"),
    [("6.8.0", "A16", "vendor-vf"), ("5.14.0", "A16", "mdev-vf"), ("6.8.0", "T4", "mdev-pf"),
     ("6.8.0", "Flex 170", "sriov-vf"), ("6.8.0", "RTX 4090", "passthrough"), ("6.8.0", "mtty", "mdev-pf")],
)  # fmt: skip
def test_the_kernel_and_the_model_decide_the_backend(kernel: str, model: str, backend: str) -> None:
    (raw,) = compiled(f'kernel: "{kernel}"\ngpus: [{{model: {model}}}]\n')["gpus"]
    assert raw["backend"] == backend


@pytest.mark.parametrize("driver", ["vfio-pci", "none"])
def test_a_card_without_its_own_driver_is_passed_through(driver: str) -> None:
    (raw,) = gpus(f"{{model: A100, driver: {driver}}}")
    assert (raw["backend"], raw["vfs_total"], raw["nvml"]) == ("passthrough", 0, False)


def test_an_unknown_model_in_full() -> None:
    (raw,) = gpus(
        "{model: Big Card, backend: vendor-vf, vendor_id: '10de', device_id: '2bb5', class: '030200',"
        " address: '81:00.0', framebuffer_mib: 98304, vfs: {total: 48}, numa_node: 1, iommu_group: 77,"
        " profiles: [{name: NVIDIA Big-24Q, id: 1500, framebuffer_mib: 24576, max: 4, max_per_vm: 1}]}"
    )
    assert (raw["address"], raw["device"], raw["vfs_enabled"], raw["iommu_group"]) == ("0000:81:00.0", "0x2bb5", 48, 77)
    (kind,) = raw["types"]
    assert (kind["key"], kind["number"], kind["maximum"], kind["per_vm"]) == ("nvidia-1500", 1500, 4, 1)


def test_another_makers_mdev_types() -> None:
    (raw,) = gpus(
        "{model: Own, address: own0, backend: mdev-pf, driver: own, units: 8, vendor_id: '1234', profiles:"
        " [{name: small, key: own-small, units: 1}, {name: big, key: own-big, units: 4, description: 'big one'}]}"
    )
    assert (raw["rule"], [kind["units"] for kind in raw["types"]]) == ("counter", [1, 4])


def test_profiles_by_name() -> None:
    (raw,) = gpus("{model: A100, profiles: [A100-4C, GRID A100-40C]}")
    assert [kind["number"] for kind in raw["types"]] == [468, 473]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{model: A1000}", "'A1000' is not known, so 'backend' is needed; known: A100"),
        ("{count: 2}", "'model' is missing"),
        ("{model: A100, count: 0}", "must be 1 to 4096"),
        ("{model: A100, count: 2, address: '3b:00.0'}", "either an address or a count"),
        ("{model: A100, address: '3b:00.0'}, {model: T4, address: '0000:3B:00.0'}", "appears twice"),
        ("{model: A100, address: '3b:00:0'}", "not a PCI address"),
        ("{model: A100, address: 'a b'}", "neither a PCI address nor a kernel name"),
        ("{model: A100, backend: mdev}", "did you mean"),
        ("{model: A100, vfs: {total: 4, enabled: 5}}", "must be 0 to 4"),
        ("{model: A100, vfs: {totl: 4}}", "did you mean 'total'"),
        ("{model: A100, profiles: [A100-4Q]}", "did you mean 'A100-4C'"),
        ("{model: A100, profiles: [{name: x}]}", "'id' is missing"),
        ("{model: A100, refusal: EIO}", "known: ENOSPC, EUSERS"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        gpus(text)


@pytest.mark.parametrize("text", ["A100", "a100", "A100 PCIe 40GB", "NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"])
def test_find_model_by_any_of_its_names(text: str) -> None:
    assert find_model(text) is load_models()["A100"]
    assert find_model("A1000") is None
    assert "A100" in model_names()


@pytest.mark.parametrize("name", ["A100", "T4", "A16", "A40", "A10", "L40S", "RTX PRO 4500"])
def test_figures_are_consistent(name: str) -> None:
    entry = load_models()[name]
    assert len({t["id"] for t in entry["profiles"]}) == len(entry["profiles"])
    for kind in entry["profiles"]:
        assert kind["max"] * kind["framebuffer_mib"] <= entry["framebuffer_mib"], kind["name"]
        assert kind["max"] <= 32


@pytest.mark.parametrize("driver", ["vfio-pci", "pci-stub", "none"])
def test_vfs_need_a_driver_that_turns_them_on(driver: str) -> None:
    (raw,) = gpus(f"{{model: A100, driver: {driver}, backend: vendor-vf}}")
    assert (raw["vfs_total"], raw["vfs_enabled"]) == (16, 0)
    with pytest.raises(InvalidInput, match=f"no VF is on while the driver is {driver}"):
        gpus(f"{{model: A100, driver: {driver}, backend: vendor-vf, vfs: {{enabled: 2}}}}")
