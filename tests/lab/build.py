"""Builds the lab stage by stage. The cache stores each stage under the hash of its inputs.

A stage depends only on the stages that it uses. A change of the test module therefore rebuilds the modules, the
image (seconds) and the snapshot, but no Debian tree.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.lab import cache, desktop, image, kernel, recipe, trees
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
    """The names (hashes) of all stages of the current recipe."""

    tools: str
    root: str
    pylib: str
    modules: str
    vfio: str
    image: str
    directory: str
    desktop: str


@dataclass(frozen=True)
class Built:
    """The directories that a Lab needs to start."""

    tools: Path
    image: Path


def plan() -> Plan:
    """Compute the hashes; build nothing."""
    here = recipe.HERE
    tools = recipe.key(recipe.SUITE, recipe.TOOLS_PACKAGES, trees.HOOKS, trees.TRIM)
    root = recipe.key(recipe.SUITE, recipe.HOST_PACKAGES, trees.TRIM)
    requirements = (recipe.PYTHON_VERSION, *recipe.PYTHON_PLATFORMS, *recipe.PYTHON_REQUIREMENTS)
    pylib = recipe.key(tools, requirements)
    modules = recipe.key(tools, kernel.SAMPLES, *recipe.module_sources(recipe.MODULE_SOURCES))
    vfio = recipe.key(tools, kernel.VFIO)
    python = (here / name for name in ("image.py", "guest.py", "kernel.py", "cpio.py", "tools_tree.py"))
    image_words = (
        *recipe.INITRD_MODULES,
        *recipe.GUEST_MODULES,
        *recipe.DRAWING_MODULES,
        recipe.DRAWING.read_text(),
        recipe.HOST_NAME,
        str(recipe.DISK_MIB),
    )
    files = recipe.sources_under(recipe.FILES)
    image_key = recipe.key(tools, root, pylib, modules, vfio, *files, *python, image_words)
    directory = recipe.key(recipe.SUITE, recipe.DIRECTORY_PACKAGES, trees.TRIM)
    python = (here / name for name in ("desktop.py", "image.py", "guest.py", "kernel.py", "cpio.py", "tools_tree.py"))
    packages = (*recipe.DESKTOP_PACKAGES, *trees.TRIM)
    session = recipe.FILES / "host/etc/pam.d/vgpulab-session"
    desktop_key = recipe.key(tools, modules, packages, desktop.HELPER, session, *python)
    return Plan(tools, root, pylib, modules, vfio, image_key, directory, desktop_key)


def check_programs() -> None:
    """Raise a LabError that lists the missing packages, so that no build fails halfway with a traceback."""
    missing = sorted({package for name, package in NEEDED_PROGRAMS.items() if shutil.which(name) is None})
    if missing:
        line = f"apt-get install --no-install-recommends {' '.join(missing)}"
        raise LabError(f"the lab needs more programs: {line}")
    if os.geteuid() != 0:
        raise LabError("building the lab needs root (mmdebstrap, chroot, file owners in an image)")


def build() -> Built:
    """Build everything except the snapshots; a second call takes all of it from the cache."""
    root = cache.cache_dir()
    names = plan()
    with cache.build_lock(root):
        image_dir = root / f"image-{names.image}"
        tools_dir = root / f"tools-{names.tools}"
        if image_dir.is_dir() and tools_dir.is_dir():
            return Built(tools_dir, image_dir)
        check_programs()
        # Build two trees in parallel: unpacking packages uses only one CPU.
        with ThreadPoolExecutor(1) as executor:
            root_future = executor.submit(cache.stage, root, "root", names.root, trees.make_host_root)
            tools = cache.stage(root, "tools", names.tools, trees.make_tools)
            modules = cache.stage(root, "modules", names.modules, partial(kernel.make_modules, tools=tools))
            vfio = cache.stage(root, "vfio", names.vfio, partial(kernel.make_vfio, tools=tools))
            host_root = root_future.result()
        pylib = cache.stage(root, "pylib", names.pylib, partial(image.make_pylib, tools=tools))
        make = partial(image.make_image, tools=tools, host_root=host_root, modules=modules, vfio=vfio, pylib=pylib)
        built_image = cache.stage(root, "image", names.image, make)
        others = {root / f"directory-{names.directory}", root / f"desktop-{names.desktop}"}
        cache.drop_older(root, {tools, modules, vfio, host_root, pylib, built_image, *others})
        return Built(tools, built_image)


def build_directory() -> Path:
    """Build the tree with Samba, which L2 does not need."""
    root = cache.cache_dir()
    with cache.build_lock(root):
        return cache.stage(root, "directory", plan().directory, trees.make_directory)


def build_desktop(built: Built) -> Path:
    """Build the disk with the image of a desktop, for a lab that was built."""
    root = cache.cache_dir()
    names = plan()
    with cache.build_lock(root):
        make = partial(desktop.make_desktop, tools=built.tools, modules=root / f"modules-{names.modules}")
        return cache.stage(root, "desktop", names.desktop, make) / "desktop.raw"
