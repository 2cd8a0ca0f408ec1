# SPDX-License-Identifier: Apache-2.0
"""What cloud-init runs in a guest that shares its GPU: in a chroot, with programs that accept only the right order."""

from __future__ import annotations

import io

import pytest
from pycdlib import PyCdlib
from ruamel.yaml import YAML

from tests.clusters import HASH, K3S, K3S_TOKEN, KUBEADM
from tests.guests.helper import PROGRAM
from tests.guests.roots import GuestRoot
from tests.licenses import CERTIFICATE
from vgpuctl.config.cluster_join import parse_join
from vgpuctl.config.guest_rules import parse_guest_sharing
from vgpuctl.domain.cloud_init_seed import build_seed_image
from vgpuctl.domain.guest_setup import setup_script
from vgpuctl.model.license import License
from vgpuctl.model.request import CloudInit, CloudInitFile, GuestSetup

START = ("ExecStartPre", "ExecStart", "ExecStartPost")
STOP = ("ExecStop", "ExecStopPost")
HEALTH = "get_default_active_thread_percentage"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "guest").mkdir()
    return GuestRoot(tmp_path / "guest")


def script(text, license=None):
    return setup_script(GuestSetup(guest_sharing=parse_guest_sharing(text), license=license))


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("mps", []),
        ("mps,threads=25", ["set_default_active_thread_percentage 25"]),
        (
            "mps,threads=25,memory=4GiB",
            [
                "set_default_device_pinned_mem_limit 0 4096M",
                "set_default_device_pinned_mem_limit 1 4096M",
                "set_default_active_thread_percentage 25",
            ],
        ),
    ],
)
def test_the_daemon_starts_and_stops_in_nvidias_order(root, text, limits):
    root.run_script(script(text))
    root.run_unit(*START)
    root.run_unit(*STOP)
    assert root.log == ["mode EXCLUSIVE_PROCESS", "daemon", *limits, HEALTH, "quit", "mode DEFAULT"]


def test_each_boot_writes_the_same_and_systemd_is_told(root):
    root.run_script(script("mps"))
    files = {p: p.read_text() for p in (root.path / "etc").rglob("*") if p.is_file()}
    (root.path / "etc/systemd/system/vgpuctl-mps.service").write_text("[Service]\nExecStart=/bin/false\n")
    root.run_script(script("mps"))
    assert {p: p.read_text() for p in (root.path / "etc").rglob("*") if p.is_file()} == files
    commands = ["daemon-reload", "--quiet enable vgpuctl-mps.service", "--no-block start vgpuctl-mps.service"]
    assert (root.path / "run/systemctl").read_text().splitlines() == commands * 2


def test_a_directory_that_a_user_made_first_does_not_stay(root):
    """Whoever owns the pipe directory can take the place of the daemon."""
    planted = root.path / "tmp/nvidia-mps/control"
    planted.parent.mkdir()
    planted.write_text("")
    root.run_script(script("mps"))
    root.run_unit("ExecStartPre")
    assert not planted.exists()
    assert planted.parent.stat().st_mode & 0o777 == 0o755


def test_a_daemon_without_an_answer_is_a_failed_start(root):
    root.run_script(script("mps"))
    root.run_unit("ExecStartPre", "ExecStart")
    (root.path / "run/mps/answer").write_text("no such command\n")
    result = root.run("/usr/local/sbin/vgpuctl-mps-limits", check=False)
    assert (result.returncode, "no such command" in result.stderr) == (1, True)


def test_a_guest_without_systemd_is_told_so(root):
    root.put_program("systemctl", "")
    (root.path / "usr/bin/systemctl").unlink()
    (root.path / "bin").unlink()
    (root.path / "bin").symlink_to("usr/bin")
    result = root.run_script(script("mps"), check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "vgpuctl: this guest has no systemd, which runs the MPS daemon",
        "vgpuctl: the setup of this guest failed: guest_sharing mps",
    ]
    assert not list((root.path / "etc").rglob("*mps*"))


def test_the_unit_is_one_for_systemd(root):
    root.run_script(script("mps,threads=10"))
    result = root.run("systemd-analyze", "verify", "--man=no", "/etc/systemd/system/vgpuctl-mps.service", check=False)
    assert "vgpuctl-mps" not in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("text", "name", "section", "extra"),
    [
        ("mps:4", "vgpuctl-mps-4", "mps", ["nvidia.com/mps.capable=true"]),
        ("time-slicing:10", "vgpuctl-time-slicing-10", "timeSlicing", []),
    ],
)
def test_a_node_of_kubernetes_gets_files_and_no_daemon(root, text, name, section, extra):
    root.run_script(script(text))
    read = YAML(typ="safe", pure=True).load
    config = read((root.path / f"etc/vgpuctl/kubernetes/{name}.yaml").read_text())
    resource = {"name": "nvidia.com/gpu", "replicas": parse_guest_sharing(text).replicas}
    shared = {"renameByDefault": True, "failRequestsGreaterThanOne": True, "resources": [resource]}
    assert config == {"version": "v1", "sharing": {section: shared}}
    labels = ["nvidia.com/gpu.present=true", f"nvidia.com/device-plugin.config={name}", *extra]
    k3s = read((root.path / "etc/rancher/k3s/config.yaml.d/60-vgpuctl-gpu.yaml").read_text())
    assert k3s == {"node-label+": labels}
    assert not (root.path / "etc/systemd/system").exists()
    for tool in ("kubectl", "helm"):
        root.put_program(tool, '#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done >"/run/${0##*/}"\n')
    root.run("/etc/vgpuctl/kubernetes/install-device-plugin", "node-7", "--set", "runtimeClassName=nvidia")
    assert (root.path / "run/kubectl").read_text().splitlines() == ["label", "--overwrite", "node", "node-7", *labels]
    helm = (root.path / "run/helm").read_text().splitlines()
    assert f"config.map.{name}=/etc/vgpuctl/kubernetes/{name}.yaml" in helm
    assert "config.fallbackStrategies={named,empty}" in helm
    assert helm[-2:] == ["--set", "runtimeClassName=nvidia"]


TOKENS = "etc/nvidia/ClientConfigToken"
GRIDD = "etc/nvidia/gridd.conf"
OURS = "client_configuration_token_vgpuctl.tok"


def test_a_license_takes_the_place_of_an_older_one(root):
    (root.path / TOKENS).mkdir(parents=True)
    (root.path / TOKENS / "client_configuration_token_01-02-2024.tok").write_text("old")
    (root.path / GRIDD).write_text("# mine\n\tFeatureType = 2\nEnableUI=TRUE")
    text = script("none", License("cad", "a.b.c"))
    for _ in range(2):
        root.run_script(text)
        (token,) = (root.path / TOKENS).iterdir()
        assert (token.name, token.read_text(), token.stat().st_mode & 0o777) == (OURS, "a.b.c\n", 0o600)
        assert (root.path / GRIDD).read_text() == "# mine\nEnableUI=TRUE\nFeatureType=1\n"
    assert "--no-block try-restart nvidia-gridd.service" in (root.path / "run/systemctl").read_text()


@pytest.mark.parametrize(
    ("tool", "folder"),
    [
        ("update-ca-certificates", "usr/local/share/ca-certificates"),
        ("update-ca-trust", "etc/pki/ca-trust/source/anchors"),
    ],
)
def test_the_license_servers_certificates_are_trusted(root, tool, folder):
    root.put_program(tool, '#!/bin/sh\necho "${0##*/}" >>/run/trust\n')
    root.run_script(script("none", License("cad", "a.b.c", (CERTIFICATE, CERTIFICATE), 4)))
    assert [(root.path / folder / f"vgpuctl-license-{n}.crt").read_text() for n in (1, 2)] == [CERTIFICATE + "\n"] * 2
    root.run_script(script("none", License("cad", "a.b.c", (CERTIFICATE, CERTIFICATE), 4)))
    assert (root.path / "run/trust").read_text() == f"{tool}\n", "once: nothing changed at the second boot"
    assert (root.path / GRIDD).read_text() == "FeatureType=4\n"


def test_a_license_needs_no_systemd_and_no_driver(root):
    root.put_program("systemctl", "#!/bin/sh\nexit 5\n")
    result = root.run_script(script("none", License("cad", "a.b.c")))
    assert result.stderr == "vgpuctl: nvidia-gridd was not restarted\n"
    assert (root.path / TOKENS / OURS).exists()


@pytest.mark.parametrize("later", ["none", "mps:4"])
def test_what_is_not_wanted_any_more_goes(root, later):
    root.run_script(script("mps"))
    root.run_script(setup_script(GuestSetup(guest_sharing=parse_guest_sharing(later)), replaces=True))
    parts = (
        "etc/systemd/system/vgpuctl-mps.service",
        "etc/tmpfiles.d/vgpuctl-mps.conf",
        "usr/local/sbin/vgpuctl-mps-limits",
    )
    assert not [part for part in parts if (root.path / part).exists()]
    lines = (root.path / "run/systemctl").read_text().splitlines()
    assert lines[-2:] == ["--quiet disable vgpuctl-mps.service", "--no-block stop vgpuctl-mps.service"]
    root.run_script(script("mps"))
    assert not (root.path / "etc/vgpuctl/kubernetes").exists()
    assert not list((root.path / "etc").rglob("60-vgpuctl*"))


def test_nothing_to_set_up_is_no_script():
    assert setup_script(GuestSetup()) is None


@pytest.mark.parametrize("text", ["mps", "mps:2", "time-slicing:2"])
def test_the_seed_has_it_as_vendor_data_next_to_the_users_own(text):
    user = "#cloud-config\nruncmd: [[true]]\n"
    files = CloudInit(CloudInitFile("/ud", user), setup=GuestSetup(guest_sharing=parse_guest_sharing(text)))
    disc = PyCdlib()
    disc.open_fp(io.BytesIO(build_seed_image(files, "some-id", "vdi-001")))
    texts = {}
    for name in ("user-data", "vendor-data"):
        data = io.BytesIO()
        disc.get_file_from_iso_fp(data, rr_path=f"/{name}")
        texts[name] = data.getvalue().decode()
    assert texts == {"user-data": user, "vendor-data": script(text)}


def test_the_helper_is_installed_at_each_boot_and_runs(root):
    text = setup_script(GuestSetup(guest_helper=True))
    for _ in range(2):
        root.run_script(text)
    installed = root.path / "usr/local/sbin/vgpuctl-guest"
    assert (installed.read_text(), installed.stat().st_mode & 0o777) == (PROGRAM.read_text(), 0o755)
    commands = ["daemon-reload", "--quiet enable vgpuctl-guest.service", "--no-block restart vgpuctl-guest.service"]
    assert (root.path / "run/systemctl").read_text().splitlines() == commands * 2
    unit = (root.path / "etc/systemd/system/vgpuctl-guest.service").read_text()
    assert "ExecStart=/usr/local/sbin/vgpuctl-guest run\n" in unit
    assert '"helper": "2"' in root.run("/usr/local/sbin/vgpuctl-guest", "show").stdout


def test_a_helper_that_cannot_be_installed_does_not_stop_the_rest(root):
    root.put_program("systemctl", "#!/bin/sh\nexit 1\n")
    ran = root.run_script(setup_script(GuestSetup(guest_helper=True)))
    assert "vgpuctl: the helper vgpuctl-guest was not installed" in ran.stderr


OFF = "/usr/local/sbin/vgpuctl-off-after-setup"
SYSTEMCTL = """#!/bin/sh
echo "$*" >>/run/systemctl
case $1 in
is-failed) cat /run/failed 2>/dev/null ;;
is-system-running) cat /run/system ;;
esac
"""


@pytest.fixture
def new_guest(root):
    """Return a root that shuts down once it is set up; its files say what cloud-init and systemd answer."""
    root.put_program("systemctl", SYSTEMCTL)
    root.put_program("cloud-init", "#!/bin/sh\ncat /run/cloud-init\n")
    root.put_program("sync", "#!/bin/sh\n")
    (root.path / "sys/class/dmi/id").mkdir(parents=True)
    for path, text in {
        "sys/class/dmi/id/product_uuid": "one",
        "run/cloud-init": "status: done",
        "run/system": "running",
    }.items():
        (root.path / path).write_text(text + "\n")
    root.run_script(setup_script(GuestSetup(off_after_setup=True)))
    return root


def shuts_down(guest):
    """Run the service's program; return whether it shut the guest down, and what it said."""
    (guest.path / "run/systemctl").write_text("")
    ran = guest.run(OFF, check=False)
    return "--no-block poweroff" in (guest.path / "run/systemctl").read_text().splitlines(), ran.stderr.strip()


def test_a_guest_shuts_down_once_when_it_is_set_up(new_guest):
    starts = (new_guest.path / "run/systemctl").read_text().splitlines()
    assert starts == ["daemon-reload", "--no-block start vgpuctl-off-after-setup.service"]
    assert shuts_down(new_guest) == (True, "")
    assert shuts_down(new_guest) == (False, ""), "its disk is kept, and starts"
    (new_guest.path / "sys/class/dmi/id/product_uuid").write_text("another\n")
    assert shuts_down(new_guest) == (True, ""), "an image of this guest is another machine's"


@pytest.mark.parametrize(
    ("path", "text", "error"),
    [
        (
            "run/cloud-init",
            "status: error",
            "vgpuctl: this guest is not set up, and stays on: cloud-init status --long",
        ),
        ("run/cloud-init", "", "vgpuctl: this guest is not set up, and stays on: cloud-init status --long"),
        ("run/failed", "failed", "journalctl -u vgpuctl-driver -u vgpuctl-join (failed)"),
        ("etc/vgpuctl/join.yaml", "kind: JoinConfiguration", "vgpuctl: this guest has not joined its cluster yet"),
        ("run/system", "stopping", ""),
    ],
)
def test_a_guest_stays_on_until_all_of_its_setup_has_succeeded(new_guest, path, text, error):
    changed = new_guest.path / path
    changed.parent.mkdir(parents=True, exist_ok=True)
    before = changed.read_text() if changed.exists() else None
    changed.write_text(text + "\n")
    is_off, shown = shuts_down(new_guest)
    assert (is_off, shown[-len(error) :] if error else shown) == (False, error)
    changed.unlink() if before is None else changed.write_text(before)
    assert shuts_down(new_guest) == (True, "")


def test_the_unit_that_shuts_down_is_one_for_systemd(new_guest):
    unit = new_guest.path / "etc/systemd/system/vgpuctl-off-after-setup.service"
    assert "After=cloud-final.service" in unit.read_text()
    new_guest.run_script(setup_script(GuestSetup(guest_helper=True)))
    assert not unit.exists()
    assert not (new_guest.path / OFF[1:]).exists()


DRIVER_FILE = "NVIDIA-Linux-x86_64-580.159.03-grid.run"
DRIVER = f"/srv/drivers/{DRIVER_FILE}"
PACKAGE = "nvidia-linux-grid-580_580.159.03_amd64.deb"
INSTALLER = """#!/bin/sh
# A driver that wants what NVIDIA's does: a compiler, the kernel's headers, and that no driver has the GPU now.
set -eu
grep -q '^apt-get .* install linux-headers-.* gcc ' /run/log
[ ! -e /sys/module/nouveau ] && [ ! -e /sys/module/nvidia ]
echo "driver $*" >>/run/log
[ ! -e /run/broken ]
touch /run/module
"""
PROGRAMS = {
    "apt-get": """echo "apt-get $*" >>/run/log
case "$*" in *.deb*) touch /run/module ;; esac""",
    "dkms": 'echo "dkms $*" >>/run/log; [ -e /run/dkms ] && touch /run/module',
    "update-initramfs": 'echo "initramfs $*" >>/run/log',
    "modinfo": "[ -e /run/module ]",
    "modprobe": """echo "modprobe $*" >>/run/log
case $1 in
-r) shift
    for module; do [ ! -e "/run/busy-$module" ] || exit 1; done
    for module; do rm -rf "/sys/module/$module"; done ;;
*) [ ! -e /run/unsigned ] && [ -e /run/module ] && mkdir -p "/sys/module/$1" ;;
esac""",
    "mountpoint": "exit 1",
    "mount": 'echo "mount $*" >>/run/log; cp /disc/* "$4"',
    "umount": 'rm -f "$1"/*; echo "umount $*" >>/run/log',
    "uname": "echo 6.1.0-30-cloud-amd64",
}
"""Stand-ins: they write down what they are asked, and keep what modules there are."""
RUN = "driver --silent --no-questions --ui=none --no-x-check --dkms"
APT = "apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=600"
HEADERS = f"{APT} --allow-downgrades install linux-headers-6.1.0-30-cloud-amd64 dkms gcc make"
PACKAGES = [f"{APT} update", HEADERS, f"{APT} install linux-headers-cloud-amd64"]
LOADED = ["modprobe nvidia"]
INSTALLED = [*PACKAGES, RUN, "initramfs -u -k all", *LOADED]


@pytest.fixture
def guest(root):
    """Return a root with a GPU and a disc in its drive, and the service's program in it."""
    for name, text in PROGRAMS.items():
        root.put_program(name, f"#!/bin/sh\n{text}\n")
    root.put_program("dnf", "")
    (root.path / "usr/bin/dnf").unlink()
    (root.path / "disc").mkdir()
    (root.path / "disc" / DRIVER_FILE).write_text(INSTALLER)
    for folder in ("dev/disk/by-label", "sys/module", "sys/bus/pci/devices/0000:01:00.0"):
        (root.path / folder).mkdir(parents=True)
    (root.path / "dev/disk/by-label/vgpudriver").touch()
    (root.path / "sys/bus/pci/devices/0000:01:00.0/vendor").write_text("0x10de\n")
    (root.path / "usr/bin/nvidia-gridd").unlink(missing_ok=True)
    (root.path / "usr/bin/nvidia-gridd").touch()
    root.run_script(setup_script(GuestSetup(guest_driver=DRIVER)))
    return root


def install(guest, *, check=True):
    """Boot the guest: run the service's program, while no driver of NVIDIA's is loaded.

    Return its result, and what was asked of the stand-ins without the mounts.
    """
    (guest.path / "run/log").write_text("")
    (guest.path / "run/systemctl").write_text("")
    if (guest.path / "sys/module/nvidia").exists():
        (guest.path / "sys/module/nvidia").rmdir()
    result = guest.run("/usr/local/sbin/vgpuctl-install-driver", check=check)
    lines = (guest.path / "run/log").read_text().splitlines()
    mounts = [line for line in lines if line.startswith(("mount ", "umount "))]
    assert [line.split()[0] for line in mounts] in (["mount", "umount"], []), "the disc does not stay mounted"
    return result, [line for line in lines if line not in mounts]


def systemctl_of(guest):
    return (guest.path / "run/systemctl").read_text().splitlines()


def test_the_driver_is_installed_once_and_then_only_loaded(guest):
    commands = ["daemon-reload", "--quiet enable vgpuctl-driver.service", "--no-block start vgpuctl-driver.service"]
    assert systemctl_of(guest)[-3:] == commands
    assert install(guest)[1] == INSTALLED
    gridd = ["daemon-reload", "--quiet enable nvidia-gridd.service", "--no-block restart nvidia-gridd.service"]
    assert systemctl_of(guest)[-3:] == gridd
    assert "start network-online.target" in systemctl_of(guest)
    assert (install(guest)[1], systemctl_of(guest)) == (LOADED, []), "it does not wait for the network either"


def test_another_disc_is_another_driver_and_the_old_module_goes_first(guest):
    install(guest)
    (guest.path / "disc" / DRIVER_FILE).rename(guest.path / "disc/NVIDIA-Linux-x86_64-580.178.04-grid.run")
    (guest.path / "run/log").write_text("")
    guest.run("/usr/local/sbin/vgpuctl-install-driver")
    lines = [line for line in (guest.path / "run/log").read_text().splitlines() if "mount" not in line]
    assert lines == ["modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia", *INSTALLED]


def test_a_module_that_is_in_use_is_not_replaced(guest):
    install(guest)
    (guest.path / "disc" / DRIVER_FILE).rename(guest.path / "disc/NVIDIA-Linux-x86_64-580.178.04-grid.run")
    (guest.path / "run/busy-nvidia").touch()
    result = guest.run("/usr/local/sbin/vgpuctl-install-driver", check=False)
    assert (result.returncode, "the driver that runs is in use" in result.stderr) == (1, True)


def test_nouveau_goes_before_the_installer_runs(guest):
    (guest.path / "sys/module/nouveau").mkdir()
    assert install(guest)[1] == ["modprobe -r nouveau", *INSTALLED]


def test_a_guest_whose_nouveau_is_in_use_restarts_once(guest):
    (guest.path / "sys/module/nouveau").mkdir()
    (guest.path / "run/busy-nouveau").touch()
    result, lines = install(guest)
    assert (lines, systemctl_of(guest)) == (["modprobe -r nouveau", "initramfs -u -k all"], ["--no-block reboot"])
    assert "nouveau is in use: this guest restarts" in result.stderr
    result, _ = install(guest, check=False)
    assert (result.returncode, systemctl_of(guest)) == (1, [])
    assert "nouveau is in use, and a restart of this guest did not help" in result.stderr


def test_a_package_is_installed_with_the_headers(guest):
    (guest.path / "disc" / DRIVER_FILE).rename(guest.path / "disc" / PACKAGE)
    assert install(guest)[1][:2] == [PACKAGES[0], f"{HEADERS} /run/vgpuctl-driver/{PACKAGE}"]


def test_a_driver_that_was_not_installed_is_tried_at_the_next_boot(guest):
    (guest.path / "run/broken").touch()
    result, lines = install(guest, check=False)
    assert (result.returncode, lines[-1]) == (1, RUN)
    assert f"{DRIVER_FILE} was not installed: journalctl -u vgpuctl-driver" in result.stderr
    (guest.path / "run/broken").unlink()
    assert install(guest)[1] == INSTALLED


@pytest.mark.parametrize(("builds", "disc"), [(True, False), (True, True), (False, True)])
def test_after_a_new_kernel_the_module_is_built_again(guest, builds, disc):
    install(guest)
    (guest.path / "run/module").unlink()
    guest.put_program("uname", "#!/bin/sh\necho 6.12.41+deb13-amd64\n")
    if builds:
        (guest.path / "run/dkms").touch()
    if not disc:
        (guest.path / "dev/disk/by-label/vgpudriver").unlink()
    result, lines = install(guest)
    assert lines[-1:] == LOADED
    assert f"{APT} install linux-headers-amd64" in lines
    assert ("dkms autoinstall -k 6.12.41+deb13-amd64" in lines, RUN in lines) == (True, not builds)
    assert "kernel 6.12.41+deb13-amd64 has no module of the driver yet" in result.stderr


def test_a_new_kernel_without_a_disc_is_said(guest):
    install(guest)
    (guest.path / "run/module").unlink()
    (guest.path / "dev/disk/by-label/vgpudriver").unlink()
    result, _ = install(guest, check=False)
    assert (result.returncode, "has no module of the driver: vgpuctl set-vm VM" in result.stderr) == (1, True)


def test_a_module_that_does_not_load_is_said_and_the_driver_not_installed_again(guest):
    (guest.path / "run/unsigned").touch()
    for again in (False, True):
        result, lines = install(guest, check=False)
        assert (result.returncode, RUN in lines) == (1, not again)
        assert "the module of the driver does not load: journalctl -k; with secure boot" in result.stderr


def test_a_package_of_another_family_is_refused(guest):
    (guest.path / "disc" / DRIVER_FILE).rename(guest.path / "disc/nvidia-linux-grid-580-580.159.03-1.x86_64.rpm")
    result, lines = install(guest, check=False)
    assert (result.returncode, lines, "is for the family of RHEL" in result.stderr) == (1, [], True)


@pytest.mark.parametrize("part", ["sys/bus/pci/devices/0000:01:00.0/vendor", "dev/disk/by-label/vgpudriver"])
def test_without_a_gpu_nothing_happens_and_without_any_driver_it_is_said(guest, part):
    (guest.path / part).unlink()
    result, lines = install(guest, check=False)
    assert lines == []
    assert (result.returncode, result.stderr) in (
        (0, "vgpuctl: this VM has no GPU of NVIDIA\n"),
        (1, "vgpuctl: there is no disc with a driver\n"),
    )


def test_mps_starts_when_its_driver_is_there(guest):
    guest.run_script(setup_script(GuestSetup(guest_driver=DRIVER, guest_sharing=parse_guest_sharing("mps"))))
    install(guest)
    assert systemctl_of(guest)[-1] == "--no-block restart vgpuctl-mps.service"


def test_a_guest_that_gets_no_driver_any_more_keeps_the_one_that_it_has(guest):
    guest.run_script(setup_script(GuestSetup(), replaces=True))
    commands = ["--quiet disable vgpuctl-driver.service", "--no-block stop vgpuctl-driver.service"]
    assert systemctl_of(guest)[-2:] == commands
    assert not (guest.path / "etc/systemd/system/vgpuctl-driver.service").exists()
    assert (guest.path / "etc/modprobe.d/vgpuctl-nouveau.conf").exists()


def test_the_unit_of_the_driver_is_one_for_systemd(guest):
    path = "/etc/systemd/system/vgpuctl-driver.service"
    result = guest.run("systemd-analyze", "verify", "--man=no", path, check=False)
    assert (result.returncode, "vgpuctl-driver" in result.stderr) == (0, False), result.stderr


KUBEADM_PROGRAM = """#!/bin/sh
set -eu
case "$*" in
"config print join-defaults") printf 'apiVersion: kubeadm.k8s.io/v1beta4\\nkind: JoinConfiguration\\n' ;;
"join --config /run/vgpuctl-join.yaml")
    [ "$(stat -c %a /run/vgpuctl-join.yaml)" = 600 ]
    cp /run/vgpuctl-join.yaml /run/joined.yaml
    [ ! -e /run/refuses ]
    ;;
*) exit 2 ;;
esac
"""


def test_a_node_joins_by_kubeadm_once_with_a_file_that_goes(root):
    root.put_program("kubeadm", KUBEADM_PROGRAM)
    join = setup_script(GuestSetup(k8s_join=parse_join("lab", KUBEADM)))
    root.run_script(join)
    path = root.path / "etc/vgpuctl/join.yaml"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "0123456789abcdef" not in (root.path / "etc/systemd/system/vgpuctl-join.service").read_text()
    (root.path / "run/refuses").touch()
    assert root.run("/usr/local/sbin/vgpuctl-join", check=False).returncode == 1
    assert path.exists(), "it is tried again"
    (root.path / "run/refuses").unlink()
    root.run("/usr/local/sbin/vgpuctl-join")
    joined = YAML(typ="safe", pure=True).load((root.path / "run/joined.yaml").read_text())
    assert joined == {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "apiServerEndpoint": "10.0.0.1:6443",
                "token": "abcdef.0123456789abcdef",
                "caCertHashes": [f"sha256:{HASH}"],
            }
        },
    }
    assert not path.exists()
    (root.path / "etc/kubernetes").mkdir()
    (root.path / "etc/kubernetes/kubelet.conf").touch()
    root.run_script(join)
    assert not path.exists(), "a node that has joined keeps no token"
    systemctl = (root.path / "run/systemctl").read_text()
    assert "--quiet enable vgpuctl-join.service\n--no-block start vgpuctl-join.service\n" in systemctl


def test_a_node_joins_by_k3s_with_its_own_file(root):
    root.run_script(setup_script(GuestSetup(k8s_join=parse_join("lab", K3S))))
    path = root.path / "etc/rancher/k3s/config.yaml.d/50-vgpuctl-join.yaml"
    read = YAML(typ="safe", pure=True).load(path.read_text())
    assert read == {"server": "https://k3s.example.org:6443", "token": K3S_TOKEN}
    assert path.stat().st_mode & 0o777 == 0o600
    systemctl = (root.path / "run/systemctl").read_text().splitlines()
    assert systemctl == ["--quiet enable k3s-agent.service", "--no-block start k3s-agent.service"]
    root.put_program("systemctl", "#!/bin/sh\nexit 1\n")
    ran = root.run_script(setup_script(GuestSetup(k8s_join=parse_join("lab", K3S))))
    assert "k3s-agent is not installed: the guest joins no cluster" in ran.stderr


def test_the_unit_that_joins_is_one_for_systemd(root):
    root.run_script(setup_script(GuestSetup(k8s_join=parse_join("lab", KUBEADM))))
    path = "/etc/systemd/system/vgpuctl-join.service"
    result = root.run("systemd-analyze", "verify", "--man=no", path, check=False)
    assert "vgpuctl-join" not in result.stderr, result.stderr
