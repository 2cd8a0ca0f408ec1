# SPDX-License-Identifier: Apache-2.0
"""Moore Threads' mdev types, and VMs that get them in any mix on a simulated card."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, request
from vgpuctl.errors import HostCannot, InvalidInput, NoCapacity
from vgpuctl.makers.moore_threads import MooreThreads
from vgpuctl.observe import ReadScope, observe

GPU = "0000:03:00.0"


@pytest.mark.parametrize(
    ("type_id", "name", "mib"),
    [
        ("mtgpu-1100", "", 1024),
        ("mtgpu-1101", "MtvGPU-1101", 1024),
        ("mtgpu-1108", "", 8192),
        ("mtgpu-1132", "", 32768),
        ("mtgpu-2008", "mtgpu-8g\n", 8192),  # the driver's name counts before the table
        ("mtgpu-1104", "mtgpu-6g", 6144),
        ("mtgpu-2008", "", None),  # not in the table: unknown, and not guessed
        ("mtgpu-2008", "mtgpu-0g", None),
    ],
)
def test_a_types_memory_is_in_its_name_or_in_the_published_table(type_id, name, mib):
    known = MooreThreads().read_type(type_id, name, "")
    assert (known.profile, known.framebuffer_mib, known.pool_units) == (type_id, mib, None)


def test_any_mix_is_on_one_card_until_its_driver_has_no_more(tmp_path):
    host = open_sim_host(tmp_path, "mtt-s3000")
    for name, profile in enumerate(("mtgpu-1116", "mtgpu-1108", "mtgpu-1104")):
        (vgpu,) = create(host.ports, request(profile, name=f"vm-{name}", gpu=GPU)).data.vgpus
        assert (vgpu.gpu, vgpu.backend) == (GPU, "mdev-pf")
    left = observe(host.ports, ReadScope(types=True)).gpu(GPU).functions[0].available_instances
    assert (left["mtgpu-1108"], left["mtgpu-1104"], left["mtgpu-1101"]) == (0, 1, 3)
    with pytest.raises(NoCapacity):
        create(host.ports, request("mtgpu-1108", name="one-more", gpu=GPU))


@pytest.mark.parametrize("driver", ["none", "mtgpu, backend: passthrough"])
def test_a_card_without_the_host_driver_of_mt_vgpu_says_what_to_install(tmp_path, driver):
    host = open_sim_host(tmp_path, text=f"version: 1\ngpus: [{{model: MTT S3000, driver: {driver}}}]\n")
    with pytest.raises(HostCannot) as raised:
        create(host.ports, request("mtgpu-1104"))
    assert "mtvgpu_basic" in str(raised.value.hint)


def test_qemu_cannot_show_its_screen(tmp_path):
    host = open_sim_host(tmp_path, "mtt-s3000")
    with pytest.raises(InvalidInput) as raised:
        create(host.ports, request("mtgpu-1104", display=True))
    assert raised.value.hint == "omit --display, and use a remote desktop in the guest"


def test_the_type_of_the_whole_card_is_warned_about_on_pcs_only(tmp_path):
    host = open_sim_host(tmp_path / "pc", "mtt-s3000")
    assert any("pc-i440fx" in warning for warning in create(host.ports, request("mtgpu-1132")).warnings)
    assert create(host.ports, request("mtgpu-1116", name="half", gpu="0000:5e:00.0")).warnings == ()
    arm = open_sim_host(tmp_path / "arm", text="version: 1\narch: aarch64\ngpus: [{model: MTT S3000}]\n")
    assert create(arm.ports, request("mtgpu-1132")).warnings == ()
