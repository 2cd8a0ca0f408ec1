# SPDX-License-Identifier: Apache-2.0
"""host.yaml names GPUs by address, by model, or all of them, and the most specific entry counts."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest

from tests.json_schema import host_schema
from vgpuctl.config.gpu_entries import list_models, merge_gpu_entries, plan_entry_changes
from vgpuctl.config.host_spec import GPU_SHAPE, GpuSpec, parse_host_spec
from vgpuctl.config.yaml_reader import load_document
from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.value import replace

A16 = Gpu("0000:17:00.0", "/sys/17", "NVIDIA A16", "nvidia", None, GpuMode.VGPU)
A100 = Gpu("0000:3b:00.0", "/sys/3b", "NVIDIA A100-PCIE-40GB", "nvidia", None, GpuMode.VGPU)


def gpus(text):
    return parse_host_spec(f"version: 1\ngpus:\n{text}", "host.yaml").gpus


def test_the_address_counts_before_the_model_and_the_model_before_all():
    output = gpus(
        '  "0000:3b:00.0": {cordoned: false}\n  A100: {cordoned: true, reserved_for: lab-*}\n'
        "  all: {mode: vgpu, reserved_for: [vdi-*]}\n"
    )
    assert merge_gpu_entries(output, A100) == GpuSpec("vgpu", cordoned=False, reserved_for=("lab-*",))
    assert merge_gpu_entries(output, A16) == GpuSpec("vgpu", reserved_for=("vdi-*",))
    assert list_models(output) == ("A100",)


def test_of_two_models_the_one_further_down_counts():
    first, second = "  A100: {cordoned: true}\n", "  A100-PCIE-40GB: {cordoned: false}\n"
    assert merge_gpu_entries(gpus(first + second), A100).cordoned is False
    assert merge_gpu_entries(gpus(second + first), A100).cordoned is True


def test_vfs_go_with_the_mode():
    output = gpus('  all: {mode: sriov, vfs: 4}\n  A16: {vfs: 2}\n  "3b:00.0": {mode: vgpu}\n')
    assert merge_gpu_entries(output, A16) == GpuSpec("sriov", 2)
    assert merge_gpu_entries(output, A100) == GpuSpec("vgpu")


def test_all_and_models_exclude_other_devices_and_gpus_without_pci_address():
    output = gpus("  all: {cordoned: true}\n  card: {mode: unmanaged}\n")
    card = replace(A16, model="A card", is_display_class=False)
    assert merge_gpu_entries(output, card) == GpuSpec()
    assert merge_gpu_entries(gpus('  "0000:17:00.0": {cordoned: true}\n'), card) == GpuSpec(cordoned=True)
    assert merge_gpu_entries(output, replace(A16, address="mtty", model="mtty")) == GpuSpec()


@pytest.mark.parametrize("key", ["3b:00", "0000:3b:00.9", "2460.0", '"12:"'])
def test_an_invalid_address_is_no_model(key):
    with pytest.raises(InvalidInput, match=r"host\.yaml:3"):
        gpus(f"  {key}: {{mode: vgpu}}\n")


@pytest.mark.parametrize(
    ("text", "wanted", "changes"),
    [
        ("  all: {mode: vgpu}\n", {"mode": "vgpu", "vfs": None}, {}),
        ("  all: {mode: sriov, vfs: 4}\n", {"mode": "vgpu", "vfs": None}, {"mode": "vgpu", "vfs": None}),
        ("  A16: {cordoned: true}\n", {"cordoned": None}, {"cordoned": False}),
        ('  "17:00.0": {cordoned: true}\n', {"cordoned": None}, {"cordoned": None}),
        ("  all: {cordoned: false}\n", {"cordoned": None}, {}),
        ("  all: {cordoned: false}\n", {"cordoned": True}, {"cordoned": True}),
    ],
)
def test_a_gpus_own_entry_adds_what_the_others_leave_out(text, wanted, changes):
    output = gpus(text)
    result, _ = plan_entry_changes(output, A16, wanted)
    assert result == changes
    own = {**{k: getattr(output.get(A16.address, GpuSpec()), k) for k in wanted}, **result}
    now = merge_gpu_entries({**output, A16.address: GpuSpec(**own)}, A16)
    assert all((getattr(now, key) or None) == value for key, value in wanted.items())


def test_the_documented_host_file_is_valid():
    text = (Path(__file__).parents[3] / "docs" / "reference" / "host-file.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    spec = parse_host_spec(example, "docs/reference/host-file.md")
    jsonschema.validate(load_document(example, "n").value, host_schema())
    assert merge_gpu_entries(spec.gpus, A16).profiles == ("A16-2Q", "A16-4Q")
    assert merge_gpu_entries(spec.gpus, A100).reserved_for == ("*",)
    assert all(f"| `{key}` |" in text for key in GPU_SHAPE.names)
