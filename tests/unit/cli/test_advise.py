# SPDX-License-Identifier: Apache-2.0
"""`advise --workload`: its commands run as they are shown, and GPUs that cannot do something say what they lack."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

import vgpuctl
from tests.unit.cli.conftest import Run
from vgpuctl.config.arguments import WORKLOADS
from vgpuctl.value import replace

HOSTS = ("a16", "h100-mig", "rtx-pro-6000", "mixed", "ascend", "empty")


def advice(sim: Run, host: str, workload: str) -> dict[str, dict[str, Any]]:
    """Return the techniques by name."""
    data = sim(f"advise --workload {workload} --json", host).document["data"]
    return {technique["technique"]: technique for technique in data["techniques"]}


@pytest.mark.parametrize("host", HOSTS)
def test_each_command_runs_as_it_is_shown(sim: Run, host: str) -> None:
    tried: set[tuple[str, ...]] = set()
    for workload in ("office", "inference"):
        for technique in advice(sim, host, workload).values():
            for gpu in technique["gpus"]:
                assert bool(gpu["lacks"]) is not bool(gpu["commands"])
                commands = tuple(gpu["commands"])
                alike = tuple(command.replace(gpu["address"], gpu["model"]) for command in commands)
                if alike in tried or gpu["notes"]:
                    continue
                tried.add(alike)
                for command in commands:
                    ran = sim(f"{command.removeprefix('vgpuctl ')} --yes", host)
                    assert ran.status == 0, f"{technique['technique']}: {command}: {ran.err}"
                assert sim("sim reset --yes", host).status == 0
    assert tried or host == "empty"


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_page_has_every_technique_and_says_who_chooses(sim: Run, workload: str) -> None:
    ran = sim(f"advise --workload {workload}", "mixed")
    assert ran.status == 0
    assert all(name in ran.out for name in advice(sim, "mixed", workload))
    assert "vgpuctl never turns MIG" in ran.out + ran.err


@pytest.mark.parametrize(
    ("host", "workload", "technique", "address", "lack"),
    [
        ("a16", "inference", "mig-backed", "0000:3b:00.0", "it has no MIG, or NVML does not report it"),
        ("a100-40", "office", "vgpu-equal-share", "0000:3b:00.0", "none of its profiles is of series B or Q or A"),
        ("a100-40", "inference", "mig-backed-shared", "0000:3b:00.0", "no profile of it is known to share"),
        ("a100-40", "inference", "virtio-gpu", "0000:3b:00.0", "its driver (nvidia) has no render node"),
        ("mixed", "cad", "vgpu-best-effort", "0000:d8:00.0", "its driver makes no vGPUs (vfio-pci)"),
        ("mixed", "inference", "mps-in-guest", "0000:86:00.0", "only for NVIDIA's GPUs"),
    ],
)  # fmt: skip
def test_a_gpu_that_cannot_says_what_it_lacks(
    sim: Run, host: str, workload: str, technique: str, address: str, lack: str
) -> None:
    gpus = {gpu["address"]: gpu for gpu in advice(sim, host, workload)[technique]["gpus"]}
    assert gpus[address]["lacks"][0].startswith(lack)
    assert gpus[address]["commands"] == []


def test_mig_is_never_chosen_because_the_card_has_it(sim: Run) -> None:
    """A GPU with MIG off stays as it is for every technique but those of MIG."""
    for workload in WORKLOADS:
        for name, technique in advice(sim, "a100-40", workload).items():
            commands = [command for gpu in technique["gpus"] for command in gpu["commands"]]
            assert any("set-mig" in command for command in commands) is (name == "mig-backed" and commands != [])


def test_only_a_shared_gpu_instance_gets_a_profile_of_which_several_fit(sim: Run) -> None:
    techniques = advice(sim, "rtx-pro-6000", "inference")
    commands = {name: techniques[name]["gpus"][0]["commands"][-1] for name in ("mig-backed", "mig-backed-shared")}
    assert "--profile DC-1-24C " in commands["mig-backed"]
    assert "--profile DC-1-12C " in commands["mig-backed-shared"]


def test_what_must_go_first_is_named_and_a_taken_name_is_not_used(sim: Run) -> None:
    assert sim("create-vm inference-1 --profile A100-4C").status == 0
    gpu = advice(sim, "a100-40", "inference")["vgpu-fixed-share"]["gpus"][0]
    assert gpu["notes"] == ["1 vGPU on it must go first: inference-1"]
    assert "create-vm inference-2 --profile A100-10C" in gpu["commands"][-1]
    other_size = advice(sim, "a100-40", "inference")["vgpu-best-effort"]["gpus"][0]
    assert other_size["notes"] == ["no room for A100-10C now: vgpuctl explain A100-10C"]


@pytest.mark.parametrize(
    ("host", "address", "change", "degrees"),
    [
        ("a100-40", "0000:3b:00.0", "", ("full", "none", "partial")),
        ("a100-40", "0000:3b:00.0", "set-scheduler A100 --policy fixed_share", ("full", "partial", "partial")),
        ("h100-mig", "0000:3b:00.0", "", ("full", "full", "full")),
        ("rtx-pro-6000", "0000:3b:00.0", "set-mig 0000:3b:00.0 --for DC-1-12C:8", ("full", "partial", "partial")),
        ("mixed", "0000:d8:00.0", "", ("full", "full", "full")),
        ("mixed", "0000:86:00.0", "", ("full", "partial", "partial")),
        ("mixed", "0000:17:00.0", "", None),
        ("ascend", "0000:3b:00.0", "", ("full", "partial", "partial")),
    ],
)
def test_show_gpu_tells_how_far_vms_are_kept_apart(
    sim: Run, host: str, address: str, change: str, degrees: tuple[str, ...] | None
) -> None:
    if change:
        assert sim(change, host).status == 0
    isolation = sim(f"show-gpu {address} --json", host).document["data"]["isolation"]
    assert (None if isolation is None else tuple(part["degree"] for part in isolation.values())) == degrees
    lines = sim(f"show-gpu {address}", host).out.splitlines()
    assert sum("isolation:" in line for line in lines) == (0 if degrees is None else 3)


@pytest.mark.parametrize(
    ("host", "prepare", "technique", "wanted"),
    [
        ("rtx-pro-6000", "set-mixed-size 0000:3b:00.0 on", "vgpu-fixed-share",
         ("set-mixed-size 0000:3b:00.0 off", "set-scheduler 0000:3b:00.0 --policy fixed_share")),
        ("rtx-pro-6000", "set-scheduler 0000:3b:00.0 --policy fixed_share", "vgpu-mixed-size",
         ("set-scheduler 0000:3b:00.0 --policy equal_share", "set-mixed-size 0000:3b:00.0 on")),
        ("a100-40", "set-mode 0000:3b:00.0 unmanaged", "vgpu-best-effort", ("set-mode 0000:3b:00.0 vgpu",)),
        ("a100-40", "set-scheduler A100 --policy equal_share", "vgpu-equal-share", ()),
        ("a100-40", "apply --yes --set 'gpus[A100].profiles=A100-20C'", "vgpu-best-effort", ("--profile A100-20C",)),
        ("h100-mig", "cordon 0000:3f:00.0", "mig-backed", ("create-vm inference-1 --profile H100-1-10C",)),
    ],
)  # fmt: skip
def test_a_gpu_that_is_set_up_otherwise_is_changed_as_far_as_it_must(
    sim: Run, host: str, prepare: str, technique: str, wanted: tuple[str, ...]
) -> None:
    assert sim(prepare, host).status == 0
    commands = advice(sim, host, "inference")[technique]["gpus"][0]["commands"]
    assert all(text in command for text, command in zip(wanted, commands, strict=False))
    assert len(commands) == len([text for text in wanted if text.startswith("set-")]) + 1
    for command in commands:
        ran = sim(f"{command.removeprefix('vgpuctl ')} --yes", host)
        assert ran.status == 0, f"{command}: {ran.err}"


def test_a_gpu_that_takes_nothing_new_says_so(sim: Run) -> None:
    assert sim("cordon A100").status == 0
    assert sim("apply --yes --set 'gpus[A100].reserved_for=vdi-*'").status == 0
    assert advice(sim, "a100-40", "inference")["vgpu-best-effort"]["gpus"][0]["notes"] == [
        "no room for A100-10C now: vgpuctl explain A100-10C",
        "it is cordoned: vgpuctl uncordon 0000:3b:00.0",
        "host.yaml reserves it for VMs named vdi-*",
    ]


def test_the_page_is_for_its_owner_alone_and_replaces_the_older_one(tmp_path: Path, sim: Run) -> None:
    page = tmp_path / "use.html"
    page.write_text("older")
    without = sim(f"advise --html {page}", "l40s-x4")
    assert (without.status, page.read_text()) == (6, "older")
    assert "the host agent keeps it" in without.err
    host = vgpuctl.open_host("sim:l40s-x4")
    host.create_vm("a", profile="L40S-4Q")
    history = host._ports.usage_history
    assert history is not None
    history.add(host.top().data)
    history.flush()
    ran = sim(f"advise --html {page}", "l40s-x4")
    assert (ran.status, ran.out) == (0, f"wrote {page}\n")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert sim(f"advise --html {tmp_path}/none/x.html", "l40s-x4").status != 0
    (tmp_path / "link").symlink_to(page)
    assert "is not a regular file" in sim(f"advise --html {tmp_path}/link", "l40s-x4").err
    assert (tmp_path / "link").is_symlink()
    assert sim("advise --workload cad --by team", "l40s-x4").status == 2
    shown = sim("advise --by team", "l40s-x4").out
    assert "L40S-4Q" in shown
    assert "GIB-HOURS GIVEN" in shown


def test_advice_is_followed_when_each_vm_is_next_off(sim: Run, tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text(
        'version: 1\ngpus: [{model: L40S, count: 2}]\nnvidia: {guest_driver: "550.90.07"}\n'
    )
    name_of_host = str(tmp_path / "host.yaml")
    host = vgpuctl.open_host(f"sim:{name_of_host}")
    for name in ("on", "off", "fits"):
        host.create_vm(name, profile="L40S-8Q")
    history, usage = host._ports.usage_history, host.top().data
    assert history is not None
    used = {"on": 1 << 30, "off": 1 << 30, "fits": 6 << 30}
    rows = [row for row in usage.vgpus if row.vm in used]
    template = next(row.use for row in rows if row.use is not None)
    for day in range(12):
        for hour in range(24):
            busy = [replace(row, use=replace(template, memory_used_bytes=used[row.vm or ""])) for row in rows]
            for second in range(0, 240, 60):
                time = usage.time - (12 - day) * 86400 + hour * 3600 + second
                history.add(replace(usage, time=time, vgpus=tuple(busy)))
    history.flush()
    host.stop_vm("off")
    ran = sim("advise --apply", name_of_host)
    assert ran.status == 0, ran.err
    host = vgpuctl.open_host(f"sim:{name_of_host}")
    vms = {name: host.show_vm(name).data for name in used}
    assert {name: vm.planned for name, vm in vms.items()} == {"on": {"profile": "L40S-2Q"}, "off": {}, "fits": {}}
    assert [vm.vgpus[0].profile for vm in vms.values()] == ["L40S-8Q", "L40S-2Q", "L40S-8Q"]
    assert "L40S-2Q (planned)" in sim("advise", name_of_host).out
    assert sim("advise --apply --by team", name_of_host).status == 2
    again = sim("advise --apply", name_of_host)
    assert (again.status, again.out.splitlines()[-1]) == (0, "0 changed"), "nothing is left to plan"
