"""What NVIDIA's vGPU host driver brings beside its module: sriov-manage, nvidia-smi, and libnvidia-ml."""

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
"""The build without the newer calls, and the option that gives the module its version."""


def put_sriov_manage(lab: Lab) -> None:
    """Installs the stand-in at its usual place."""
    lab.push(SRIOV_MANAGE, "/usr/lib/nvidia")


def put_nvidia_smi(lab: Lab) -> None:
    """Installs the stand-in at its usual place; it resets GPUs and nothing else."""
    lab.push(NVIDIA_SMI, "/usr/bin")


def put_nvml(lab: Lab, build: str = "new") -> None:
    """Installs the library of tests/lab/nvml, in one of its builds."""
    with tempfile.TemporaryDirectory() as place:
        run(["make", "-s", "-C", HERE / "nvml", f"OUT={place}", f"BUILD={build}"], deadline_seconds=120)
        lab.push(Path(place) / LIBRARY, LIBRARIES)
    lab.run("ldconfig")


def drop_nvml(lab: Lab) -> None:
    """Removes the library: a host whose driver came without it."""
    lab.run(f"rm {LIBRARIES}/{LIBRARY}; ldconfig")


def nvml_opens(lab: Lab) -> int:
    """How often anybody began to ask NVML since the module was loaded."""
    return int(lab.read("/sys/module/vgpulab/parameters/nvml_opens"))


def heard(lab: Lab) -> list[str]:
    """What the stand-in wrote down: each run, and who held the driver then."""
    return lab.run(f"cat {LOG}", check=False).stdout.splitlines()
