# SPDX-License-Identifier: Apache-2.0
"""creatable_vgpu_types with and without header, VFs that cannot be read; placements of VFs and mdevs."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.vendor_vf import parse_creatable_types

LINES = "468 : GRID A100-4C\n 469  :  NVIDIA RTX Pro 6000 Blackwell DC-4Q \n"
TWO_VFS = "version: 1\ngpus:\n  - {model: A100, vfs: {total: 2, enabled: 2}%s}\n"


@pytest.mark.parametrize("header", ["", "ID    : vGPU Name\n", "\n"])
def test_the_list_is_read_with_and_without_header_and_names_keep_their_spaces(header):
    assert parse_creatable_types(header + LINES) == {
        "468": "GRID A100-4C",
        "469": "NVIDIA RTX Pro 6000 Blackwell DC-4Q",
    }


@pytest.mark.parametrize("header", ["true", "false"])
def test_both_forms_give_the_same_types(tmp_path, header):
    host = open_sim_host(tmp_path, text=TWO_VFS % f", types_header: {header}")
    (gpu,) = observe(host.ports, ReadScope(types=True)).gpus
    assert gpu.find_type("468").profile == "A100-4C"


@pytest.mark.parametrize("file", ["current_vgpu_type", "creatable_vgpu_types"])
def test_a_vf_that_cannot_be_read_is_named_and_the_other_still_offers(tmp_path, file):
    text = TWO_VFS % "" + f'faults:\n  - {{on: sysfs-read, match: "*00.4/nvidia/{file}"}}\n'
    (gpu,) = observe(open_sim_host(tmp_path, text=text).ports, ReadScope(types=True)).gpus
    assert "cannot be read" in gpu.functions[0].problem
    assert gpu.functions[1].available_instances["468"] == 1


def test_a_vf_whose_list_cannot_be_read_still_counts_as_taken(tmp_path):
    text = TWO_VFS % "" + 'faults:\n  - {on: sysfs-read, match: "*00.4/nvidia/creatable_vgpu_types"}\n'
    host = open_sim_host(tmp_path, text=text)
    host.ports.sysfs.write("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "468\n")
    observed = observe(host.ports, ReadScope(types=True))
    assert [v.carrier for v in observed.vgpus] == ["0000:3b:00.4"]


TEXT = """version: 1
kernel: "{kernel}"
nvidia: {{driver: "{driver}"}}
gpus:
  - model: A100
    mixed_size: true
    vgpus:
      - {{profile: A100-20C}}
      - {{profile: A100-8C}}
"""
KERNELS = {"vendor-vf": "6.8.0", "mdev-vf": "5.15.0"}


@pytest.mark.parametrize("form", KERNELS)
@pytest.mark.parametrize(("driver", "wanted"), [("590.48.01", [0, 20]), ("550.90.05", [None, None])])
def test_placements_of_unmanaged_vgpus_are_seen(tmp_path, form, driver, wanted):
    host = open_sim_host(tmp_path, text=TEXT.format(kernel=KERNELS[form], driver=driver))
    observed = observe(host.ports, ReadScope(types=True))
    assert observed.gpus[0].backend == form
    assert [v.placement_id for v in observed.vgpus] == wanted
    assert (observed.gpus[0].has_fixed_placements, observed.gpus[0].accepts_placements) == (
        wanted[0] is None,
        wanted[0] is not None,
    )


@pytest.mark.parametrize("form", KERNELS)
def test_one_size_has_no_placement(tmp_path, form):
    text = TEXT.format(kernel=KERNELS[form], driver="590.48.01").replace(
        "mixed_size: true", "vfs: {total: 4, enabled: 4}"
    )
    host = open_sim_host(tmp_path, text=text.replace("A100-20C", "A100-8C"))
    observed = observe(host.ports, ReadScope(types=True))
    assert [v.placement_id for v in observed.vgpus] == [None, None]
    assert not observed.gpus[0].has_fixed_placements


@pytest.mark.parametrize("form", KERNELS)
def test_only_a_vf_has_a_file_for_its_gpu_instance(tmp_path, form):
    text = TEXT.format(kernel=KERNELS[form], driver="590.48.01").replace("mixed_size: true", "mig: [1g.5gb]")
    host = open_sim_host(tmp_path, text=text[: text.index("    vgpus:")])
    gpu = observe(host.ports, ReadScope(types=True)).gpus[0]
    assert (gpu.has_fixed_placements, gpu.accepts_gpu_instances) == (form == "mdev-vf", form == "vendor-vf")
