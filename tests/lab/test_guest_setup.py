"""What cloud-init runs in a guest, under a real systemd: L2 is the guest, with stand-ins for NVIDIA's programs."""

from __future__ import annotations

import pytest

from tests.guests.roots import STAND_INS
from tests.lab.machine import Lab
from vgpuctl.config.guest_rules import parse_guest_sharing
from vgpuctl.domain.guest_setup import setup_script
from vgpuctl.model.request import CloudInit

UNIT = "vgpuctl-mps.service"


def boot(lab: Lab, sharing: str) -> None:
    """Run the script as cloud-init does."""
    text = setup_script(CloudInit(sharing=parse_guest_sharing(sharing)))
    assert text is not None
    script = text.removeprefix("#cloud-boothook\n")
    lab.run("cat >/run/boothook && chmod 700 /run/boothook && /run/boothook", stdin=script)


def log(lab: Lab) -> list[str]:
    """Return what NVIDIA's programs were told."""
    return lab.read("/run/mps/log").splitlines()


@pytest.mark.quick
@pytest.mark.deadline(120)
def test_systemd_runs_the_daemon_of_mps(lab: Lab) -> None:
    boot(lab, "mps,threads=25,memory=4GiB")
    lab.wait_until(f'test -n "$(systemctl show -P ConditionTimestamp {UNIT})"')
    assert lab.run(["systemctl", "show", "-P", "ConditionResult", UNIT]).stdout.strip() == "no"

    for name, text in STAND_INS.items():
        lab.run(f"cat >/usr/bin/{name} && chmod 755 /usr/bin/{name}", stdin=text)
    boot(lab, "mps,threads=25,memory=4GiB")
    lab.wait_until(f"systemctl is-active {UNIT}")
    limits = [*(f"set_default_device_pinned_mem_limit {gpu} 4096M" for gpu in (0, 1)),
              "set_default_active_thread_percentage 25"]  # fmt: skip
    start = ["mode EXCLUSIVE_PROCESS", "daemon", *limits, "get_default_active_thread_percentage"]
    assert log(lab) == start
    assert lab.read("/run/mps/daemon").strip() == lab.run(["systemctl", "show", "-P", "MainPID", UNIT]).stdout.strip()
    assert lab.run(["systemctl", "is-enabled", UNIT]).stdout.strip() == "enabled"

    boot(lab, "mps,threads=25,memory=4GiB")
    assert log(lab) == start

    lab.run("kill -9 $(cat /run/mps/daemon); rm /run/mps/daemon")
    lab.wait_until(f"test $(systemctl show -P NRestarts {UNIT}) = 1 && systemctl is-active {UNIT}")
    assert log(lab) == [*start, "mode DEFAULT", *start]
    lab.run(["systemctl", "stop", UNIT])
    assert log(lab)[-2:] == ["quit", "mode DEFAULT"]
    assert "refused" not in lab.read("/run/mps/log")
