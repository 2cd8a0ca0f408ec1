# SPDX-License-Identifier: Apache-2.0
"""Where vGPUs are is read of VFs and mdevs alike; a driver without the file leaves it unknown."""

from __future__ import annotations

import pytest

from tests.worlds import open_host
from vgpuctl.engine.observe import Want, observe

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
def test_the_places_of_what_somebody_else_made_are_seen(tmp_path, form, driver, wanted):
    host = open_host(tmp_path, text=TEXT.format(kernel=KERNELS[form], driver=driver))
    look = observe(host.world, Want(types=True))
    assert look.gpus[0].backend == form
    assert [v.placement_id for v in look.vgpus] == wanted
    assert (look.gpus[0].fixed_places, look.gpus[0].chooses_places) == (wanted[0] is None, wanted[0] is not None)


@pytest.mark.parametrize("form", KERNELS)
def test_with_one_size_no_place_is_told(tmp_path, form):
    text = TEXT.format(kernel=KERNELS[form], driver="590.48.01").replace(
        "mixed_size: true", "vfs: {total: 4, enabled: 4}"
    )
    host = open_host(tmp_path, text=text.replace("A100-20C", "A100-8C"))
    look = observe(host.world, Want(types=True))
    assert [v.placement_id for v in look.vgpus] == [None, None]
    assert not look.gpus[0].fixed_places
