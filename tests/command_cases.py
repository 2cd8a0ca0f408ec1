# SPDX-License-Identifier: Apache-2.0
"""One line for each command, which the tests of all commands read: a command line that works, and where.

Whether a command has a dry run, changes the host and so needs root, or takes several VMs, follows from its options.
`tests/unit/cli/test_commands.py` fails when a command has no line. It is read in the lab too, without pytest.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

GPU = "0000:3b:00.0"
IMAGE = "/srv/images/ubuntu-24.04.qcow2"
MANIFEST = Path(__file__).parent / "data/job.yaml"
CALL = Path(__file__).parent / "data/migration-call.json"


class Kill(NamedTuple):
    """What `tests.lab.killing` kills at random instants: the command on a VM with so many vGPUs, in this state.

    `words` follow the VM's name. {profile}, {carrier}: of one of its vGPUs. {other}: another profile. {image}: one that
    its disk can be cloned from. {larger}: a size for its disk. With --drain it runs again afterwards.
    """

    words: str = ""
    vgpus: int = 1
    state: str = "stopped"


class CommandCase(NamedTuple):
    """One command. `words`: what follows its name on the simulated host `host`.

    There {vm} runs and {off} is off. On `mixed` {cloned} runs with a clone of IMAGE, the vGPU `lab` has no VM, and all
    A16 are cordoned. {spec} is a file with a VM's spec, {manifest} one with a pod, {call} one with a call
    of a move. `more`: other words, for the tests without root and with damaged records.
    `fast`: it imports nothing heavy (`tests/unit/cli/test_startup.py`). `kills`: for the lab.
    """

    words: str = ""
    more: tuple[str, ...] = ()
    host: str = "mixed"
    fast: bool = False
    kills: tuple[Kill, ...] = ()


VM = "{vm}"
AGENTS = ("allow-logon", "message-vm", "shutdown-in")
"""Commands that only an agent can carry out: it has the channels to the helpers in guests."""
CASES = {
    "list-gpus": CommandCase(fast=True),
    "show-gpu": CommandCase(GPU, fast=True),
    "set-mode": CommandCase("0000:86:00.0 sriov --vfs 4"),
    "set-mig": CommandCase(f"{GPU} --for H100-1-10C:4 --drain", host="h100-mig"),
    "set-mixed-size": CommandCase(f"{GPU} off --drain", host="rtx-pro-6000"),
    "set-scheduler": CommandCase(f"{GPU} --policy equal_share --drain", host="t4"),
    "cordon": CommandCase(GPU),
    "uncordon": CommandCase("A16"),
    "create-vm": CommandCase(
        "new --profile A100-4C",
        ("'new-{{}}' --profile A100-4C --count 3",),
        kills=(Kill("--profile {profile} --no-start", 0),),
    ),
    "ensure-vm": CommandCase("-f {spec}"),
    "list-vms": CommandCase(fast=True),
    "show-vm": CommandCase(VM, fast=True),
    "start-vm": CommandCase("{off}", fast=True),
    "stop-vm": CommandCase("{vm} --force", (VM,), fast=True),
    "save-vm": CommandCase(VM, fast=True),
    "reboot-vm": CommandCase(VM, fast=True),
    "delete-vm": CommandCase(VM, fast=True, kills=(Kill(),)),
    "refresh-vm": CommandCase(
        f"{{cloned}} --image {IMAGE} --drain",
        kills=(Kill("--image {image}"), Kill("--image {image} --drain", 1, "running")),
    ),
    "prepare-vm": CommandCase("{cloned} --drain", kills=(Kill("--drain", 1, "running"),)),
    "migrate-vm": CommandCase("{cloned} --to sim:a100-40 --copy-storage --insecure-network"),
    "end-migration": CommandCase(f"{VM} --with sim:a100-40"),
    "adopt": CommandCase("old-desktop", ("old-desktop --release", VM)),
    "attach-vgpu": CommandCase(
        "{off} --profile A100-4C", kills=(Kill("--profile {profile}"), Kill("--profile {profile}", 1, "running"))
    ),
    "detach-vgpu": CommandCase("{off} --vgpu 0000:3b:00.5", (VM,), kills=(Kill("--vgpu {carrier}", 2),)),
    "attach-gpu": CommandCase("{off} --gpus 2", host="h100-pcie-x8"),
    "detach-gpu": CommandCase("{off} --gpu 0000:3d:00.0", host="h100-pcie-x8"),
    "resize-disk": CommandCase("{cloned} 300GiB", kills=(Kill("{larger} --disk vda"),)),
    "set-vm": CommandCase(
        "{vm} --profile A100-4C:2 --memory 8GiB --label a=b --drain",
        ("{vm} --profile A100-8C --drain", "{vm} --label a=b --owner ada"),
        kills=(Kill("--profile {other}"),),
    ),
    "import-vm": CommandCase("{spec}"),
    "wait": CommandCase("{vm} --for running", ("{vm} --for guest --timeout 0",), fast=True),
    "show-console": CommandCase(VM, fast=True),
    "show-address": CommandCase("{cloned}"),
    "list-images": CommandCase(more=("--disks",)),
    "list-deleted": CommandCase(),
    "restore-disk": CommandCase("cad-07"),
    "purge-deleted": CommandCase("cad-07", ("--expired", "--all")),
    "message-vm": CommandCase("{vm} --text hello"),
    "shutdown-in": CommandCase("{vm} --minutes 5", ("{vm} --cancel",)),
    "allow-logon": CommandCase("{vm} --user alice"),
    "refresh-license": CommandCase(VM),
    "print-helper": CommandCase("", ("--os windows",)),
    "create-vgpu": CommandCase("new --profile A100-4C"),
    "ensure-vgpu": CommandCase("new --profile A100-4C"),
    "delete-vgpu": CommandCase("lab"),
    "list-vgpus": CommandCase(fast=True),
    "list-profiles": CommandCase(fast=True),
    "explain": CommandCase("A100-4C"),
    "fits": CommandCase("--profile A100-4C:2"),
    "plan-moves": CommandCase("--defragment", ("--profile A100-40C",)),
    "advise": CommandCase("--workload cad"),
    "move-vms": CommandCase("--defragment"),
    "apply": CommandCase(f"--set 'gpus[{GPU}].reserved_for=vdi-*'"),
    "diff": CommandCase(),
    "export": CommandCase(),
    "import": CommandCase("{spec}"),
    "import-job": CommandCase("{manifest}"),
    "capacity": CommandCase("", (VM,)),
    "doctor": CommandCase("--fix"),
    "log": CommandCase(fast=True),
    "reconcile-host": CommandCase(),
    "restore-host": CommandCase(),
    "migration-call": CommandCase("{call}"),
    "install-host": CommandCase(),
    "uninstall-host": CommandCase(),
    "completion": CommandCase("bash"),
    "top": CommandCase("--once"),
    "events": CommandCase(),
    "monitoring": CommandCase("--print rules"),
}
"""By the command's name, in the order of `--help`; the commands of `agent` and `sim` have tests of their own."""


def lines(command: str, vm: str, *, off: str | None = None, cloned: str | None = None, spec: object = "-") -> list[str]:
    """Return the command lines of a command with these VMs in them; without `off` and `cloned` all are one VM."""
    case = CASES[command]
    texts = (case.words, *case.more)
    names = {"vm": vm, "off": off or vm, "cloned": cloned or vm, "spec": spec}
    names |= {"manifest": MANIFEST, "call": CALL}
    return [f"{command} {text.format(**names)}".strip() for text in texts]
