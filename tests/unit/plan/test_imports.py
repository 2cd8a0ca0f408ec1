# SPDX-License-Identifier: Apache-2.0
"""What other programs keep becomes a host.yaml of this host; what it cannot say is told, never dropped in silence."""

from __future__ import annotations

import pytest

from tests.worlds import open_host
from vgpuctl.engine.observe import Want, observe
from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.model.partition import MigSpec
from vgpuctl.plan.imports import imported
from vgpuctl.spec.foreign import Carving, Definition, Foreign
from vgpuctl.spec.host import GpuSpec, HostSpec, VgpuSpec
from vgpuctl.value import replace

T4, A16, A100 = "0000:5e:00.0", "0000:17:00.0", "0000:3b:00.0"
UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
ONE = Definition(UUID, T4, "nvidia-230", True, "frame_rate_limiter=0", (), "f:1")


@pytest.fixture
def snapshot(tmp_path):
    return observe(open_host(tmp_path, "mixed").world, Want(types=True))


def of(snapshot, *carvings):
    return imported(Foreign("vgpu-device-manager", carvings=carvings), snapshot)


def test_an_mdev_becomes_a_vgpu_without_a_vm(snapshot):
    found = imported(Foreign("mdevctl", (replace(ONE, others=("assign",)),)), snapshot)
    profile = snapshot.gpu(T4).type_of("nvidia-230").profile
    assert found.host.vgpus == {"mdev-83b8f4f2": VgpuSpec(profile, T4, UUID, {"frame_rate_limiter": "0"})}
    assert found.left_out == ("f:1: the attribute assign is not set by vgpuctl",)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"auto": False}, "not started at boot"), ({"parent": "mtty"}, "names GPUs by PCI address")],
)
def test_an_mdev_that_host_yaml_cannot_say_is_left_out(snapshot, change, told):
    found = imported(Foreign("mdevctl", (replace(ONE, **change),)), snapshot)
    assert found.host == HostSpec(1)
    assert told in found.left_out[0]


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        ({"parent": "0000:99:00.0"}, NotFound, "is not on this host"),
        ({"type_id": "nvidia-9"}, NotFound, "has no vGPU type nvidia-9"),
        ({"params": "a b"}, InvalidInput, "vgpu_params"),
    ],
)
def test_an_mdev_that_does_not_fit_this_host_is_refused_with_its_place(snapshot, change, kind, told):
    with pytest.raises(kind, match=told) as raised:
        imported(Foreign("mdevctl", (replace(ONE, **change),)), snapshot)
    assert raised.value.message.startswith("f:1: ")


def test_profiles_are_allowed_on_the_gpus_of_nvidia_that_are_meant(snapshot):
    everywhere = of(snapshot, Carving(None, (), (("A16-2Q", 1), ("A100-1-5C", None)), None, "f:3"))
    assert everywhere.host.gpus == {a: GpuSpec("vgpu", profiles=("A16-2Q",)) for a in _nvidia(snapshot)}
    assert [line.split(": ")[0] for line in everywhere.left_out] == ["f:3", "f:3"]
    some = of(
        snapshot, Carving((0, 2), (), (("T4-1Q", 1),), None, "f:3"), Carving((2,), (), (("T4-2Q", 1),), None, "f:4")
    )
    assert some.host.gpus == {
        A16: GpuSpec("vgpu", profiles=("T4-1Q",)),
        T4: GpuSpec("vgpu", profiles=("T4-1Q", "T4-2Q")),
    }
    device = snapshot.gpu(T4).device_id
    filtered = of(snapshot, Carving(None, (f"0x{device.upper()}10DE",), (("T4-1Q", 1),), None, "f:3"))
    assert set(filtered.host.gpus) == {T4}


def test_all_is_said_where_every_gpu_is_nvidias(tmp_path):
    snapshot = observe(open_host(tmp_path).world, Want())
    assert of(snapshot, Carving(None, (), (("A100-4C", 1),), None, "f:3")).host.gpus == {
        "all": GpuSpec("vgpu", profiles=("A100-4C",))
    }


def test_a_number_that_no_gpu_has_is_refused(snapshot):
    with pytest.raises(NotFound, match=r"f:3: there is no GPU number 9: this host has \d"):
        of(snapshot, Carving((0, 9), (), (("T4-1Q", 1),), None, "f:3"))


SEVEN = MigSpec(("1g.10gb",) * 7)
H100 = ("0000:3b:00.0", "0000:3f:00.0")


@pytest.fixture
def two_h100(tmp_path):
    return observe(open_host(tmp_path / "h100", "h100-mig").world, Want(types=True))


def test_mig_parted_says_how_gpus_are_partitioned(two_h100):
    assert of(two_h100, Carving(None, (), (), SEVEN, "f:3")).host.gpus == {"all": GpuSpec("vgpu", mig=SEVEN)}
    some = of(two_h100, Carving((0,), (), (), SEVEN, "f:3"), Carving((1,), (), (), MigSpec(), "f:4"))
    assert some.host.gpus == {H100[0]: GpuSpec("vgpu", mig=SEVEN), H100[1]: GpuSpec("vgpu", mig=MigSpec())}
    with pytest.raises(InvalidInput, match=f"f:4: another entry before says otherwise how {H100[0]} is partitioned"):
        of(two_h100, Carving((0,), (), (), SEVEN, "f:3"), Carving((0,), (), (), MigSpec(), "f:4"))


def test_mig_is_said_of_the_gpus_that_have_it(snapshot):
    able = tuple(g.address for g in snapshot.gpus if g.mig is not None)
    assert A100 in able
    assert tuple(of(snapshot, Carving(None, (), (), SEVEN, "f:3")).host.gpus) == able
    assert of(snapshot, Carving(None, (), (), None, "f:3", ("MIG as no GPU has it",))).left_out == (
        "f:3: MIG as no GPU has it",
    )


def test_vgpus_that_run_in_gpu_instances_say_what_there_is_to_be_room_for(two_h100, snapshot):
    found = of(two_h100, Carving((1,), (), (("H100-1-10C", 4), ("H100-3-40C", 1)), None, "f:3"))
    assert found.host.gpus == {H100[1]: GpuSpec("vgpu", mig=MigSpec(vgpus=(("H100-1-10C", 4), ("H100-3-40C", 1))))}
    uncounted = of(two_h100, Carving(None, (), (("H100-1-10C", None),), None, "f:3"))
    assert (uncounted.host, "how many GPU instances" in uncounted.left_out[0]) == (HostSpec(1), True)
    device = snapshot.gpu(T4).device_id
    unable = of(snapshot, Carving(None, (f"0x{device}10DE",), (("T4-1-5C", 1),), None, "f:3"))
    assert (unable.host, "known to have MIG" in unable.left_out[0]) == (HostSpec(1), True)


def _nvidia(snapshot):
    return [g.address for g in snapshot.gpus if g.vendor_id == "10de"]
