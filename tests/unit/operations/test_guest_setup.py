# SPDX-License-Identifier: Apache-2.0
"""license and guest_sharing of a new VM: what its guest cannot be set up with is refused before anything is made."""

from __future__ import annotations

import pytest

from tests.clusters import K3S
from tests.hosts import create, open_sim_host, picture, request
from vgpuctl.config.cluster_join import parse_join
from vgpuctl.config.guest_rules import parse_guest_sharing
from vgpuctl.config.vm_spec import with_seed
from vgpuctl.errors import HostCannot, InvalidInput
from vgpuctl.model.license import License
from vgpuctl.model.request import CloudInit, GuestSetup
from vgpuctl.value import replace

WINDOWS = {"os": "windows11", "memory_mib": 4096, "vcpus": 2}
IMAGE = "/srv/images/ubuntu-24.04.qcow2"
FAULT = "a GPU fault of one of the programs ends all that share the GPU"
NO_LIST = "NVIDIA supports MPS in VMs with vGPUs, but does not list for which profiles; try it with this one first"


def wanted(profile, sharing, **changes):
    fields = {"name": "vm", "image": IMAGE, "guest_sharing": parse_guest_sharing(sharing), **changes}
    return with_seed(request(profile, **fields), None)


def refusal(host, error, requested):
    before = picture(host)
    with pytest.raises(error) as caught:
        create(host.ports, requested)
    assert picture(host) == before
    return caught.value


def test_a_vm_gets_a_seed_with_it_and_its_record_says_so(host):
    made = create(host.ports, wanted("A100-4C", "mps,threads=50"))
    assert made.data.guest_sharing == "mps,threads=50"
    assert any(disk.path.endswith("-seed.iso") for disk in made.data.disks)
    assert any(step.endswith("from guest_sharing mps,threads=50") for step in made.steps)
    assert made.warnings == tuple(f"guest_sharing mps,threads=50: {text}" for text in (FAULT, NO_LIST))


@pytest.mark.parametrize(
    ("sharing", "warnings"),
    [
        ("none", []),
        ("mps:4", ["a GPU fault of one of the pods ends all that share the GPU", NO_LIST]),
        ("time-slicing:4", ["nothing limits the GPU memory that each of the pods takes"]),
    ],
)
def test_the_danger_is_said(host, sharing, warnings):
    made = create(host.ports, wanted("A100-4C", sharing), dry_run=True)
    assert made.warnings == tuple(f"guest_sharing {sharing}: {text}" for text in warnings)


@pytest.mark.parametrize("sharing", ["mps", "mps:4", "time-slicing:4"])
@pytest.mark.parametrize("profile", ["T4-4A", "T4-2B"])
def test_profiles_without_cuda_are_refused(tmp_path, sharing, profile):
    error = refusal(open_sim_host(tmp_path, "t4"), HostCannot, wanted(profile, sharing))
    assert error.message == (
        f"guest_sharing {sharing} needs CUDA, which {profile} does not have: it is of series {profile[-1]}"
    )
    assert error.hint == "choose a profile of series C or Q (vgpuctl list-profiles)"


@pytest.mark.parametrize(("sharing", "instead"), [("mps", "time-slicing:4"), ("mps:8", "time-slicing:8")])
def test_mps_is_refused_with_mig(tmp_path, sharing, instead):
    host = open_sim_host(tmp_path, "h100-mig")
    error = refusal(host, HostCannot, wanted("H100-1-10C", sharing))
    assert "MPS takes no GPU in MIG mode, and H100-1-10C is a part of one" in error.message
    assert instead in error.hint
    assert create(host.ports, wanted("H100-1-10C", instead)).data.guest_sharing == instead


def test_windows_has_no_sharing_and_no_cluster(host):
    error = refusal(host, InvalidInput, wanted("A100-4C", "mps", **WINDOWS))
    assert error.message == "guest_sharing is for guests with Linux, and os is windows11"
    join = GuestSetup(k8s_join=parse_join("lab", K3S))
    error = refusal(host, InvalidInput, with_seed(request("A100-4C", image=IMAGE, **WINDOWS), CloudInit(setup=join)))
    assert error.message == "k8s_join is for guests with Linux, and os is windows11"


def test_another_makers_gpu_is_refused(tmp_path):
    host = open_sim_host(tmp_path, "ascend")
    error = refusal(host, HostCannot, wanted("vir04", "mps"))
    assert "guest_sharing mps: that is for NVIDIA's GPUs" in error.message


def test_a_program_cannot_have_more_memory_than_the_vgpu(host):
    error = refusal(host, InvalidInput, wanted("A100-4C", "mps,memory=5GiB"))
    assert error.message == "guest_sharing mps,memory=5GiB: a program may take 5 GiB, and A100-4C has 4 GiB"
    assert error.hint == "limit it to a part of that, for example memory=2GiB"
    assert create(host.ports, wanted("A100-4C", "mps,memory=4GiB")).changed


def test_programs_share_a_whole_gpu_without_a_word_about_profiles(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    requested = replace(wanted("A100-4C", "mps", mode="passthrough", gpu=("0000:d8:00.0",)), profiles=())
    assert create(host.ports, requested, dry_run=True).warnings == (f"guest_sharing mps: {FAULT}",)


def test_without_a_system_there_is_nothing_that_cloud_init_could_set_up(host):
    error = refusal(host, InvalidInput, wanted("A100-4C", "mps", image=None))
    assert error.message == "cloud-init needs an operating system, but the VM's disk would be empty"
    assert error.facts["needed_for"] == ["guest_sharing mps"]


def licensed(feature=1, **changes):
    license = License("cad", "a.b.c", feature=feature)
    fields = {"name": "vm", "image": IMAGE, "license_name": "cad", **changes}
    return with_seed(request("A100-4C", **fields), CloudInit(setup=GuestSetup(license)))


def test_a_license_is_in_the_record_by_its_name(host):
    made = create(host.ports, licensed())
    assert (made.data.license, made.warnings) == ("cad", ())
    assert any(step.endswith("from license cad") for step in made.steps)


@pytest.mark.parametrize("feature", [2, 4])
def test_a_license_for_a_whole_gpu_is_refused_for_vgpus_and_the_other_way_round(tmp_path, feature):
    host = open_sim_host(tmp_path, "mixed")
    whole = {"mode": "passthrough", "gpu": ("0000:d8:00.0",), "profiles": ()}
    error = refusal(host, InvalidInput, licensed(feature))
    assert error.message.startswith(f"the license cad is for a whole GPU: its feature is {feature} (")
    made = create(host.ports, replace(licensed(feature), **whole), dry_run=True)
    assert [warning.partition(": then ")[2] for warning in made.warnings] == [
        "vgpuctl refresh-license vm --clear takes the token out"
    ]
    error = refusal(host, InvalidInput, replace(licensed(), **whole))
    assert error.message.startswith("the license cad is for vGPUs: its feature is 1 (vGPU), and mode is passthrough")


def test_windows_gets_a_license_with_a_word_about_who_can_read_it(host):
    made = create(host.ports, licensed(**WINDOWS))
    assert made.data.license == "cad"
    assert made.warnings == (
        "license cad: experimental with Windows, where nobody has run it yet",
        "license cad: until the guest is licensed, its users can read the token on its CD-ROM drive",
    )


def test_a_license_is_refused_for_another_maker(tmp_path):
    ascend = open_sim_host(tmp_path / "ascend", "ascend")
    refusal(ascend, HostCannot, replace(licensed(), profiles=(("vir04", 1),)))
