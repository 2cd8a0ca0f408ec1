# SPDX-License-Identifier: Apache-2.0
"""Installs the packages in bare roots of Debian 12 and 13: first time, over version 0.2.0's files, upgrade, removal.

A root is made by mmdebstrap once and kept in ~/.cache/vgpuctl-packages. It has Python and no compiler. Neither
libvirtd nor systemd runs in it; tests/lab has a host where they do.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.packaging.build import ROOT
from vgpuctl.operations.plans.agent_units import AGENT_UNITS
from vgpuctl.operations.plans.controller_unit import CONTROLLER_UNITS
from vgpuctl.operations.plans.installation import HOOK_PATH, UNIT_PATH, UNIT_WANTS_LINK
from vgpuctl.remote import bootstrap, bootstrap_script
from vgpuctl.version import __version__

SUITES = {"bookworm": ("Debian 12", "3.11"), "trixie": ("Debian 13", "3.13")}
CACHE = Path.home() / ".cache/vgpuctl-packages"
OLD_FILES = ROOT / "tests/unit/disk_state/v0.2.0/vendor-vf/etc"
OLD_PYTHON = "/opt/vgpuctl/bin/python"
APT = "DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0"
INSTALL = f"{APT} install --no-install-recommends"
QUICKSTART = """\
export VGPUCTL_HOST=sim:a100-40
vgpuctl list-gpus
vgpuctl fits --profile A100-8C:3
vgpuctl create-vm vdi-001 --profile A100-4C --image /srv/images/ubuntu-24.04.qcow2
vgpuctl list-profiles
vgpuctl sim reboot
vgpuctl start-vm vdi-001
vgpuctl delete-vm vdi-001 --yes
vgpuctl sim reset --yes
"""
MEMBER = """\
printf 'version: 1\nagent: {allow: {pools: [default], networks: [default]}}\n' >/packages/host.yaml
export VGPUCTL_HOST=sim:a100-40
vgpuctl apply -f /packages/host.yaml --yes
vgpuctl agent run & agent=$!
timeout 60 sh -c 'until [ -f /run/vgpuctl-agent/agent ]; do sleep 0.2; done'
unset VGPUCTL_HOST
runuser -u admin -- env HOME=/home/admin sh -ec '
watch() { timeout 60 sh -c "until vgpuctl events | grep \\"$1 *vdi-001\\"; do sleep 0.2; done"; }
vgpuctl create-vm vdi-001 --profile A100-4C
watch vm-started
vgpuctl list-vms | grep "vdi-001.*running"
vgpuctl delete-vm vdi-001 --yes
watch vm-undefined
! vgpuctl cordon A100'
kill $agent
wait $agent
"""
FLEET_LIBRARIES = (
    "python3-alembic python3-argon2 python3-paramiko python3-psycopg python3-sqlalchemy python3-starlette "
    "python3-uvicorn python3-wsproto"
)
FLEET = """\
for directory in /var/lib /run; do install -d -o vgpuctl-controller -m 700 $directory/vgpuctl-controller; done
setpriv --reuid=vgpuctl-controller --regid=vgpuctl-controller --clear-groups vgpuctl controller run & fleet=$!
timeout 60 sh -c 'until [ -S /run/vgpuctl-controller/controller.sock ]; do sleep 0.2; done'
vgpuctl controller show-fleet --json
kill $fleet
wait $fleet
"""
ENTER = ("unshare", "--mount", "--pid", "--fork", "sh", "-ec", 'mount -t proc proc "$1/proc"; exec chroot "$@"', "sh")


class BareRoot:
    """A root directory of a distribution, with the packages in /packages."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, script: str, *, status: int = 0, user: str = "") -> str:
        """Run a shell script in it and return its output.

        Raises:
            RuntimeError: it ended with another status; the text has its output.
        """
        shell = ["runuser", "-u", user, "--", "sh", "-ec", script] if user else ["sh", "-ec", script]
        env = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": f"/home/{user}"}
        env |= {"HOME": "/root"} if not user else {}
        env |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        done = subprocess.run(
            [*ENTER, str(self.path), *shell], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
        )
        if done.returncode != status:
            raise RuntimeError(f"exit status {done.returncode}, not {status}: {script}\n{done.stdout}")
        return done.stdout

    def file(self, path: str) -> Path:
        """Return the path of one of its files."""
        return self.path / path.lstrip("/")


def try_all(wheel: Path, deb: Path) -> None:
    """Run every trial in every root, print a line for each, and exit if one fails."""
    failed = []
    for suite, (name, python) in SUITES.items():
        trials = [fresh, over_old_files, brought, upgrade, removal, agent, member, pip_without_compiler]
        # Debian 12's ansible-core and SQLAlchemy are too old
        trials += [by_ansible, controller] if suite == "trixie" else []
        for trial in trials:
            started = time.monotonic()
            with _root(suite, wheel, deb, python) as root:
                try:
                    trial(root, deb)
                    result = "passed"
                except (AssertionError, RuntimeError) as error:
                    result = f"FAILED: {error}"
                    failed.append(f"{trial.__name__} on {name}")
            what = (trial.__doc__ or "").rstrip(".")
            print(f"{name}: {what}: {result} ({time.monotonic() - started:.0f} s)", flush=True)
    if failed:
        sys.exit(f"packages: failed: {', '.join(failed)}")


def fresh(root: BareRoot, deb: Path) -> None:
    """Installed in a bare root, the .deb runs the quickstart, and no other program sees its libraries."""
    _install(root, deb)
    for user in ("", "admin"):
        root.run(QUICKSTART, user=user)
    assert root.run("vgpuctl --version") == f"vgpuctl {__version__}\n"
    root.run("python3 -c 'import vgpuctl'", status=1)
    root.run("python3 -c 'import pynvml'", status=1)
    root.run("test -f /usr/share/man/man1/vgpuctl-create-vm.1.gz -a -f /usr/share/bash-completion/completions/vgpuctl")
    for name in ("docs/reference/doctor.md", "docs/json/vm-spec.schema.json", "examples/ansible/playbooks/site.yml"):
        assert root.file(f"/usr/share/doc/vgpuctl/{name}").is_file()
    assert root.file(UNIT_WANTS_LINK).is_symlink()
    assert "/usr/lib/vgpuctl/bin/python3 -I -m vgpuctl.hook" in root.file(HOOK_PATH).read_text()
    assert "nothing to do" in root.run("vgpuctl install-host").lower()
    managed = "<domain><metadata xmlns:v='urn:vgpuctl:1'/></domain>"
    root.run(f"echo {shlex.quote(managed)} | {HOOK_PATH} vm prepare begin -")
    assert not root.run("find /usr/lib/vgpuctl -name '*.py' -newer /var/lib/dpkg/info/vgpuctl.list")


def over_old_files(root: BareRoot, deb: Path) -> None:
    """Over what 0.2.0's install-host wrote, the .deb installs its own, and keeps a hook that was changed by hand."""
    for changed in ("", "# mine\n"):
        shutil.copytree(OLD_FILES, root.file("/etc"), dirs_exist_ok=True, symlinks=True)
        link = root.file(UNIT_WANTS_LINK)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(UNIT_PATH)
        hook = root.file(HOOK_PATH)
        hook.write_text(hook.read_text() + changed)
        assert OLD_PYTHON in hook.read_text()
        output = _install(root, deb)
        assert not root.file(UNIT_PATH).exists()
        assert os.readlink(link) == "/usr/lib/systemd/system/vgpuctl-restore.service"
        assert (OLD_PYTHON in hook.read_text()) == bool(changed)
        assert (f"{HOOK_PATH} was changed by hand" in output) == bool(changed), output
        root.run(f"{APT} purge vgpuctl")
        assert hook.exists() == bool(changed)


def brought(root: BareRoot, deb: Path) -> None:
    """What install-host --deb sends to a host installs the package there once."""
    package = bootstrap.read_package(str(deb))
    words = ("--json", "--host", "local", "install-host")
    plan = bootstrap.plan_package(package, words, dry_run=False, report_line=None)
    for name, command in (("probe", plan.probe), ("install", plan.install)):
        root.file(f"/packages/{name}").write_bytes(command.stdin[command.program_bytes :])
    shutil.copy(bootstrap_script.__file__, root.file("/packages/script.py"))
    act = "python3 -I /packages/script.py </packages/%s 2>/dev/null"
    assert not json.loads(root.run(act % "probe"))["data"]["present"]
    result = json.loads(root.run(act % "install"))
    assert (result["changed"], result["data"]["brought"]) == (True, {"version": package.version, "was": None}), result
    assert json.loads(root.run(act % "probe"))["data"] == {"present": True, "was": package.version, "steps": []}
    assert root.run("command -v vgpuctl") == "/usr/bin/vgpuctl\n"


def upgrade(root: BareRoot, deb: Path) -> None:
    """An upgrade keeps host.yaml and a disabled unit, waits for a running command, and names one that does not end."""
    _install(root, deb)
    host_file = root.file("/etc/vgpuctl/host.yaml")
    host_file.write_text("version: 1\n")
    root.file(UNIT_WANTS_LINK).unlink()
    newer = _make_newer(root)
    hold = (
        "mkdir -p -m 700 /run/vgpuctl/operations; cd /run/vgpuctl/operations; "
        """echo '{"pid": 4711, "command": "create-vm vdi-009"}' >0123456789abcdef; """
        "flock 0123456789abcdef sleep %d & sleep 1; "
    )
    output = root.run(f"{hold % 600} dpkg -i {newer}", status=1)
    assert "these commands still run" in output, output
    assert "create-vm vdi-009" in output, output
    assert root.run("vgpuctl --version") == f"vgpuctl {__version__}\n"
    output = root.run(f"{hold % 4} dpkg -i {newer}")
    assert "waiting up to 60 seconds" in output, output
    assert root.run("dpkg-query -W -f '${Status} ${Version}' vgpuctl") == "install ok installed 99-1"
    assert host_file.read_text() == "version: 1\n"
    assert not root.file(UNIT_WANTS_LINK).is_symlink()
    root.run(QUICKSTART)


def removal(root: BareRoot, deb: Path) -> None:
    """A removal takes the hook and leaves host.yaml and the claims of VMs; a purge leaves nothing but the claims."""
    _install(root, deb)
    root.file("/etc/vgpuctl/host.yaml").write_text("version: 1\n")
    root.run("mkdir -p -m 700 /run/vgpuctl/claims; echo '{}' >/run/vgpuctl/claims/0000:3b:00.4")
    root.run(f"{APT} remove vgpuctl")
    assert not root.file(HOOK_PATH).exists()
    assert root.file("/etc/vgpuctl/host.yaml").exists()
    assert root.file("/run/vgpuctl/claims/0000:3b:00.4").exists()
    _install(root, deb)
    assert root.file(UNIT_WANTS_LINK).is_symlink()
    root.run(f"{APT} purge vgpuctl")
    left = "find / -xdev -path '*vgpuctl*' -not -path '/proc/*' -not -path '/var/cache/*'"
    left += " -not -path '/packages/*' -not -path '/wheels/*' -not -path '/run/vgpuctl*'"
    assert root.run(left) == ""


def agent(root: BareRoot, deb: Path) -> None:
    """The host agent comes disabled; install-host --agent enables it, an upgrade keeps that, a removal ends it."""
    root.run("groupadd --gid 4711 vgpuctl-view")
    _install(root, deb)
    groups = dict(line.split(":")[::2] for line in root.file("/etc/group").read_text().splitlines())
    assert groups["vgpuctl-view"] == "4711"
    assert int(groups["vgpuctl"]) < 1000
    links = [root.file(unit.wants_link) for unit in AGENT_UNITS]
    assert not any(link.is_symlink() for link in links)
    assert "-I -m vgpuctl agent run" in root.file(AGENT_UNITS[-1].package_path).read_text()
    refused = root.run("vgpuctl install-host --agent 2>&1", status=6)
    assert "apt install python3-starlette && apt install python3-uvicorn && apt install python3-wsproto" in refused, (
        refused
    )
    root.run(f"{INSTALL} python3-starlette python3-uvicorn python3-wsproto; vgpuctl install-host --agent")
    assert [os.readlink(link) for link in links] == [unit.package_path for unit in AGENT_UNITS]
    assert "nothing to do" in root.run("vgpuctl install-host --agent").lower()
    root.run(f"dpkg -i {_make_newer(root)}")
    assert all(link.is_symlink() for link in links)
    root.run("mkdir /var/lib/vgpuctl-agent")
    root.run(f"{APT} remove vgpuctl")
    assert not any(link.is_symlink() for link in links)
    assert root.file("/var/lib/vgpuctl-agent").is_dir()
    _install(root, deb)
    assert not any(link.is_symlink() for link in links)
    root.run(f"{APT} purge vgpuctl")
    assert not root.file("/var/lib/vgpuctl-agent").exists()
    assert "vgpuctl-view:x:4711:" in root.file("/etc/group").read_text()


def controller(root: BareRoot, deb: Path) -> None:
    """The controller comes disabled; install-host --controller enables it; its user runs it on Debian's libraries."""
    _install(root, deb)
    (unit,) = CONTROLLER_UNITS
    assert not root.file(unit.wants_link).is_symlink()
    refused = root.run("vgpuctl install-host --controller 2>&1", status=6)
    assert "apt install python3-sqlalchemy && apt install python3-alembic" in refused, refused
    root.run(f"{INSTALL} {FLEET_LIBRARIES}; vgpuctl install-host --controller")
    assert os.readlink(root.file(unit.wants_link)) == unit.package_path
    assert '"role": "admin"' in root.run(FLEET)
    root.run(f"dpkg -i {_make_newer(root)}")
    assert root.file(unit.wants_link).is_symlink()
    root.run(f"{APT} purge vgpuctl")
    assert not root.file(unit.wants_link).is_symlink()
    assert not root.file("/var/lib/vgpuctl-controller").exists()


def member(root: BareRoot, deb: Path) -> None:
    """Who is put into the group vgpuctl creates, watches and deletes a VM through the host agent, without root."""
    _install(root, deb)
    root.run(f"{INSTALL} python3-starlette python3-uvicorn python3-wsproto; usermod -aG vgpuctl admin")
    output = root.run(MEMBER)
    assert "cordon is not allowed to admin" in output, output


def pip_without_compiler(root: BareRoot, deb: Path) -> None:
    """The wheel, installed by pip as an ordinary user without a compiler, runs the quickstart and names its extras."""
    root.run(f"{INSTALL} python3-venv")
    root.run("! command -v gcc")
    script = "python3 -m venv ~/v && ~/v/bin/pip install -q --no-index --find-links /wheels /packages/*.whl"
    root.run(script, user="admin")
    root.run(f"PATH=~/v/bin:$PATH\n{QUICKSTART}", user="admin")
    assert "apt install python3-libvirt && sed -i" in root.run("~/v/bin/vgpuctl show-vm a 2>&1", user="admin", status=6)
    seed = "printf '#cloud-config\\nhostname: a\\n' > ud; ~/v/bin/vgpuctl --host sim:a100-40 create-vm seeded"
    image = "--profile A100-4C --image /srv/images/ubuntu-24.04.qcow2"
    root.run(f"{seed} {image} --cloud-init ud", user="admin")
    remote = root.run("~/v/bin/vgpuctl --host ssh://a list-gpus 2>&1", user="admin", status=6)
    assert "pip install 'vgpuctl[ssh]'" in remote
    root.run("test -f ~/v/share/man/man1/vgpuctl.1", user="admin")


def by_ansible(root: BareRoot, deb: Path) -> None:
    """The role vgpuctl installs the .deb, and then nothing; the collection in it is found without a setting."""
    root.run(f"{INSTALL} ansible-core")
    shutil.copytree(ROOT / "ansible/ansible_collections", root.file("/packages/collections/ansible_collections"))
    root.file("/packages/play.yml").write_text("[{hosts: all, roles: [vgpuctl.vgpuctl.vgpuctl]}]\n")
    play = "ansible-playbook -i localhost, -c local /packages/play.yml -e vgpuctl_deb=/packages/" + deb.name
    with_collection = f"ANSIBLE_COLLECTIONS_PATH=/packages/collections {play}"
    assert " changed=1 " in root.run(f"{with_collection} --check")
    root.run("command -v vgpuctl", status=127)
    root.run(with_collection)
    assert root.run("vgpuctl --version") == f"vgpuctl {__version__}\n"
    shutil.rmtree(root.file("/packages/collections"))
    assert " changed=0 " in root.run(play)


def _make_newer(root: BareRoot) -> str:
    """Return the path of the same package with a higher version."""
    output = root.run(
        "rm -rf /tmp/tree; dpkg-deb -R /packages/*_all.deb /tmp/tree && "
        "sed -i 's/^Version: .*/Version: 99-1/' /tmp/tree/DEBIAN/control && "
        "dpkg-deb --root-owner-group -b /tmp/tree /packages/newer.deb >/dev/null && echo /packages/newer.deb"
    )
    return output.strip()


def _install(root: BareRoot, deb: Path) -> str:
    return root.run(f"{INSTALL} /packages/{deb.name}")


@contextmanager
def _root(suite: str, wheel: Path, deb: Path, python: str) -> Iterator[BareRoot]:
    archive = CACHE / f"{suite}.tar"
    if not archive.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = archive.with_suffix(".partial.tar")
        command = ["mmdebstrap", "--variant=apt", "--include=python3,ca-certificates", suite, str(partial)]
        subprocess.run(command, check=True, capture_output=True)
        partial.rename(archive)
    wheels = _wheels(wheel, python)
    with tempfile.TemporaryDirectory(prefix="vgpuctl-root-") as temporary:
        path = Path(temporary)
        subprocess.run(["tar", "-C", temporary, "-xf", str(archive)], check=True)
        path.chmod(0o755)
        for name in ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"):
            if Path(name).is_file():
                shutil.copyfile(name, path / name[1:])
        root = BareRoot(path)
        (path / "packages").mkdir()
        for package in (wheel, deb):
            shutil.copy(package, path / "packages")
        shutil.copytree(wheels, path / "wheels")
        with (path / "etc/passwd").open("a") as users:
            users.write("admin:x:1000:1000::/home/admin:/bin/sh\n")
        root.run("mkdir /home/admin; chown 1000:1000 /home/admin; apt-get -q update")
        yield root


def _wheels(wheel: Path, python: str) -> Path:
    """Return a directory with the wheels that vgpuctl's base needs with this Python; it is filled once."""
    directory = CACHE / f"wheels-{python}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "--python-version", python]
    subprocess.run([*command, "--dest", str(directory), str(wheel)], check=True, stderr=subprocess.DEVNULL)
    return directory


Trial = Callable[[BareRoot, Path], None]
