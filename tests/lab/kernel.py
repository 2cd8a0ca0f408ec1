"""The kernel of L2 and its modules: those from Debian's package, and those built here against its headers.

The compiler is in the tools tree, so L2's image has none. If a module does not compile, the lab's build fails
and shows the compiler's output.
"""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

from tests.lab import recipe
from tests.lab.command import run
from tests.lab.errors import LabError
from tests.lab.tools_tree import inside, program, workshop

SAMPLES = ("mtty", "mdpy", "mbochs")
# Debian's kernel has no IOMMUFD. Therefore its VFIO has only a stub of the bitmap in which a device reports the pages
# that it wrote, and QEMU cannot migrate a device that makes such reports. This VFIO differs from Debian's only in that.
VFIO = """ccflags-y += -DCONFIG_IOMMUFD_DRIVER=1
obj-m := vfio.o vfio_iommu_type1.o pci/ mdev/
vfio-y := vfio_main.o group.o container.o virqfd.o iova_bitmap.o
"""


def version(tools: Path) -> str:
    """Return the version of the only kernel in the tools tree."""
    return next((tools / "kernel/usr/lib/modules").iterdir()).name


def image(tools: Path) -> Path:
    """Return the path of the compressed kernel."""
    return tools / "kernel/boot" / f"vmlinuz-{version(tools)}"


def module_directories() -> list[Path]:
    """Return the sources of the lab's own modules: each directory with a Makefile under module/ is one."""
    return sorted(path.parent for path in recipe.MODULE_SOURCES.rglob("Makefile"))


def make_modules(place: Path, tools: Path) -> None:
    """Build the kernel's mdev samples and the lab's own modules into `place`."""
    with workshop(tools) as work:
        samples = work / "samples"
        shutil.copytree(tools / "kernel/vfio-mdev", samples)
        objects = " ".join(f"{name}.o" for name in SAMPLES)
        (samples / "Makefile").write_text(f"obj-m := {objects}\n")
        _kbuild(tools, work, samples, place)
        for source in module_directories():
            copy = work / source.name
            for path in recipe.module_sources(source):
                target = copy / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
            _kbuild(tools, work, copy, place)


def make_vfio(place: Path, tools: Path) -> None:
    """Build the kernel's own VFIO modules, with the bitmap of written pages, into `place`."""
    with workshop(tools) as work:
        source = work / "vfio"
        shutil.copytree(tools / "kernel/vfio", source)
        (source / "Makefile").write_text(VFIO)
        _kbuild(tools, work, source, place)


def _kbuild(tools: Path, work: Path, source: Path, place: Path) -> None:
    build = f"/usr/lib/modules/{version(tools)}/build"
    inside(tools, work, ["make", "-j2", "-C", build, f"M=/{source.relative_to(tools)}", "modules"])
    built = sorted(source.rglob("*.ko"))
    if not built:
        raise LabError(f"the module build of {source.name} made no .ko file")
    for module in built:
        shutil.copy(module, place / module.name)


def install_modules(root: Path, tools: Path, extra: Path) -> None:
    """Copy all modules of the kernel package and those in `extra` into a root tree, and run depmod."""
    release = version(tools)
    target = root / "usr/lib/modules" / release
    target.parent.mkdir(parents=True, exist_ok=True)
    run(["cp", "-a", tools / "kernel/usr/lib/modules" / release, target], deadline_seconds=60)
    (target / "updates").mkdir()
    for module in sorted(extra.glob("*.ko")):
        shutil.copy(module, target / "updates" / module.name)
    run([*program(tools, "usr/sbin/depmod"), "-b", str(root), release], deadline_seconds=60)


def with_dependencies(tree: Path, names: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """Return modules in loading order, uncompressed; `tree` is a module directory with modules.dep."""
    lines = (line.split(":") for line in (tree / "modules.dep").read_text().splitlines())
    dependencies = {_name(path): (path, rest.split()) for path, rest in lines}
    order: dict[str, str] = {}

    def visit(name: str) -> None:
        path, required = dependencies[name]
        for other in reversed(required):
            order.setdefault(_name(other), other)
        order.setdefault(name, path)

    for name in names:
        if name in dependencies:
            visit(name)
    return [(f"{name}.ko", _unpacked(tree / path)) for name, path in order.items()]


def _name(path: str) -> str:
    return Path(path).name.split(".")[0].replace("-", "_")


def _unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content
