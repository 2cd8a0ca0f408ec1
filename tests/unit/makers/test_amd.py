# SPDX-License-Identifier: Apache-2.0
"""AMD's driver gim: which of its GPUs have what, and that no command reads the file that resets a card."""

from __future__ import annotations

import pytest

from tests.callers import host_of
from tests.hosts import context, create, open_sim_host, request
from tests.values import a100
from vgpuctl.makers import breaks_at_reset, sets_vfs_at_load
from vgpuctl.makers.amd import Amd
from vgpuctl.operations.diagnose import diagnose
from vgpuctl.operations.gpu_mode import ModeRequest, set_mode


@pytest.mark.parametrize(("driver", "expected"), [("gim", True), ("amdgpu", False), (None, False)])
def test_only_gim_takes_the_number_of_vfs_when_it_is_loaded(driver, expected):
    assert sets_vfs_at_load(a100(vendor_id="1002", driver=driver)) is expected


def test_cards_of_which_it_is_known_are_lost_by_a_reset():
    assert breaks_at_reset(a100(vendor_id="1002", device_id="74a1"))
    assert not breaks_at_reset(a100(vendor_id="1002", device_id="7460"))
    assert not breaks_at_reset(a100(vendor_id="10de", device_id="74a1"))


def test_each_number_of_vfs_begins_with_the_modes_that_gim_sets_by_itself():
    choices = Amd().partition_choices("74a1")
    assert {n: pairs[0] for n, pairs in choices.items()} == {
        1: ("SPX", "NPS1"), 2: ("DPX", "NPS1"), 4: ("QPX", "NPS1"), 8: ("CPX", "NPS1"),
    }  # fmt: skip
    assert Amd().partition_choices("7460") == {}


@pytest.mark.parametrize("scenario", ["mi300x", "mixed"])
def test_no_command_reads_the_file_that_resets_the_card(tmp_path, scenario):
    host = open_sim_host(tmp_path, scenario)
    api = host_of(host, None)
    address = "0000:af:00.0"
    create(host.ports, request(mode="sriov", gpu=address, name="vm"))
    for answer in (
        api.list_gpus(everything=True), api.show_gpu(address), api.list_profiles(), api.diff(), api.export_host(),
        api.list_vms(), api.top(), api.advise_workload("cad"), api.list_vgpus(),
    ):  # fmt: skip
        assert answer.data is not None
    assert diagnose(host.ports, ()).checks
    assert set_mode(host.ports, context(), ModeRequest(address, "sriov", 2, drain=True)).changed
    api.reconcile_host()
    api.restore_host()
