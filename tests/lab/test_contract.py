"""Runs the simulator's contract tests inside the lab, on the real kernel and libvirt."""

from __future__ import annotations

import pytest

from tests.lab.machine import Lab
from tests.lab.nvidia_host import put_nvml, put_sriov_manage
from tests.lab.vgpuctl_in import put_gpu
from tests.lab.volume_groups import put_volume_group


@pytest.mark.deadline(1000)
@pytest.mark.parametrize(
    "form",
    [
        "mdev-pf",
        "mdev-vf",
        pytest.param("vendor-vf", marks=pytest.mark.quick),
        "sriov-vf",
    ],
)
def test_the_real_host_keeps_the_simulators_contract(lab: Lab, form: str) -> None:
    if form == "sriov-vf":
        lab.run(["modprobe", "igb"])
    else:
        put_gpu(lab, form)
        put_nvml(lab)
        put_sriov_manage(lab)
    put_volume_group(lab)
    script = f"""cd /opt/vgpuctl/src && PYTHONPATH=/opt/vgpuctl/src:/opt/vgpuctl/lib VGPUCTL_CONTRACT={form} \
        python3 -m pytest -q -p no:cacheprovider tests/contract 2>&1"""
    result = lab.run(script, check=False, timeout=900)
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout
