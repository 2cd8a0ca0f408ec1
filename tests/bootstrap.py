#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Install the dependencies on a fresh Debian 12, and run the quickstart or the tests.

    python3 tests/bootstrap.py demo     the main job on a simulated host
    python3 tests/bootstrap.py test [--all]    lint, types, unit, simulator, SSH, Ansible and lab, in 40 minutes;
                                        --all: every fault point, the whole lab and the benchmarks too, in hours
    python3 tests/bootstrap.py docs     the documents as a site in docs/_build/html
    python3 tests/bootstrap.py venv     only the environments, in .venv, .venv-ansible and .venv-ansible-2.18, and
                                        Prometheus' programs in .venv-prometheus
    python3 tests/bootstrap.py versions the unit tests with the lowest versions that pyproject.toml allows, and the
                                        command line's with every minor release of click
    python3 tests/bootstrap.py packages [--try]    sdist, wheel and .deb in dist; --try: installed in bare roots

Needs git, python3 and root (for apt-get, and for the lab's chroots). It uses the distribution's own python3,
because libvirt's Python module comes from the distribution and always matches its libvirt.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
ANSIBLE_VENVS = {".venv-ansible": "requirements.txt", ".venv-ansible-2.18": "requirements-2.18.txt"}
LOWEST_VENV = ROOT / ".venv-lowest"
CLICKS_VENV = ROOT / ".venv-clicks"
PACKAGES_VENV = ROOT / ".venv-packages"
PROMETHEUS = ROOT / ".venv-prometheus"
PYTHON = "/usr/bin/python3"
IN_PARALLEL = ("-n", "2", "--dist", "worksteal")
PLACEMENT = "tests/bench/placement"
WAITING = ("-n", "4", "--dist", "worksteal")
"""For tests whose processes wait for each other most of the time: two at a time leave the CPUs idle."""
UNIT = ("tests/unit", "tests/contract", "tests/fuzz")
NOT_WITH_LOWEST = (
    # The types of the newest libraries are checked, and HiGHS 1.10 finds another one of two plans with as many moves.
    "tests/unit/test_structure.py::test_mypy_finds_nothing",
    "tests/unit/placement/test_moves.py::test_of_two_that_wait_for_each_other_one_leaves_first",
    # Authlib needs a newer cryptography than paramiko 2.12, so the extra oidc is not installed.
    "tests/unit/test_extras.py::test_uv_replaces_the_environment_so_its_other_extras_are_named_too",
    "tests/unit/test_documents.py::test_every_error_code_is_explained",
)
CLICKS = ("8.1.3", "8.2.1", "8.3.1", "8.4.0", "8.4.2", "8.5.1")
"""The lowest release of click, one of each minor release, and the one that pyproject.toml excludes: another program's
installation can bring it. The newest release is tried in addition."""
BASE_PACKAGES = ("python3-venv", "python3-libvirt")
DEV_PACKAGES = (*BASE_PACKAGES, "gcc", "libc6-dev", "python3-dev", "libldap2-dev", "libsasl2-dev")
"""What the extra dev needs: pip compiles python-ldap."""
PACKAGING_PACKAGES = ("lintian", "mmdebstrap", "git")
TEST_PACKAGES = (
    "libvirt0",
    "python3-apt",
    "acl",
    "curl",
    "qemu-guest-agent",
    "qemu-utils",
    "mdevctl",
    "git",
    "procps",
    "gcc",
    "libc6-dev",
    "make",
    "openssh-client",
    "openssh-server",
    "iproute2",
    "graphviz",
    "systemd",
    "postgresql",
    "chromium",
    "slapd",
)
LONG_TEST_PACKAGES = ("freerdp2-x11", "xvfb")
"""What only `test --all` needs: a client that logs on to desktops by RDP."""
NO_CLUSTER = Path("/etc/postgresql-common/createcluster.conf")
"""Debian's postgresql starts a cluster as a service unless this file says otherwise; the tests run one of their own."""
PROMETHEUS_PACKAGES = ("prometheus", "prometheus-alertmanager")
"""Only unpacked, into PROMETHEUS: installed, they would run as services on this machine, now and after each boot."""


def say(text: str) -> None:
    """Print a line immediately."""
    print(f"== {text}", flush=True)


def run(*argv: str | Path, env: dict[str, str] | None = None) -> int:
    """Run a command in the checkout and return its exit status."""
    return subprocess.run([str(a) for a in argv], cwd=ROOT, env=env, check=False).returncode


def must(*argv: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a command; if it fails, exit with a message that contains its exit status."""
    status = run(*argv, env=env)
    if status:
        sys.exit(f"bootstrap: {' '.join(str(a) for a in argv)} failed with exit status {status}")


def missing(packages: tuple[str, ...]) -> list[str]:
    """Return the packages that dpkg does not have installed."""
    output = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    installed = {line.split()[0] for line in output.splitlines() if line.endswith(" installed")}
    return [p for p in packages if p not in installed]


def install(packages: tuple[str, ...]) -> None:
    """Install Debian packages that are missing."""
    wanted = missing(packages)
    if not wanted:
        return
    if os.geteuid() != 0:
        sys.exit(f"bootstrap: run as root, or install first: apt-get install {' '.join(wanted)}")
    say(f"installing {' '.join(wanted)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    must("apt-get", "-q", "update", env=env)
    must("apt-get", "-q", "install", "-y", "--no-install-recommends", *wanted, env=env)


def keep_servers_off() -> None:
    """Have Debian's postgresql and slapd, where they are not installed yet, make nothing that runs after each boot."""
    if os.geteuid() == 0 and missing(("slapd",)):
        answer = b"slapd slapd/no_configuration boolean true\n"
        subprocess.run(["debconf-set-selections"], input=answer, check=True)
    if os.geteuid() == 0 and missing(("postgresql",)) and not NO_CLUSTER.exists():
        NO_CLUSTER.parent.mkdir(exist_ok=True)
        NO_CLUSTER.write_text("create_main_cluster = false\n")


def unpack_prometheus() -> None:
    """Unpack the Debian packages with Prometheus' programs, unless they are there.

    Debian's Alertmanager needs libc and its templates, which it opens by an absolute path.
    """
    if not all((PROMETHEUS / "usr/bin" / package).is_file() for package in PROMETHEUS_PACKAGES):
        _download_prometheus()
    folder = Path("/usr/share/prometheus/alertmanager")
    for template in sorted((PROMETHEUS / folder.relative_to("/")).glob("*.tmpl")):
        if os.geteuid() == 0 and not (folder / template.name).exists():
            must("install", "-D", "-m", "644", template, folder / template.name)


def _download_prometheus() -> None:
    say(f"unpacking {' and '.join(PROMETHEUS_PACKAGES)} in {PROMETHEUS.name}")
    if os.geteuid() == 0:
        must("apt-get", "-q", "update")
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["apt-get", "-q", "download", *PROMETHEUS_PACKAGES], cwd=directory, check=True)
        for package in sorted(Path(directory).glob("*.deb")):
            must("dpkg-deb", "--extract", package, PROMETHEUS)


def libvirt_modules() -> list[Path]:
    """Return the Python modules that the distribution's python3-libvirt package installed."""
    listed = subprocess.run(["dpkg", "-L", "python3-libvirt"], capture_output=True, text=True, check=True).stdout
    return [path for path in map(Path, listed.splitlines()) if path.parent.name == "dist-packages"]


def make_venv(extra: str) -> None:
    """Create .venv with vgpuctl in it, unless it exists already for this pyproject.toml.

    Only libvirt's module comes from the distribution. Other packages on the machine have no effect.
    """
    recipe = f"{extra}\n{(ROOT / 'pyproject.toml').read_text()}{ROOT}\n{libvirt_modules()}"
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    stamp = VENV / f"stamp-{extra or 'core'}"
    if stamp.is_file() and stamp.read_text() == digest:
        return
    say("making the Python environment in .venv")
    must(PYTHON, "-m", "venv", VENV)
    link_libvirt(VENV)
    target = f"{ROOT}[{extra}]" if extra else str(ROOT)
    must(VENV / "bin/pip", "install", "-q", "--disable-pip-version-check", "-e", target)
    stamp.write_text(digest)


def link_libvirt(venv: Path) -> None:
    """Give an environment the libvirt module of the distribution."""
    for module in libvirt_modules():
        link = next(venv.glob("lib/python3*/site-packages")) / module.name
        link.unlink(missing_ok=True)
        link.symlink_to(module)


def make_ansible_venvs() -> None:
    """Create an environment of the newest Ansible with its linters, and one of the oldest that the collection supports.

    They are separate because their versions must not affect vgpuctl's own environment.
    """
    for name, requirements in ANSIBLE_VENVS.items():
        make_venv_of(ROOT / name, ROOT / "tests/ansible" / requirements)


def make_venv_of(venv: Path, requirements: Path) -> None:
    """Create an environment with what a file of requirements names, unless it exists already for that file."""
    stamp = venv / "stamp"
    if stamp.is_file() and stamp.read_text() == requirements.read_text():
        return
    say(f"making the environment {venv.name}")
    must(PYTHON, "-m", "venv", venv)
    must(venv / "bin/pip", "install", "-q", "--disable-pip-version-check", "-r", requirements)
    stamp.write_text(requirements.read_text())


def demo() -> int:
    """Show plan, progress and result of the main job on a simulated A100."""
    install(BASE_PACKAGES)
    make_venv("")
    vgpuctl = VENV / "bin/vgpuctl"
    state = ROOT / ".venv/demo-state"
    env = {**os.environ, "XDG_STATE_HOME": str(state), "VGPUCTL_HOST": "sim:a100-40"}
    must(vgpuctl, "sim", "reset", "--yes", env=env)
    for words in (
        ["create-vm", "--profile", "A100-4C", "--dry-run"],
        ["create-vm", "--profile", "A100-4C"],
        ["list-gpus"],
        ["list-profiles"],
    ):
        say(f"vgpuctl {' '.join(words)}")
        must(vgpuctl, *words, env=env)
    say("type this next, in this directory; the simulated host keeps its VMs:")
    print(f"export VGPUCTL_HOST=sim:a100-40 XDG_STATE_HOME={shlex.quote(str(state))}")
    print(f"export PATH={shlex.quote(str(vgpuctl.parent))}:$PATH")
    print("vgpuctl list-vms")
    print("vgpuctl fits --profile A100-4C:3")
    print("vgpuctl create-vm vdi-002 --profile A100-4C")
    print("vgpuctl --help")
    return 0


def versions() -> int:
    """Run the unit tests with the lowest versions of all libraries, and the command line's with each click."""
    install(DEV_PACKAGES)
    results = {"the lowest versions": run_with_lowest()}
    make_venv("dev")
    for release in (*CLICKS, "newest"):
        results[f"click {release}"] = run_with_click(release)
    for name, status in results.items():
        say(f"{name}: {'passed' if status == 0 else f'FAILED ({status})'}")
    return max(results.values())


def run_with_click(release: str) -> int:
    """Run the command line's unit tests with one release of click, installed beside .venv's own."""
    target = CLICKS_VENV / release
    requirement = "click" if release == "newest" else f"click=={release}"
    pip = (VENV / "bin/pip", "install", "-q", "--disable-pip-version-check", "--upgrade", "--no-deps")
    must(*pip, "--target", target, requirement)
    say(f"the command line's tests with click {release}")
    environment = {**os.environ, "PYTHONPATH": str(target)}
    return run(VENV / "bin/python", "-m", "pytest", *IN_PARALLEL, "tests/unit/cli", env=environment)


def run_with_lowest() -> int:
    """Run the unit tests with the lowest versions that pyproject.toml allows, in an environment of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tools = [line for line in extras["dev"] + extras["docs"] if not line.startswith(("vgpuctl", "oidc-"))]
    tried = [names for extra, names in extras.items() if extra not in ("ldap", "oidc")]  # which no unit test loads
    lines = [line for names in (project["dependencies"], *tried) for line in names]
    matches = (re.match(r"([\w.-]+(?:\[\w+\])?)>=([\w.]+)", line) for line in lines)
    lowest = [f"{match[1]}=={match[2]}" for match in matches if match is not None]
    not_tried = {re.split("[>=]", line)[0] for line in tools} | {"libvirt-python"}
    pins = [pin for pin in lowest if pin.partition("==")[0] not in not_tried]
    say(f"making the environment {LOWEST_VENV.name} with {' '.join(pins)}")
    must(PYTHON, "-m", "venv", "--clear", LOWEST_VENV)
    link_libvirt(LOWEST_VENV)
    pip = (LOWEST_VENV / "bin/pip", "install", "-q", "--disable-pip-version-check")
    must(*pip, *pins, "cryptography<43", *tools)  # what paramiko 2.12 was built for
    must(*pip, "--no-deps", "-e", ROOT)
    deselected = [word for test in NOT_WITH_LOWEST for word in ("--deselect", test)]
    return run(LOWEST_VENV / "bin/python", "-m", "pytest", *IN_PARALLEL, *deselected, "tests/unit")


def packages() -> int:
    """Build the packages and check them; `--try` installs them in bare roots."""
    install(DEV_PACKAGES + PACKAGING_PACKAGES)
    make_venv("dev")
    make_venv_of(PACKAGES_VENV, ROOT / "tests/packaging/requirements.txt")
    return run(VENV / "bin/python", "-m", "tests.packaging", *sys.argv[2:])


def docs() -> int:
    """Build the documents as a site; any warning fails. Its search works offline."""
    install((*BASE_PACKAGES, "graphviz"))
    make_venv("docs")
    must(VENV / "bin/python", "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-j", "2", "docs", "docs/_build/html")
    say(f"built {ROOT / 'docs/_build/html/index.html'}")
    return 0


def phases(everything: bool) -> list[tuple[str, list[str]]]:
    """Return the test phases: name and pytest arguments."""
    on_lab = ["-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", "tests/lab"]
    every_change = [
        ("lint, types, unit, simulator", [*IN_PARALLEL, *UNIT]),
        ("agent, controller", [*WAITING, "tests/agent", "tests/controller"]),
        ("web page", ["-n", "2", "--dist", "loadfile", "tests/web"]),
        ("monitoring", ["-n", "2", "--dist", "loadfile", "tests/monitoring"]),
        ("other hosts", [*WAITING, "tests/remote"]),
        ("ansible", [*WAITING, "tests/ansible"]),
        ("lab", on_lab if everything else [*on_lab, "-m", "quick"]),
    ]
    for_hours = ("-o", "faulthandler_timeout=0")
    by_hand = [
        ("placement", [*for_hours, *IN_PARALLEL, PLACEMENT]),
        ("benchmarks", [*for_hours, "tests/bench", f"--ignore={PLACEMENT}"]),
    ]
    return every_change + (by_hand if everything else [])


def test() -> int:
    """Run all test phases, even after one has failed; with `--all` everything that has tests."""
    everything = "--all" in sys.argv[2:]
    if everything:
        os.environ["VGPUCTL_TESTS"] = "all"
    must(PYTHON, "-m", "tests.namespaces", "true")
    lab_packages = tuple((ROOT / "tests/lab/packages.txt").read_text().split())
    keep_servers_off()
    install(DEV_PACKAGES + TEST_PACKAGES + lab_packages + (LONG_TEST_PACKAGES if everything else ()))
    make_venv("dev")
    make_ansible_venvs()
    unpack_prometheus()
    failed = []
    for name, arguments in phases(everything):
        say(name)
        started = time.monotonic()
        status = run(PYTHON, "-m", "tests.namespaces", VENV / "bin/python", "-m", "pytest", *arguments)
        say(f"{name}: {'passed' if status == 0 else f'FAILED ({status})'} in {time.monotonic() - started:.0f} s")
        if status:
            failed.append(name)
    if failed:
        sys.exit(f"bootstrap: failed: {', '.join(failed)}")
    return 0


def environments() -> int:
    """Create the environments in which single parts of the tests run."""
    install(DEV_PACKAGES)
    make_venv("dev")
    make_ansible_venvs()
    unpack_prometheus()
    return 0


def main() -> int:
    """Run the action that the first argument names."""
    actions = {
        "demo": demo,
        "docs": docs,
        "test": test,
        "venv": environments,
        "versions": versions,
        "packages": packages,
    }
    options = {"packages": [["--try"]], "test": [["--all"]]}
    if len(sys.argv) < 2 or sys.argv[1] not in actions or sys.argv[2:] not in [[], *options.get(sys.argv[1], [])]:
        print(__doc__)
        return 2
    return actions[sys.argv[1]]()


if __name__ == "__main__":
    sys.exit(main())
