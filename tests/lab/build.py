"""Makes the lab, stage by stage, each cached under the hash of what decides it.

A stage depends only on the stages it really uses, so a change of the test module rebuilds the modules, the
image (seconds) and the snapshot, and never a Debian tree.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.lab import cache, image, kernel, recipe, trees
from tests.lab.errors import LabError

NEEDED_PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "apt-get": "apt",
    "tar": "tar",
    "xz": "xz-utils",
}


@dataclass(frozen=True)
class Plan:
    """The names of all stages of the present recipe."""

    tools: str
    root: str
    pylib: str
    modules: str
    image: str


@dataclass(frozen=True)
class Built:
    """The directories a Lab starts from."""

    tools: Path
    image: Path


def plan() -> Plan:
    """Hashes only; builds nothing."""
    here = recipe.HERE
    tools = recipe.key(recipe.SUITE, recipe.TOOLS_PACKAGES, trees.HOOKS, trees.TRIM)
    root = recipe.key(recipe.SUITE, recipe.HOST_PACKAGES, trees.TRIM)
    wanted = (recipe.PYTHON_VERSION, *recipe.PYTHON_PLATFORMS, *recipe.PYTHON_REQUIREMENTS)
    pylib = recipe.key(tools, wanted)
    modules = recipe.key(tools, kernel.SAMPLES, *recipe.module_sources(recipe.MODULE_SOURCES))
    python = (here / name for name in ("image.py", "guest.py", "kernel.py", "cpio.py", "foreign.py"))
    image_words = (*recipe.INITRD_MODULES, *recipe.GUEST_MODULES, recipe.HOST_NAME, str(recipe.DISK_MIB))
    files = recipe.sources_under(recipe.FILES)
    whole = recipe.key(tools, root, pylib, modules, *files, *python, image_words)
    return Plan(tools, root, pylib, modules, whole)


def check_programs() -> None:
    """One clear line instead of a traceback from the middle of a build."""
    missing = sorted({package for name, package in NEEDED_PROGRAMS.items() if shutil.which(name) is None})
    if missing:
        line = f"apt-get install --no-install-recommends {' '.join(missing)}"
        raise LabError(f"the lab needs more programs: {line}")
    if os.geteuid() != 0:
        raise LabError("building the lab needs root (mmdebstrap, chroot, file owners in an image)")


def build() -> Built:
    """Everything but the snapshots; a second call finds it all in the cache."""
    root = cache.cache_dir()
    names = plan()
    with cache.build_lock(root):
        done = root / f"image-{names.image}"
        tools_done = root / f"tools-{names.tools}"
        if done.is_dir() and tools_done.is_dir():
            return Built(tools_done, done)
        check_programs()
        # Two trees at a time: unpacking packages keeps one CPU busy, not two.
        with ThreadPoolExecutor(1) as beside:
            making_root = beside.submit(cache.stage, root, "root", names.root, trees.make_host_root)
            tools = cache.stage(root, "tools", names.tools, trees.make_tools)
            modules = cache.stage(root, "modules", names.modules, partial(kernel.make_modules, tools=tools))
            host_root = making_root.result()
        pylib = cache.stage(root, "pylib", names.pylib, partial(image.make_pylib, tools=tools))
        make = partial(image.make_image, tools=tools, host_root=host_root, modules=modules, pylib=pylib)
        made = cache.stage(root, "image", names.image, make)
        cache.drop_older(root, {tools, modules, host_root, pylib, made})
        return Built(tools, made)
