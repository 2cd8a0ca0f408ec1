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
from vgpuctl.sim.scenario_gpu import GPU_KEYS, PROFILE_KEYS

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "scenarios.md"


def compiled(text: str) -> dict:
    return compile_scenario(f"version: 1\n{text}", "f.yaml")


def test_defaults_are_a_fresh_ubuntu() -> None:
    scenario = compiled("gpus: []\n")
    has = dict.fromkeys(("running", "kvm", "uefi", "secure_boot", "tpm"), True)
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
