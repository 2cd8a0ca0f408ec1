"""The other parts of NVIDIA's vGPU host driver, without its kernel module: sriov-manage, nvidia-smi, libnvidia-ml."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.lab.command import run
from tests.lab.machine import Lab

HERE = Path(__file__).parent
SRIOV_MANAGE = HERE / "vendor" / "sriov-manage"
NVIDIA_SMI = HERE / "vendor" / "nvidia-smi"
NODE = "/dev/nvidiactl"
LOG = "/run/sriov-manage.log"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
LIBRARY = "libnvidia-ml.so.1"
OLD = ("old", "driver=550.144.02")
"""The library build without the newer NVML calls, and the module option that sets the matching driver version."""


def put_sriov_manage(lab: Lab) -> None:
    """Install the stand-in for sriov-manage at its usual path."""
    lab.push(SRIOV_MANAGE, "/usr/lib/nvidia")


def put_nvidia_smi(lab: Lab) -> None:
    """Install the stand-in for nvidia-smi at its usual path; it can only reset GPUs."""
    lab.push(NVIDIA_SMI, "/usr/bin")


def put_nvml(lab: Lab, build: str = "new") -> None:
    """Install one build of the library in tests/lab/nvml."""
    with tempfile.TemporaryDirectory() as place:
        run(["make", "-s", "-C", HERE / "nvml", f"OUT={place}", f"BUILD={build}"], deadline_seconds=120)
        lab.push(Path(place) / LIBRARY, LIBRARIES)
    lab.run("ldconfig")


def drop_nvml(lab: Lab) -> None:
    """Remove the library, as on a host with a driver that lacks it."""
    lab.run(f"rm {LIBRARIES}/{LIBRARY}; ldconfig")


def nvml_opens(lab: Lab) -> int:
    """Return how often a process has opened NVML since the module was loaded."""
    return int(lab.read("/sys/module/vgpulab/parameters/nvml_opens"))


def heard(lab: Lab) -> list[str]:
    """Return the log of the sriov-manage stand-in: each run, and which processes had the driver open."""
    return lab.run(f"cat {LOG}", check=False).stdout.splitlines()
