# SPDX-License-Identifier: Apache-2.0
"""install-host, uninstall-host and restore-host, from the command line to the printed result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.unit.cli.conftest import Ran


def test_install_and_uninstall(sim: Callable[[str], Ran], tmp_path: Path) -> None:
    assert "/etc/libvirt/hooks/qemu.d/vgpuctl" in sim("install-host --dry-run").out
    first = sim("install-host --restart-libvirt --json")
    assert first.status == 0, first.out
    assert first.document["changed"]
    assert any("no systemd" in note for note in first.document["data"]["notes"])
    assert not sim("install-host --json").document["changed"]
    hook = next(tmp_path.rglob("etc/libvirt/hooks/qemu.d/vgpuctl"))
    assert "-m vgpuctl.hook" in hook.read_text()
    (hook.parents[3] / "vgpuctl" / "host.yaml").write_text("version: 1\n")
    assert "remove" in sim("uninstall-host --dry-run").out
    assert sim("uninstall-host --restart-libvirt --json").document["changed"]
    assert not hook.exists()
    assert not sim("uninstall-host --json").document["changed"]


def test_uninstall_twice(sim: Callable[[str], Ran], tmp_path: Path) -> None:
    assert sim("install-host").status == 0
    assert sim("uninstall-host --json").document["changed"]
    again = sim("uninstall-host --json").document
    assert (again["changed"], again["data"]["steps"]) == (False, [])
    assert list(tmp_path.rglob("etc/vgpuctl")) == []
    assert sim("cordon 0000:3b:00.0").status == 0
    assert sorted(path.name for path in tmp_path.rglob("etc/vgpuctl/*")) == ["host.yaml", "host.yaml.1"]


def test_after_a_reboot_restore_host_creates_the_vgpus(sim: Callable[[str], Ran]) -> None:
    for name in ("one", "two"):
        assert sim(f"create-vm {name} --profile A100-4C").status == 0
    assert sim("sim reboot").status == 0
    assert sim("restore-host --dry-run").out.count("create vGPU") == 2
    done = sim("restore-host --json").document
    assert [entry["name"] for entry in done["data"]["restored"]] == ["one", "two"]
    assert sim("restore-host").out == "nothing to do\n"


def test_what_cannot_be_restored_is_exit_1_with_a_list(sim: Callable[[str], Ran], tmp_path: Path) -> None:
    assert sim("create-vm one --profile A100-4C").status == 0
    config = next(tmp_path.rglob("etc/vgpuctl")) / "host.yaml"
    config.write_text(
        "version: 1\nboot: {deadline_seconds: 1}\n"
        "vgpus: {spare: {profile: A100-4C, gpu: '0000:99:00.0', carrier: '0000:99:00.4'}}\n"
    )
    assert sim("sim reboot").status == 0
    ran = sim("restore-host --json")
    assert ran.status == 1
    assert [entry["name"] for entry in ran.document["error"]["facts"]["restored"]] == ["one"]
    assert "vgpu spare: the GPU 0000:99:00.0 is no longer on this host" in ran.document["error"]["message"]


def test_a_simulated_boot_without_the_unit_names_the_command_that_installs_it(sim: Callable[[str], Ran]) -> None:
    assert sim("create-vm one --profile A100-4C").status == 0
    ran = sim("sim reboot")
    assert ran.out == (
        "sim:a100-40: booted again; its VMs are off, its vGPUs are gone\n"
        "  vgpuctl install-host installs the boot unit that creates them again\n"
    )
    assert sim("sim reboot --json").document["data"]["boot_unit"] == "not-enabled"


def test_a_simulated_boot_runs_the_boot_unit(sim: Callable[[str], Ran], tmp_path: Path) -> None:
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


def test_show_gpu_says_which_vgpus_do_not_exist_after_a_boot(sim: Callable[[str], Ran]) -> None:
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


def test_vms_that_lack_their_vgpus_are_marked_and_the_boot_unit_has_its_own_entry(sim: Callable[[str], Ran]) -> None:
    assert sim("create-vm one --profile A100-4C").status == 0
    assert sim("sim reboot").status == 0
    assert "A100-4C on 0000:3b:00.0 (missing)" in sim("list-vms").out
    assert sim("install-host").status == 0
    assert sim("sim reboot").status == 0
    assert "(missing)" not in sim("list-vms").out
    commands = sim("log --columns command --no-headers").out.splitlines()
    assert commands[-2:] == ["sim reboot", "restore-host"]


def test_the_journal_has_a_spec_without_what_its_network_config_says(sim: Callable[[str], Ran], tmp_path: Path) -> None:
    secret = "access-point-password"
    config = f"{{version: 2, wifis: {{w0: {{access-points: {{home: {{password: {secret}}}}}}}}}}}"
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"name: one\nprofile: A100-4C\nimage: /srv/images/ubuntu-24.04.qcow2\nnetwork_config: {config}\n")
    assert sim(f"ensure-vm -f {spec}").status == 0
    entry = sim("log --json").document["data"][-1]
    assert "in the spec (sha256 " in entry["spec"]
    journals = [path.read_text() for path in tmp_path.rglob("audit.jsonl")]
    assert journals
    assert secret not in "".join(journals)


def test_a_boot_turns_off_the_vfs_of_a_gpu_that_goes_whole_to_a_vm(sim: Callable[[str, str], Ran]) -> None:
    gpu = "0000:86:00.0"
    assert sim("install-host", "mixed").status == 0
    assert sim(f"set-mode {gpu} passthrough -y", "mixed").status == 0
    assert sim(f"create-vm render --mode passthrough --gpu {gpu}", "mixed").status == 0
    booted = sim("sim reboot", "mixed")
    assert booted.out.endswith("the boot unit set up 1 GPU and created 0 vGPUs again\n"), booted.err
    assert sim("restore-host", "mixed").out == "nothing to do\n"
    assert sim(f"show-gpu {gpu} --json", "mixed").document["data"]["vfs"]["enabled"] == 0
    assert sim("start-vm render", "mixed").status == 0


def test_a_gpu_that_vms_need_as_it_is_names_commands_that_keep_the_vms(sim: Callable[[str, str], Ran]) -> None:
    gpu = "0000:86:00.0"
    assert sim(f"create-vm web --mode sriov --gpu {gpu} --no-start", "mixed").status == 0
    refused = sim(f"set-mode {gpu} passthrough -y", "mixed")
    assert (refused.status, "delete" in refused.err) == (3, False)
    hint = refused.err.splitlines()[-1].strip()
    command = hint.removeprefix("hint: vgpuctl ").partition(" takes it from the VM")[0]
    assert command.startswith("detach-vgpu web --vgpu 0000:86:00.")
    assert sim(f"{command} -y", "mixed").status == 0
    assert sim(f"set-mode {gpu} passthrough -y", "mixed").status == 0
    assert "web,stopped" in sim("list-vms -o csv --columns name,state", "mixed").out.splitlines()
