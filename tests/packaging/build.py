# SPDX-License-Identifier: Apache-2.0
"""Builds the sdist, the wheel and the Debian package from the checkout; the same commit gives the same bytes.

Every time in them is that of the last commit (SOURCE_DATE_EPOCH), every owner root, and every mode 0644 or 0755. What
the checkout does not have, the manual pages, is made first, so the wheel and the sdist have it too.

The Debian package is one tree for Debian 12 and 13, packed by dpkg-deb; debhelper would build one for each Python. Its
directory /usr/lib/vgpuctl is a virtual environment on the distribution's Python and libraries, with links for each
Python that may come with an upgrade of the distribution. It holds vgpuctl and what Debian lacks or has too old
(bundled.txt): no other program sees it, and install-host writes hook and unit for its Python as for any other.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.packaging import man_pages
from vgpuctl import extras
from vgpuctl.cli import command, shells
from vgpuctl.model import agent_service, controller_service
from vgpuctl.operations.plans import installation
from vgpuctl.operations.service_installation import SERVICES
from vgpuctl.version import __version__

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = Path(__file__).with_name("debian")
BUNDLED = Path(__file__).with_name("bundled.txt")
PAGE_FILES = ("web.css", "live.js", "console.js", "novnc/core/rfb.js", "novnc/LICENSE.txt")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Debian 12 has 3.11, Debian 13 has 3.13."""
MAINTAINER = "The vgpuctl project <vgpuctl@vgpuctl.example>"
"""DEBFULLNAME and DEBEMAIL replace it, as for Debian's own tools."""
PROGRAM = f"""\
#!{extras.PACKAGE_PYTHON} -I
# SPDX-License-Identifier: Apache-2.0
import sys

from vgpuctl.__main__ import main

sys.exit(main())
"""
DEPENDS = (
    "passwd", "python3 (>= 3.11)", "python3-click (>= 8.1.3)", "python3-jinja2 (>= 3.1.2)", "python3-libvirt",
    "python3-lxml (>= 4.9.2)", "python3-pycdlib",
)  # fmt: skip
RECOMMENDS = (
    "libvirt-daemon-system", "ovmf", "python3-paramiko (>= 2.12)", "python3-starlette (>= 0.26)",
    "python3-uvicorn (>= 0.17.1)", "python3-wsproto (>= 1.2)", "qemu-system-x86", "qemu-utils",
)  # fmt: skip
CONTROL = """\
Package: vgpuctl
Version: {version}
Architecture: all
Maintainer: {maintainer}
Installed-Size: {size_kib}
Section: admin
Priority: optional
Depends: {depends}
Recommends: {recommends}
Suggests: ansible-core (>= 2.18), mdevctl, python3-alembic (>= 1.13), python3-argon2, python3-highspy,
 python3-ldap (>= 3.4), python3-psycopg (>= 3.1), python3-sqlalchemy (>= 2.0)
Description: Give virtual machines on libvirt/KVM hosts a slice of a GPU
 vgpuctl gives virtual machines a slice of a GPU, or a whole GPU. One command
 chooses the GPU, creates the vGPU, the disk and the VM, and undoes everything
 if a step fails.
 .
 It handles mediated devices (mdev) of any maker, NVIDIA's vendor-specific
 VFIO, plain SR-IOV virtual functions and whole GPUs. A boot unit and a hook of
 libvirt create the vGPUs again that a reboot of the host takes away. A host
 agent, off until it is enabled, serves users of two groups without root. A
 controller, off as well, keeps pools of desktops on many hosts.
 .
 The Ansible collection vgpuctl.vgpuctl is in /usr/share/ansible/collections.
"""


def commit_epoch() -> int:
    """Return the time of the last commit."""
    return int(_output("git", "log", "-1", "--format=%ct"))


def build(out: Path) -> list[Path]:
    """Build all packages into a directory and return their paths."""
    epoch = commit_epoch()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        _export(tree)
        for name, text in man_pages.render_pages(epoch).items():
            _write(tree / "man" / name, text)
        with (tree / "pyproject.toml").open("a") as project:
            project.write('\n[tool.hatch.build.targets.wheel.shared-data]\n"man" = "share/man/man1"\n')
        _set_times(tree, epoch)
        built = _build_python_packages(tree, out, epoch)
        wheel = next(path for path in built if path.suffix == ".whl")
        return [*built, _build_deb(wheel, tree, Path(temporary) / "deb", out, epoch)]


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _run(*command: str | Path, epoch: int, cwd: Path | None = None) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    subprocess.run([str(word) for word in command], check=True, env=environment, cwd=cwd, capture_output=True)


def _export(tree: Path) -> None:
    """Copy what git knows of the checkout, as it is now."""
    for name in _output("git", "ls-files", "-z").split("\0"):
        source = ROOT / name
        if name and source.is_file():
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target, follow_symlinks=False)
            if not target.is_symlink():
                target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def _build_python_packages(tree: Path, out: Path, epoch: int) -> list[Path]:
    with tempfile.TemporaryDirectory() as built:
        command = (sys.executable, "-m", "hatchling", "build", "--directory", built, "-t", "sdist", "-t", "wheel")
        _run(*command, epoch=epoch, cwd=tree)
        return [Path(shutil.copy(path, out / path.name)) for path in sorted(Path(built).iterdir())]


def _build_deb(wheel: Path, tree: Path, stage: Path, out: Path, epoch: int) -> Path:
    version = f"{__version__}-1"
    _stage_environment(wheel, stage, epoch)
    _stage_files(tree, stage, version, epoch)
    sums = [f"{_output('md5sum', str(path)).split()[0]}  {path.relative_to(stage)}\n" for path in _files(stage)]
    size_kib = sum(-(-path.lstat().st_size // 1024) for path in stage.rglob("*") if not path.is_dir())
    control = stage / "DEBIAN"
    running = (DEBIAN / "running.sh").read_text()
    for name in ("preinst", "postinst", "prerm", "postrm"):
        _write(control / name, (DEBIAN / name).read_text().replace("#RUNNING#\n", running), 0o755)
    text = CONTROL.format(
        version=version,
        maintainer=_maintainer(),
        size_kib=size_kib,
        depends=", ".join(DEPENDS),
        recommends=", ".join(RECOMMENDS),
    )
    _write(control / "control", text)
    _write(control / "md5sums", "".join(sums))
    for path in [stage, *stage.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    _set_times(stage, epoch)
    target = out / f"vgpuctl_{version}_all.deb"
    _run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", stage, target, epoch=epoch)
    return target


def _files(stage: Path) -> list[Path]:
    return [path for path in sorted(stage.rglob("*")) if path.is_file() and not path.is_symlink()]


def _maintainer() -> str:
    name, mail = os.environ.get("DEBFULLNAME"), os.environ.get("DEBEMAIL")
    return f"{name} <{mail}>" if name and mail else MAINTAINER


def _stage_environment(wheel: Path, stage: Path, epoch: int) -> None:
    """Make the private environment: vgpuctl's package, and the libraries that Debian lacks."""
    prefix = stage / extras.PACKAGE_PREFIX[1:]
    packages = prefix / "lib/python3/site-packages"
    packages.mkdir(parents=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
    ]
    _run(*pip, "--require-hashes", "--only-binary=:all:", "--target", packages, "-r", BUNDLED, epoch=epoch)
    (packages / "example.py").unlink()  # of nvidia-ml-py
    with zipfile.ZipFile(wheel) as archive:
        own = [name for name in archive.namelist() if ".data/" not in name]
        archive.extractall(packages, own)
    for path in _files(packages):
        path.chmod(0o644)
        if path.parent.suffix == ".dist-info" and path.name not in ("METADATA", "entry_points.txt"):
            path.unlink()
    for directory in packages.rglob("licenses"):
        shutil.rmtree(directory)
    _write(packages / "local-libraries.pth", f"{extras.LOCAL_LIBRARIES}\n")
    _write(prefix / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = true\n")
    (prefix / "bin").mkdir()
    (prefix / "bin/python3").symlink_to("../../../bin/python3")
    for version in PYTHONS:
        (prefix / f"lib/python{version}").symlink_to("python3")


def _stage_files(tree: Path, stage: Path, version: str, epoch: int) -> None:
    _write(stage / "usr/bin/vgpuctl", PROGRAM, 0o755)
    _write(stage / installation.PACKAGE_UNIT_PATH[1:], installation.unit_text(extras.PACKAGE_PYTHON))
    for unit in (unit for service in SERVICES for unit in service.units):
        _write(stage / unit.package_path[1:], unit.text(extras.PACKAGE_PYTHON))
    groups = "".join(f"g {name} - -\n" for name in agent_service.GROUPS)
    user = f"u {controller_service.ACCOUNT} - - {controller_service.STATE_DIRECTORY}\n"
    texts = f"# Those who may use vgpuctl's host agent\n{groups}# Who runs a controller of pools\n{user}"
    _write(stage / "usr/lib/sysusers.d/vgpuctl.conf", texts)
    for shell, ((directory, name), *_) in installation.COMPLETION_DIRECTORIES.items():
        script = shells.script(command.cli, shell, command.PROGRAM, command.COMPLETE_VARIABLE)
        _write(stage / directory[1:] / name, f"{script.rstrip()}\n")
    for directory in ("etc/vgpuctl", "etc/libvirt/hooks/qemu.d"):
        (stage / directory).mkdir(parents=True)
    _write(stage / "usr/share/python3/runtime.d/vgpuctl.rtupdate", (DEBIAN / "rtupdate").read_text(), 0o755)
    for page in (tree / "man").iterdir():
        _write_compressed(stage / "usr/share/man/man1" / f"{page.name}.gz", page.read_bytes())
    documents = stage / "usr/share/doc/vgpuctl"
    _write(documents / "copyright", (DEBIAN / "copyright").read_text())
    date = _output("date", "--utc", "--date", f"@{epoch}", "-R").strip()
    entry = f"vgpuctl ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- {_maintainer()}  {date}\n"
    _write_compressed(documents / "changelog.Debian.gz", entry.encode())
    _write_compressed(documents / "changelog.gz", (tree / "CHANGELOG.md").read_bytes())
    for source in _files(tree / "docs"):
        if source.suffix in (".md", ".json", ".svg"):
            _write(documents / source.relative_to(tree), source.read_text())
    collection = Path("ansible_collections/vgpuctl/vgpuctl")
    for source in _files(tree / "ansible" / collection):
        name = source.relative_to(tree / "ansible")
        if not name.is_relative_to(collection / "tests"):
            _write(stage / "usr/share/ansible/collections" / name, source.read_text())
    for source in (tree / "ansible/inventory.example.yml", *_files(tree / "ansible/playbooks")):
        _write(documents / "examples/ansible" / source.relative_to(tree / "ansible"), source.read_text())
    overrides = DEBIAN / "lintian-overrides"
    _write(stage / "usr/share/lintian/overrides/vgpuctl", overrides.read_text())


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def _write_compressed(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 9, mtime=0))
    path.chmod(0o644)


def _set_times(tree: Path, epoch: int) -> None:
    for path in [tree, *tree.rglob("*")]:
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def list_differences(one: Path, other: Path) -> list[str]:
    """Return the names of the files in which two builds differ."""
    names = sorted({path.name for directory in (one, other) for path in directory.iterdir()})
    return [name for name in names if _bytes(one / name) != _bytes(other / name)]


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def check_contents(packages: list[Path]) -> None:
    """Check that each package has what its users need.

    Raises:
        RuntimeError: something is missing; the text names it.
    """
    sdist = next(path for path in packages if path.name.endswith(".tar.gz"))
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wheel = next(path for path in packages if path.suffix == ".whl")
    with zipfile.ZipFile(wheel) as wheel_file:
        wheel_names = set(wheel_file.namelist())
    data = f"vgpuctl-{__version__}.data/data/share/man/man1/vgpuctl.1"
    wanted = {"LICENSE", "README.md", "CHANGELOG.md", "docs/index.md", "tests/bootstrap.py", "man/vgpuctl.1"} - names
    templates = {f"vgpuctl/_templates/{name}" for name in ("vm.xml.j2", "monitoring/rules.yml.j2", "guest/setup.sh.j2")}
    page = {
        "vgpuctl/_templates/web/page.html",
        *(
            f"vgpuctl/controller/web/static/{name}"
            for name in ("web.css", "live.js", "console.js", "novnc/core/rfb.js", "novnc/LICENSE.txt")
        ),
    }
    wanted |= {"vgpuctl/py.typed", data, *templates, *page} - wheel_names
    if wanted:
        raise RuntimeError(f"the packages lack {', '.join(sorted(wanted))}")
