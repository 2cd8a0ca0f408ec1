# SPDX-License-Identifier: Apache-2.0
"""Scenario files: defaults, all valid keys, all refused values, and the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from vgpuctl.errors import InvalidInput
from vgpuctl.sim import faults
from vgpuctl.sim.host import SCENARIOS, _read_source
from vgpuctl.sim.initial_state import INITIAL_VGPU_KEYS
from vgpuctl.sim.scenario import FAULT_KEYS, IMAGE_KEYS, POOL_KEYS, SCENARIO_KEYS, STORAGE_KEYS, compile_scenario
from vgpuctl.sim.scenario_gpu import GPU_KEYS, PROFILE_KEYS, find_model, load_models, model_names
from vgpuctl.sim.scenario_reader import YamlValue, read_scenario

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "scenarios.md"


def compiled(text: str) -> dict:
    return compile_scenario(f"version: 1\n{text}", "f.yaml")


def test_defaults_are_a_fresh_ubuntu() -> None:
    scenario = compiled("gpus: []\n")
    has = dict.fromkeys(("running", "kvm", "uefi", "secure_boot", "tpm", "opengl"), True)
    assert scenario["libvirt"] == {"version": "10.0.0", "qemu": "8.2.2", **has}
    assert scenario["networks"] == [{"name": "default", "active": True}]
    assert (scenario["iommu"], scenario["nvidia"]["nvml"], scenario["found"]) == (True, "present", [])


@pytest.mark.parametrize("name", SCENARIOS)
def test_compiled_scenarios_are_plain_json(name: str) -> None:
    scenario = compile_scenario(_read_source(name)[0], name)
    assert json.loads(json.dumps(scenario)) == scenario


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu: []\n", "f.yaml:2: unknown key 'gpu'; did you mean 'gpus'"),
        ("kernel: new\n", "not a kernel version"),
        ("libvirt: {version: ten}\n", "not a version"),
        ("libvirt: {versoin: 1}\n", "did you mean 'version'"),
        ("nvidia: {driver: new}\n", "not a driver version"),
        ("networks: [{active: true}]\n", "'name' is missing"),
        ("networks: [{name: a, forward: nut}]\n", "did you mean 'nat'?"),
        ("images: [{path: a.qcow2}]\n", "absolute path"),
        ("images: [{path: /a, firmware: efi}]\n", "known: uefi, bios|did you mean 'uefi'"),
        ("storage: {pools: [{nam: a}]}\n", "did you mean 'name'"),
    ],
)
def test_mistakes_have_their_line(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        compiled(text)


def test_version_is_required() -> None:
    with pytest.raises(InvalidInput, match="'version' is missing"):
        compile_scenario("gpus: []\n", "f.yaml")
    with pytest.raises(InvalidInput, match="reads version 1, not 2"):
        compile_scenario("version: 2\n", "f.yaml")


def test_pools_and_images() -> None:
    scenario = compiled(
        "storage: {pools: [{name: default}, {name: fast, capacity_gib: 10, used_gib: 1, active: false, kind: fs}]}\n"
        "images: [{path: /a.iso}, {path: /b.qcow2, size_gib: 5, problem: closed, base: /a.iso}]\n"
    )
    gib = 1 << 30
    assert scenario["found"] == [
        ["pool", "default", "/var/lib/libvirt/images", True, "dir", None, 0],
        ["pool", "fast", "/var/lib/libvirt/images/fast", False, "fs", 10 * gib, gib],
        ["file", "/a.iso", 20 * gib, "raw", None, 0, "both", None, None, None],
        ["file", "/b.qcow2", 5 * gib, "qcow2", "/a.iso", 0, "both", "closed", None, None],
    ]


def test_the_document_names_every_key_and_its_examples_work() -> None:
    text = DOCUMENT.read_text()
    keys = {
        *SCENARIO_KEYS,
        *GPU_KEYS,
        *PROFILE_KEYS,
        *INITIAL_VGPU_KEYS,
        *STORAGE_KEYS,
        *POOL_KEYS,
        *IMAGE_KEYS,
        *FAULT_KEYS,
    }
    assert {key for key in keys if f"`{key}`" not in text} == set()
    assert {call for call in faults.CALLS if f"`{call}`" not in text} == set()
    examples = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        compile_scenario(example, "example.yaml")


def top(text: str) -> YamlValue:
    return read_scenario(text, "f.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"f\.yaml: the scenario is empty"),
        ("a: [1", r"f\.yaml:\d+:\d+: it is not YAML"),
        ("a: 1\nb: 2\n", r"f\.yaml:2: unknown key 'b'; known: a"),
        ("a: 1\naa: 2\n", "did you mean 'a'"),
        ("a: 1\na: 2\n", r"f\.yaml:2: 'a' appears twice"),
        ("- a\n", "must be a mapping"),
    ],
)
def test_wrong_files(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        top(text).mapping(("a",))


@pytest.mark.parametrize(
    ("text", "method", "message"),
    [
        ("x", "number", "f.yaml:2: a: must be a whole number"),
        ("'5'", "number", "must be a whole number"),
        ("1.5", "number", "must be a whole number"),
        ("-1", "number", "must be 0 to"),
        ("yes", "flag", "must be true or false"),
        ("[1]", "text", "must be a text"),
        ("null", "text", "must be a text"),
        ("{}", "items", "must be a list"),
        ("EFOO", "errno", "not an errno"),
    ],
)
def test_wrong_values(text: str, method: str, message: str) -> None:
    value = top(f"\na: {text}\n").mapping(("a",)).require("a")
    with pytest.raises(InvalidInput, match=message) as caught:
        getattr(value, method)()
    assert caught.value.hint == "'vgpuctl sim list-scenarios --help' shows a scenario file"


def test_right_values() -> None:
    table = top("a: 0x10\nb: true\nc: 0000:3b:00.0\nd: [1, x]\ne: EIO\n").mapping("abcdefg")
    assert (table.number("a", 0), table.flag("b", False), table.text("c", "")) == (16, True, "0000:3b:00.0")
    assert [value.text() for value in table.items("d")] == ["1", "x"]
    assert table.require("e").errno() == 5
    assert (table.number("f", 7), table.flag("f", True), table.text("f", "t"), table.items("f")) == (7, True, "t", [])
    with pytest.raises(InvalidInput, match="'g' is missing"):
        table.require("g")
    with pytest.raises(InvalidInput, match="did you mean"):
        table.require("e").choice(("EIOO", "other"))


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
