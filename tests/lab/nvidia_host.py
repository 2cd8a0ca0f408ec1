"""What NVIDIA's vGPU host driver brings beside its module: sriov-manage, and an NVML that holds the driver."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import IGB
from tests.unit.host.test_nvml import LIBRARY
from tests.unit.host.test_vendor import HOLDING, INIT, SHUTDOWN

SRIOV_MANAGE = Path(__file__).parent / "vendor" / "sriov-manage"
NODE = "/dev/nvidiactl"
LOG = "/run/sriov-manage.log"
NVML_LOG = "/run/nvml.log"
KNOWN = ("3B:00.0", f"{IGB[5:].upper()}")


def put_sriov_manage(lab: Lab) -> None:
    """Installs the stand-in at its usual place."""
    lab.push(SRIOV_MANAGE, "/usr/lib/nvidia")


def put_nvml(lab: Lab) -> None:
    """Installs an NVML for the first card, which has the driver's node open from init to shutdown."""
    top, init, shutdown = HOLDING
    text = top + LIBRARY.replace(INIT, init).replace(SHUTDOWN, shutdown).replace(*KNOWN)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "nvml.c").write_text(text)
        known = [f'-DLOG="{NVML_LOG}"', f'-DNODE="{NODE}"', '-DDRIVER="550.144.02"', "-DINIT=0"]
        made = directory / "libnvidia-ml.so.1"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, "nvml.c", *known], cwd=directory, check=True)
        lab.push(made, "/usr/lib/x86_64-linux-gnu")
    lab.run(f"ldconfig; mknod -m 0666 {NODE} c 1 3")


def heard(lab: Lab) -> list[str]:
    """What the stand-in wrote down: each run, and who held the driver then."""
    return lab.run(f"cat {LOG}", check=False).stdout.splitlines()
