# SPDX-License-Identifier: Apache-2.0
"""Cards that go to a VM as a whole, or with plain VFs: recognized, passed on, and honest about their slicing."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, request
from tests.values import t4
from vgpuctl.config.kubernetes.request import DeviceRequest
from vgpuctl.errors import HostCannot, NotFound
from vgpuctl.makers import maker_of, slicing_notes
from vgpuctl.model.gpu import Backend
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.plans.job_offers import choose_offer
from vgpuctl.operations.queries import explain, list_profiles

CARDS = [
    # the card in sim/data/models.json, its maker, its name, and a part of the sentence about its slicing
    ("MetaX C500", "MetaX", "MetaX C500", "sGPU divides a card between containers only"),
    ("Hygon K100", "Hygon", "Hygon K100", "vDCU divides a card between containers only"),
    ("Iluvatar BI", "Iluvatar", "Iluvatar 1e3e:0002", "vGPU divides a card between containers only"),
    ("Enflame S60", "Enflame", "Enflame S60", "DRS divides a card between containers only"),
    ("Kunlun P800", "Kunlunxin", "Kunlunxin P800", "vXPU divides a card between containers only"),
    ("Vastai SG100", "Vastai", "Vastai SG100", "is not published"),
]
CARDS_WITH_VFS = [
    ("Biren 106", "Biren", "Biren 1ee0:0106", "divides a card into VFs without profiles"),
    ("MLU270", "Cambricon", "Cambricon MLU270-S4", "have VFs without profiles"),
]
GPU = "0000:3b:00.0"


def one_card(tmp_path, model, more=""):
    return open_sim_host(tmp_path, text=f"version: 1\ngpus: [{{model: {model}{more}}}]\n")


@pytest.mark.parametrize(("model", "maker", "name", "slicing"), [*CARDS, *CARDS_WITH_VFS])
def test_it_is_a_gpu_with_its_makers_name(tmp_path, model, maker, name, slicing):
    host = one_card(tmp_path, model)
    (gpu,) = observe(host.ports, ReadScope()).gpus
    assert (gpu.model, maker_of(gpu).name, gpu.is_display_class) == (name, maker, True)
    (note,) = slicing_notes([gpu])
    assert note.startswith(f"{GPU} ({name}): no profiles: ")
    assert slicing in note
    assert list_profiles(host.ports).notes == (note,)


@pytest.mark.parametrize("driver", ["", ", driver: vfio-pci", ", driver: none"])
@pytest.mark.parametrize("model", [model for model, *_ in CARDS])
def test_a_vm_gets_the_whole_card(tmp_path, model, driver):
    host = one_card(tmp_path, model, driver)
    (device,) = create(host.ports, request(mode="passthrough", gpu=GPU)).data.vgpus
    assert (device.gpu, device.carrier, device.backend) == (GPU, GPU, "passthrough")


@pytest.mark.parametrize("model", [model for model, *_ in CARDS_WITH_VFS])
def test_a_vm_gets_a_vf_where_the_driver_has_them(tmp_path, model):
    host = one_card(tmp_path, model)
    (device,) = create(host.ports, request(mode="sriov", gpu=GPU)).data.vgpus
    assert (device.gpu, device.backend) == (GPU, "sriov-vf")
    assert device.carrier != GPU


@pytest.mark.parametrize(("model", "slicing"), [(model, slicing) for model, _, _, slicing in CARDS])
def test_a_profile_on_it_is_refused_with_what_divides_it(tmp_path, model, slicing):
    host = one_card(tmp_path, model)
    with pytest.raises(HostCannot) as created:
        create(host.ports, request("vgpu-1g"))
    assert slicing in str(created.value.hint)
    assert f": vgpuctl create-vm --mode passthrough --gpu {GPU}" in str(created.value.hint)
    with pytest.raises(NotFound) as explained:
        explain(host.ports, "vgpu-1g")
    assert slicing in str(explained.value.hint)


def test_a_job_for_a_part_of_it_reads_what_divides_it(tmp_path):
    host = one_card(tmp_path, "Hygon K100")
    with pytest.raises(HostCannot) as raised:
        choose_offer(observe(host.ports, ReadScope()).gpus, (), DeviceRequest("Hygon", 1, "job.yaml:1", (), 2000))
    assert raised.value.hint == maker_of(t4(vendor_id="1d94")).slicing


def test_explain_says_it_beside_a_gpu_that_has_the_profile(tmp_path):
    host = open_sim_host(tmp_path, "makers")
    reasons = {row.model: row.reasons for row in explain(host.ports, "mtgpu-1104").data.gpus}
    for _, _, name, slicing in CARDS:
        assert slicing in reasons[name][0]
    assert "VFs are off" in reasons["Biren 1ee0:0106"][0]


def test_cards_of_one_model_share_a_note(tmp_path):
    host = open_sim_host(tmp_path, text="version: 1\ngpus: [{model: MetaX C500, count: 2}]\n")
    (note,) = list_profiles(host.ports).notes
    assert note.startswith("0000:3b:00.0, 0000:3f:00.0 (MetaX C500): ")


@pytest.mark.parametrize(
    ("vendor", "device", "is_listed"),
    [
        ("1d94", "62b7", True),  # Hygon K100
        ("1d94", "1456", False),  # the cryptographic co-processor of Hygon's CPUs
        ("8086", "37c8", False),  # Intel QAT
    ],
)
def test_a_coprocessor_is_a_gpu_only_by_its_id(tmp_path, vendor, device, is_listed):
    host = open_sim_host(
        tmp_path,
        text="version: 1\ngpus:\n"
        f'  - {{model: Another card, backend: passthrough, driver: other, class: "0b4000", vendor_id: "{vendor}",'
        f' device_id: "{device}"}}\n',
    )
    assert bool(observe(host.ports, ReadScope()).gpus) is is_listed


def test_the_scenario_has_a_card_of_each_maker(tmp_path):
    snapshot = observe(open_sim_host(tmp_path, "makers").ports, ReadScope())
    assert [maker_of(gpu).name for gpu in snapshot.gpus] == [
        "Moore Threads",
        "Huawei Ascend",
        "Cambricon",
        "Biren",
        *(maker for _, maker, _, _ in CARDS),
    ]
    assert {gpu.backend for gpu in snapshot.gpus} == {
        None,
        Backend.MDEV_PF,
        Backend.SRIOV_VF,
        Backend.PASSTHROUGH,
    }
