# SPDX-License-Identifier: Apache-2.0
"""Placements of vGPUs are read from VFs and mdevs; without the driver's file they are unknown."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from vgpuctl.observe import ReadScope, observe

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
