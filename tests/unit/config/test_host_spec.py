# SPDX-License-Identifier: Apache-2.0
"""host.yaml: what is read, each problem with its line; --set follows the same rules, and an error names its text."""

from __future__ import annotations

import pytest

from vgpuctl.config.host_assignments import apply_changes, parse_assignment, resolve_assignments
from vgpuctl.config.host_editor import render_host_file
from vgpuctl.config.host_spec import BootSpec, Defaults, GpuSpec, HostSpec, VgpuSpec, parse_host_spec
from vgpuctl.errors import InvalidInput
from vgpuctl.model.request import PlacementSpec

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
        ("version: 1\n---\ngpus: {}\n", f"{NAME}:2:1: a second document begins here, and the file may have one"),
        ("version: 1\n...\ngpus: {}\n", f"{NAME}:3:1: a second document begins here, and the file may have one"),
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
        ("{policy: deep}", "2:21: placement.policy: 'deep' is not least-waste, depth, breadth, first-fit, "),
        ("{order: depth}", "2:13: placement.order: unknown field"),
    ],
)  # fmt: skip
def test_invalid_placement_values_have_a_line(output: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_host_spec(f"version: 1\nplacement: {output}", NAME)
    assert message in caught.value.message


_SCHEDULER = "{policy: equal_share, time_slice_ms: 2}"
HOST = parse_host_spec(f'version: 1\ngpus:\n  "0000:3b:00.0": {{mode: vgpu, scheduler: {_SCHEDULER}}}\n', "host.yaml")
GPU = "0000:3b:00.0"


def changed(*texts):
    return resolve_assignments(HOST, [parse_assignment(text) for text in texts])


def test_a_key_within_a_mapping_leaves_the_others():
    (one,) = changed(f"gpus[{GPU}].scheduler.policy=fixed_share")
    assert one.changes == {"scheduler": {"policy": "fixed_share", "time_slice_ms": 2}}
    assert one.before == {"scheduler": {"policy": "equal_share", "time_slice_ms": 2}}


def test_values_are_typed_as_in_the_file():
    first, second = changed("gpus[3B:00.0].vfs=4", 'gpus["A16"].reserved_for=[vdi-*, lab-?]', "gpus[A16].cordoned=true")
    assert (first.gpu, first.changes) == (GPU, {"vfs": 4})
    assert second.changes == {"reserved_for": ["vdi-*", "lab-?"], "cordoned": True}
    assert second.entry == GpuSpec(cordoned=True, reserved_for=("vdi-*", "lab-?"))


def test_null_removes_a_key_and_the_last_one_counts():
    assert changed(f"gpus[{GPU}].mode=sriov", f"gpus[{GPU}].mode=null")[0].changes == {"mode": None}
    gone = changed(f"gpus[{GPU}].mode=", f"gpus[{GPU}].scheduler=null")
    assert apply_changes(HOST, gone).gpus == {}


def test_an_equal_assignment_changes_nothing():
    assert changed(f"gpus[{GPU}].mode=vgpu") == ()


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("gpus[A16].mode=vgpux", "mode: 'vgpux' is not"),
        ("gpus[A16].vfs=many", "vfs: "),
        ("gpus[A16].vfs='4'", "write the number without quotes"),
        ("gpus[A16].scheduler.time_slice_ms=2", "policy: missing"),
        ("gpus[A16].profiles=[]", "the list is empty"),
        ("gpus[A16].profiles=A16-2Q:2", "has a count"),
        ("gpus[A16].reserved_for=a b", "is not a pattern"),
        ("gpus[A16].reserved_for=vdi-[10:12]", "write 'vdi-{10..12}'"),
        ("gpus[A16].reserved_for=vdi-[10-12]", "write 'vdi-{10..12}'"),
        ("gpus[A16].moed=vgpu", "did you mean 'mode'"),
        ("gpus[3b:00].mode=vgpu", "3b:00"),
        ("gpus[A16].mode=[", "not YAML"),
        ("defaults.memory=4G", "does not name a key of a GPU"),
        ("gpus[].mode=vgpu", "does not name a key of a GPU"),
    ],
)
def test_an_error_names_the_text(text, reported):
    with pytest.raises(InvalidInput) as raised:
        changed(f"gpus[{GPU}].cordoned=true", text)
    assert f"--set {text}" in raised.value.message
    assert reported in raised.value.message


def test_each_problem_is_shown():
    with pytest.raises(InvalidInput) as raised:
        changed("gpus[A16].mode=x", "gpus[T4].vfs=-1", "gpus[T4].cordoned=1")
    assert raised.value.message.count("--set gpus[") == 3


def test_a_written_file_reads_back_as_the_same():
    spec = apply_changes(HOST, changed("gpus[A16].profiles=[A16-2Q, A16-4Q]", "gpus[all].cordoned=false"))
    text = render_host_file(spec, {GPU: "a card\n# not one"}, ("first", "second"))
    assert parse_host_spec(text, "x") == spec
    assert text.startswith("# first\n# second\nversion: 1\n")
    assert f'  # a card # not one\n  "{GPU}":\n' in text
