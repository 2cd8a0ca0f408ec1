# SPDX-License-Identifier: Apache-2.0
"""install-host, uninstall-host and restore-host, from the command line to the printed result."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.conftest import Run


def test_install_and_uninstall(sim: Run, tmp_path: Path) -> None:
    assert "/etc/libvirt/hooks/qemu.d/vgpuctl" in sim("install-host --dry-run").out
    notes = sim("install-host --restart-libvirt --json").document["data"]["notes"]
    assert any("no systemd" in note for note in notes)
    hook = next(tmp_path.rglob("etc/libvirt/hooks/qemu.d/vgpuctl"))
    assert "-m vgpuctl.hook" in hook.read_text()
    (hook.parents[3] / "vgpuctl" / "host.yaml").write_text("version: 1\n")
    assert "remove" in sim("uninstall-host --dry-run").out
    assert sim("uninstall-host --restart-libvirt --json").document["changed"]
    assert not hook.exists()


def test_the_agent_is_installed_checked_and_removed(sim: Run, tmp_path: Path) -> None:
    planned = sim("install-host --agent --dry-run").out
    assert "create the system group vgpuctl-view" in planned
    assert "write /etc/systemd/system/vgpuctl-agent.socket" in planned
    assert sim("install-host --agent").status == 0
    (service,) = tmp_path.rglob("etc/systemd/system/vgpuctl-agent.service")
    assert "-I -m vgpuctl agent run\n" in service.read_text()
    one, two = sim("doctor agent").out, sim("doctor agent hook").out
    assert "ok       agent" in one
    assert ("agent (ok):\n  " in one, "agent (ok):" in two) == (True, False)
    (next(tmp_path.rglob("sockets.target.wants")) / "vgpuctl-agent.socket").unlink()
    ran = sim("doctor agent")
    assert (ran.status, "vgpuctl-agent.socket is not enabled" in ran.out) == (6, True)
    assert sim("install-host --agent").status == 0
    assert sim("install-host --agent").out == "nothing to do\n"
    assert sim("uninstall-host").status == 0
    assert not service.exists()
    assert "not-applicable" in sim("doctor agent").out


def test_a_simulated_boot_without_the_unit_names_the_command_that_installs_it(sim: Run) -> None:
    assert sim("create-vm one --profile A100-4C").status == 0
    ran = sim("sim reboot")
    assert ran.out == (
        "sim:a100-40: booted again; its VMs are off, its vGPUs are gone\n"
        "  vgpuctl install-host installs the boot unit that creates them again\n"
    )
    assert sim("sim reboot --json").document["data"]["boot_unit"] == "not-enabled"


def test_a_simulated_boot_runs_the_boot_unit(sim: Run, tmp_path: Path) -> None:
    assert sim("create-vm one --profile A100-4C:2").status == 0
    assert sim("set-scheduler 0000:3b:00.0 --policy fixed_share --drain -y").status == 0
    assert sim("install-host").status == 0
    ran = sim("sim reboot")
    assert ran.out == (
        "sim:a100-40: booted again; its VMs are off, the boot unit set up 1 GPU and created 2 vGPUs again\n"
    )
    assert sim("list-vgpus --columns exists -o csv").out.splitlines()[1:] == ["yes", "yes"]
    assert [entry["command"] for entry in sim("log --json").document["data"]][-1] == "restore-host"
    (config,) = tmp_path.rglob("etc/vgpuctl/host.yaml")
    config.write_text(f"{config.read_text()}  bogus: 1\n")
    failed = sim("sim reboot")
    assert failed.status == 0
    assert "the boot unit created 2 vGPUs again and failed for 1" in failed.out
    assert "warning: the boot unit failed: 1 of 2 could not be restored: file host.yaml:" in failed.err
    document = sim("sim reboot --json").document["data"]
    assert (document["boot_unit"], document["failed"][0]["name"]) == ("failed", "host.yaml")
    (next(tmp_path.rglob("multi-user.target.wants")) / "vgpuctl-restore.service").unlink()
    assert "install-host" in sim("sim reboot").out
    ran = sim("restore-host --json")
    assert (ran.status, [entry["name"] for entry in ran.document["error"]["facts"]["restored"]]) == (1, ["one"])


def test_show_gpu_says_which_vgpus_do_not_exist_after_a_boot(sim: Run) -> None:
    for name in ("one", "two"):
        assert sim(f"create-vm {name} --profile A100-4C").status == 0
    assert "EXISTS" not in sim("show-gpu 0000:3b:00.0").out
    sim("sim reboot")
    sim("start-vm two")
    page = sim("show-gpu 0000:3b:00.0").out
    assert "16/16, 1 used, 1 reserved" in page
    assert "2 (1 missing)" in page
    rows = {line.split()[3]: line.split()[2] for line in page.splitlines() if "A100-4C  " in line and "managed" in line}
    assert rows == {"one": "no", "two": "yes"}
    assert "EXISTS" in sim("list-vgpus").out


def test_vms_that_lack_their_vgpus_are_marked_and_the_boot_unit_has_its_own_entry(sim: Run) -> None:
    assert sim("create-vm one --profile A100-4C").status == 0
    assert sim("sim reboot").status == 0
    assert "A100-4C on 0000:3b:00.0 (missing)" in sim("list-vms").out
    assert sim("install-host").status == 0
    assert sim("sim reboot").status == 0
    assert "(missing)" not in sim("list-vms").out
    commands = sim("log --columns command --no-headers").out.splitlines()
    assert commands[-2:] == ["sim reboot", "restore-host"]
    assert sim("restore-host").out == "nothing to do\n"
