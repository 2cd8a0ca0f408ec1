"""Boots L2 once, waits until its boot is complete, and saves it with its memory. Every later start takes seconds.

The snapshot is inside an overlay disk, which holds only the differences from the image. A Lab copies that disk,
not the image.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from tests.lab import cache, recipe
from tests.lab.build import Built
from tests.lab.machine import Lab

TAG = "base"


def snapshot(built: Built, flavour: str) -> Path:
    """Return the disk with the snapshot; boot L2 now and create it if the cache has none."""
    words = (*recipe.machine_arguments(), *recipe.device_arguments(), recipe.kernel_command_line(flavour))
    name = recipe.key(built.image.name, built.tools.name, words, flavour)
    root = cache.cache_dir()
    with cache.build_lock(root):
        make = partial(_boot_and_save, built=built, flavour=flavour)
        place = cache.stage(root, f"snapshot-{flavour}", name, make)
    return place / "disk.qcow2"


def _boot_and_save(place: Path, built: Built, flavour: str) -> None:
    lab = Lab(built, flavour=flavour)
    try:
        lab.start()
        lab.run((recipe.FILES / "prepare.sh").read_text(), timeout=300)
        lab.save(TAG)
        lab.shut()
        shutil.move(lab.work / "disk.qcow2", place / "disk.qcow2")
        shutil.move(lab.work / "console.log", place / "console.log")
    finally:
        lab.stop()
