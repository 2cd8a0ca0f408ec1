# SPDX-License-Identifier: Apache-2.0
"""Files of other programs become a host.yaml of this host; what it cannot express is reported, never dropped."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from vgpuctl.config.host_spec import GpuSpec, HostSpec, VgpuSpec
from vgpuctl.config.import_formats import DeviceConfig, ImportedConfig, MdevDefinition
from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.model.gpu import MigSpec
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.import_host import convert_import
from vgpuctl.value import replace

T4, A16, A100 = "0000:5e:00.0", "0000:17:00.0", "0000:3b:00.0"
UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
ONE = MdevDefinition(UUID, T4, "nvidia-230", True, "frame_rate_limiter=0", (), "f:1")


@pytest.fixture
def snapshot(tmp_path):
    return observe(open_sim_host(tmp_path, "mixed").ports, ReadScope(types=True))


def of(snapshot, *carvings):
    return convert_import(ImportedConfig("vgpu-device-manager", device_configs=carvings), snapshot)


def test_an_mdev_becomes_a_vgpu_without_a_vm(snapshot):
    result = convert_import(ImportedConfig("mdevctl", (replace(ONE, other_attributes=("assign",)),)), snapshot)
    profile = snapshot.gpu(T4).find_type("nvidia-230").profile
    assert result.host_spec.vgpus == {"mdev-83b8f4f2": VgpuSpec(profile, T4, UUID, {"frame_rate_limiter": "0"})}
    assert result.left_out == ("f:1: vgpuctl does not set the attribute assign",)


@pytest.mark.parametrize(
    ("change", "reported"),
    [({"auto": False}, "not started at boot"), ({"parent": "mtty"}, "names GPUs by PCI address")],
)
def test_an_mdev_that_host_yaml_cannot_say_is_left_out(snapshot, change, reported):
    result = convert_import(ImportedConfig("mdevctl", (replace(ONE, **change),)), snapshot)
    assert result.host_spec == HostSpec(1)
    assert reported in result.left_out[0]


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"parent": "0000:99:00.0"}, NotFound, "is not on this host"),
        ({"type_id": "nvidia-9"}, NotFound, "has no vGPU type nvidia-9"),
        ({"params": "a b"}, InvalidInput, "vgpu_params"),
    ],
)
def test_an_mdev_that_does_not_fit_this_host_is_refused_with_its_place(snapshot, change, kind, message):
    with pytest.raises(kind, match=message) as raised:
        convert_import(ImportedConfig("mdevctl", (replace(ONE, **change),)), snapshot)
    assert raised.value.message.startswith("f:1: ")


def test_profiles_are_allowed_on_the_selected_gpus_that_can_offer_them(snapshot):
    everywhere = of(snapshot, DeviceConfig(None, (), (("A16-2Q", 1), ("T4-1Q", 2), ("A100-1-5C", None)), None, "f:3"))
    assert everywhere.host_spec.gpus == {
        **{g.address: GpuSpec("vgpu", profiles=("A16-2Q",)) for g in snapshot.gpus if "A16" in g.model},
        T4: GpuSpec("vgpu", profiles=("T4-1Q",)),
    }
    assert [line.split(": ")[0] for line in everywhere.left_out] == ["f:3", "f:3"]
    some = of(
        snapshot,
        DeviceConfig((0, 2), (), (("T4-1Q", 1), ("A16-2Q", 1)), None, "f:3"),
        DeviceConfig((2,), (), (("T4-2Q", 1),), None, "f:4"),
    )
    assert some.host_spec.gpus == {
        A16: GpuSpec("vgpu", profiles=("A16-2Q",)),
        T4: GpuSpec("vgpu", profiles=("T4-1Q", "T4-2Q")),
    }
    assert f"{T4}: T4-1Q, T4-2Q at once: it takes vGPUs of one size at a time" in some.left_out
    device = snapshot.gpu(T4).device_id
    filtered = of(snapshot, DeviceConfig(None, (f"0x{device.upper()}10DE",), (("T4-1Q", 1),), None, "f:3"))
    assert set(filtered.host_spec.gpus) == {T4}


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("A16-2X", "f:3: A16-2X: none of its GPUs can offer it"),
        ("L40S-8Q", "f:3: L40S-8Q: none of its GPUs can offer it"),
        ("A100-1-5CGFX", "f:3: A100-1-5CGFX: 0000:3b:00.0 cannot offer it (did you mean A100-1-5C"),
        ("A100-9-5C", "f:3: A100-9-5C: none of its GPUs can offer it"),
    ],
)
def test_a_profile_that_no_gpu_here_can_offer_is_left_out_by_name(snapshot, profile, message):
    result = of(snapshot, DeviceConfig(None, (), ((profile, 1),), None, "f:3"))
    assert result.host_spec == HostSpec(1)
    assert [line[: len(message)] for line in result.left_out] == [message]


def test_a_gpu_instance_profile_that_a_gpu_does_not_have_is_left_out(two_h100):
    result = of(two_h100, DeviceConfig(None, (), (), MigSpec(("1g.5gb",) * 7), "f:3"))
    assert result.host_spec == HostSpec(1)
    assert result.left_out[0].startswith(f"f:3: {H100[0]} has no GPU instance profile 1g.5gb; it has ")


def test_several_sizes_are_mixed_where_the_gpu_can(tmp_path):
    snapshot = observe(open_sim_host(tmp_path, "l40s-x4").ports, ReadScope(types=True))
    entry = DeviceConfig(None, (), (("L40S-8Q", 3), ("L40S-12Q", 2)), None, "f:3")
    assert of(snapshot, entry).host_spec.gpus == {
        "all": GpuSpec("vgpu", profiles=("L40S-12Q", "L40S-8Q"), mixed_size=True)
    }
    assert of(snapshot, replace(entry, vgpus=(("L40S-8Q", 3), ("L40S-8A", 2)))).host_spec.gpus == {
        "all": GpuSpec("vgpu", profiles=("L40S-8A", "L40S-8Q"))
    }


def test_profiles_without_mig_are_left_out_where_another_entry_turns_it_on(two_h100):
    time_sliced = DeviceConfig(None, (), (("H100-10C", 8),), None, "f:3")
    result = of(two_h100, time_sliced, DeviceConfig((0,), (), (("H100-1-10C", 7),), None, "f:4"))
    assert result.host_spec.gpus == {
        H100[0]: GpuSpec("vgpu", mig=MigSpec(vgpus=(("H100-1-10C", 7),))),
        H100[1]: GpuSpec("vgpu", profiles=("H100-10C",)),
    }
    assert f"{H100[0]}: H100-10C: not offered while MIG is on, as this file requests there" in result.left_out


def test_all_is_used_if_every_gpu_is_nvidias(tmp_path):
    snapshot = observe(open_sim_host(tmp_path).ports, ReadScope())
    assert of(snapshot, DeviceConfig(None, (), (("A100-4C", 1),), None, "f:3")).host_spec.gpus == {
        "all": GpuSpec("vgpu", profiles=("A100-4C",))
    }


def test_a_number_that_no_gpu_has_is_refused(snapshot):
    with pytest.raises(NotFound, match=r"f:3: there is no GPU number 9: this host has \d"):
        of(snapshot, DeviceConfig((0, 9), (), (("T4-1Q", 1),), None, "f:3"))


SEVEN = MigSpec(("1g.10gb",) * 7)
H100 = ("0000:3b:00.0", "0000:3f:00.0")


@pytest.fixture
def two_h100(tmp_path):
    return observe(open_sim_host(tmp_path / "h100", "h100-mig").ports, ReadScope(types=True))


def test_mig_parted_says_how_gpus_are_partitioned(two_h100):
    assert of(two_h100, DeviceConfig(None, (), (), SEVEN, "f:3")).host_spec.gpus == {"all": GpuSpec("vgpu", mig=SEVEN)}
    some = of(two_h100, DeviceConfig((0,), (), (), SEVEN, "f:3"), DeviceConfig((1,), (), (), MigSpec(), "f:4"))
    assert some.host_spec.gpus == {H100[0]: GpuSpec("vgpu", mig=SEVEN), H100[1]: GpuSpec("vgpu", mig=MigSpec())}
    with pytest.raises(InvalidInput, match=f"f:4: an earlier entry partitions {H100[0]} differently"):
        of(two_h100, DeviceConfig((0,), (), (), SEVEN, "f:3"), DeviceConfig((0,), (), (), MigSpec(), "f:4"))


def test_mig_is_set_on_gpus_that_have_it(snapshot):
    able = tuple(g.address for g in snapshot.gpus if g.mig is not None)
    assert A100 in able
    assert tuple(of(snapshot, DeviceConfig(None, (), (), SEVEN, "f:3")).host_spec.gpus) == able
    assert of(snapshot, DeviceConfig(None, (), (), None, "f:3", ("MIG as no GPU has it",))).left_out == (
        "f:3: MIG as no GPU has it",
    )


def test_vgpus_that_run_in_gpu_instances_say_what_there_is_to_be_room_for(two_h100, snapshot):
    result = of(two_h100, DeviceConfig((1,), (), (("H100-1-10C", 4), ("H100-3-40C", 1)), None, "f:3"))
    assert result.host_spec.gpus == {
        H100[1]: GpuSpec("vgpu", mig=MigSpec(vgpus=(("H100-1-10C", 4), ("H100-3-40C", 1))))
    }
    uncounted = of(two_h100, DeviceConfig(None, (), (("H100-1-10C", None),), None, "f:3"))
    assert (uncounted.host_spec, "the number of GPU instances" in uncounted.left_out[0]) == (HostSpec(1), True)
    device = snapshot.gpu(T4).device_id
    unable = of(snapshot, DeviceConfig(None, (f"0x{device}10DE",), (("T4-1-5C", 1),), None, "f:3"))
    assert (unable.host_spec, "known to have MIG" in unable.left_out[0]) == (HostSpec(1), True)
