# SPDX-License-Identifier: Apache-2.0
"""A simulated host that is full: 16 GPUs with 32 vGPUs each, every one in a running VM."""

from __future__ import annotations

from pathlib import Path

GPUS, VGPUS_EACH = 16, 32
VMS = GPUS * VGPUS_EACH
_HEAD = """\
version: 1
title: 16 GPUs with 32 vGPUs each
kernel: 5.14.0-427.el9_4.x86_64
gpus:
"""


def write_scenario(directory: Path) -> str:
    """Write the host's scenario into a directory; return the name with which it is opened."""
    lines = []
    for gpu in range(GPUS):
        lines += ["  - model: A40", "    vgpus:"]
        lines += [f"      - {{profile: A40-1Q, vm: vm-{gpu:02}-{number:02}}}" for number in range(VGPUS_EACH)]
    path = directory / "full.yaml"
    path.write_text(_HEAD + "\n".join(lines) + "\n")
    return f"sim:{path}"
