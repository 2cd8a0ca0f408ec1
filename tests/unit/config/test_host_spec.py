# SPDX-License-Identifier: Apache-2.0
"""host.yaml: the version must be there, unknown keys are refused, the defaults follow the VM spec's rules.

host.yaml names GPUs by address, by model, or all of them, and the most specific entry counts.
"""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest

from tests.json_schema import host_schema
from vgpuctl.config.host_editor import render_host_file
from vgpuctl.config.host_spec import (
    GPU_SHAPE,
    BootSpec,
    Defaults,
    GpuSpec,
    HostSpec,
    VgpuSpec,
    list_models,
    merge_gpu_entries,
    parse_host_spec,
    plan_entry_changes,
)
from vgpuctl.config.yaml_reader import load_document
from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.model.request import PlacementSpec
from vgpuctl.value import replace

NAME = "/etc/vgpuctl/host.yaml"


def test_a_host_file_is_read() -> None:
    text = "version: 1\ndefaults: {image: /a, memory: 8192, vcpus: 4, networks: n, os: linux, storage_pool: p}\n"
    assert parse_host_spec(text, NAME) == HostSpec(
        version=1,
        defaults=Defaults(image="/a", memory="8GiB", vcpus=4, networks=("n",), os="linux", storage_pool="p"),
    )


@pytest.mark.parametrize("text", ["version: 1", "version: 1\ndefaults:\n", "version: 1\ndefaults: {}\n"])
def test_defaults_may_be_missing(text: str) -> None:
    assert parse_host_spec(text, NAME).defaults == Defaults()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: {}", f"{NAME}:1:1: version: missing: write 'version: 1'"),
        ("~", f"{NAME}:1:1: expected a mapping"),
        ("version: 1\n---\ngpus: {}\n", f"{NAME}:2:1: it is not YAML: expected a single document"),
        ("version: 1\n...\ngpus: {}\n", f"{NAME}:3:1: it is not YAML: expected a single document"),
        ("version: 2", f"{NAME}:1:10: version: this vgpuctl reads version 1"),
        ("version: '1'", f"{NAME}:1:10: version: this vgpuctl reads version 1"),
        ("version: true", f"{NAME}:1:10: version: this vgpuctl reads version 1"),
        ("version: 1\ndefault: {}", f"{NAME}:2:1: default: unknown field (did you mean 'defaults'?)"),
        ("version: 1\ndefaults:\n  imag: /a", f"{NAME}:3:3: defaults.imag: unknown field (did you"),
        ("version: 1\ndefaults:\n  profile: A", f"{NAME}:3:3: defaults.profile: unknown field"),
        ("version: 1\ndefaults:\n  memory: 8GB", f"{NAME}:3:11: defaults.memory: '8GB' has the unit GB"),
        ("version: 1\ndefaults: [1]", f"{NAME}:2:11: defaults: expected a mapping"),
        ("version: 1\nversion: 1", f"{NAME}:2:1: version: the key appears twice"),
    ],
)  # fmt: skip
def test_invalid_values_have_a_line(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_host_spec(text, NAME)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("text", ["", "\n\n", "# version: 1\n  # gpus: {}\n"])
def test_an_empty_file_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"is empty: a host\.yaml has at least 'version: 1'"):
        parse_host_spec(text, NAME)


def test_gpus_vgpus_and_boot_are_read() -> None:
    text = """version: 1
gpus:
  "3B:00.0": {mode: vgpu, vfs: 16}
  "0000:af:00.0": {cordoned: true}
vgpus:
  kiosk: {profile: A100-4C, gpu: "0000:3b:00.0", carrier: 66740E39-cd28-5e55-be21-b2c22066fb9f}
boot: {deadline_seconds: 60}
"""
    spec = parse_host_spec(text, NAME)
    assert spec.gpus == {
        "0000:3b:00.0": GpuSpec(mode="vgpu", vfs=16),
        "0000:af:00.0": GpuSpec(cordoned=True),
    }
    assert spec.vgpus == {"kiosk": VgpuSpec("A100-4C", "0000:3b:00.0", "66740e39-cd28-5e55-be21-b2c22066fb9f")}
    assert spec.boot == BootSpec(60)
    assert parse_host_spec("version: 1\ngpus:\n", NAME).gpus == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus: [1]", f"{NAME}:2:7: gpus: expected a mapping of names"),
        ("gpus:\n  '3b:00': {}", f"{NAME}:3:3: gpus.3b:00: '3b:00' is not a PCI address"),
        ("gpus:\n  '3b:00.0': {mod: vgpu}", f"{NAME}:3:15: gpus.3b:00.0.mod: unknown field (did you mean"),
        ("gpus:\n  '3b:00.0': {mode: vgpus}", f"{NAME}:3:21: gpus.3b:00.0.mode: 'vgpus' is not vgpu, sriov"),
        ("gpus:\n  '3b:00.0': {vfs: -1}", f"{NAME}:3:20: gpus.3b:00.0.vfs: -1 is not between 0 and 256"),
        ("gpus:\n  '3b:00.0':\n  '0000:3b:00.0':", f"{NAME}:4:3: gpus.0000:3b:00.0: '0000:3b:00.0' appears twice"),
        (
            "vgpus:\n  a: {profile: P, gpu: '0:3b:0.0', carrier: '0:3b:0.4'}\n"
            "  b: {profile: Q, gpu: '0:3b:0.0', carrier: '0000:3B:00.4'}",
            f"{NAME}:4:45: vgpus.b.carrier: 0000:3b:00.4 is also the carrier of vGPU a",
        ),
        ("vgpus:\n  a: {profile: P}", f"{NAME} has 2 problems\n{NAME}:3:6: vgpus.a.gpu: missing"),
        ("boot: {deadline_seconds: 0}", f"{NAME}:2:26: boot.deadline_seconds: 0 is not between 1 and 3600"),
    ],
)  # fmt: skip
def test_invalid_gpus_values_have_a_line(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_host_spec(f"version: 1\n{text}", NAME)
    assert caught.value.message.startswith(message)


def test_how_new_vgpus_are_placed_is_read_and_written_back() -> None:
    read = parse_host_spec("version: 1\nplacement:\n  policy: breadth\n", NAME)
    assert read.placement == PlacementSpec("breadth")
    assert parse_host_spec(render_host_file(read), NAME) == read
    assert "placement" not in render_host_file(HostSpec(1))
    assert parse_host_spec("version: 1\nplacement: {}", NAME).placement == PlacementSpec()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("{policy: deep}", "2:21: placement.policy: 'deep' is not least-waste, depth, breadth or first-fit"),
        ("{order: depth}", "2:13: placement.order: unknown field"),
    ],
)  # fmt: skip
def test_invalid_placement_values_have_a_line(output: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_host_spec(f"version: 1\nplacement: {output}", NAME)
    assert message in caught.value.message


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
