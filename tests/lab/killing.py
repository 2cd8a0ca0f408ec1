"""Runs inside the lab: kills vgpuctl with SIGKILL at random times, runs reconcile, and checks what is left.

`python3 -m tests.lab.killing SEED COUNT FORM` prints one line of JSON for each kill. Each command is a fork of this
process, which has already imported all modules. The kills therefore hit the command's work, not the start of Python.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import random
import select
import signal
import subprocess
import sys
import time
import traceback
import tty
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.command_cases import CASES, Kill

VM, OTHERS = "vm", ("vm-2", "vm-3")
AT_ONCE = ["three operations at once"]
PROFILES = ("A100-4C", "A100-5C")
PLAIN = "0000:02:00.0"
"""A PCI function with plain VFs, for set-mode."""
NVIDIA = "0000:01:00.0"
"""The GPU. sriov-manage enables and disables its VFs."""

FIRST_GUESS_SECONDS, LONG_GUESS_SECONDS = 6.0, 20.0
"""At least as long as a change takes: with a shorter guess its end is never hit, with a longer one it runs again."""
MARGIN = 1.1
MOST_TRIES = 20
"""So often may a command end before its kill; then the command does not change what it should."""
PATIENCE_SECONDS = 240.0
IMAGES, TINY = Path("/var/lib/libvirt/images"), "tiny.qcow2"
SETTLE_SECONDS = 30.0
"""A guest shuts down within this time after the request."""
DRAINED = Path("/run/vgpuctl/drained")
OPERATION_FILES = Path("/run/vgpuctl/operations")
CLAIMS, MDEVS, PCI = Path("/run/vgpuctl/claims"), Path("/sys/bus/mdev/devices"), Path("/sys/bus/pci/devices")


class Operation(NamedTuple):
    """A command to kill. `words` prepares the host for the command and returns the command line.

    `guess`: how long the change may take, until it is measured. `runs`: the VM runs before the command and must run
    after it. `not_in`: the forms of the GPU in which the command changes nothing.
    """

    name: str
    words: Callable[[random.Random], list[str]]
    guess: float = FIRST_GUESS_SECONDS
    runs: bool = False
    not_in: tuple[str, ...] = ()


# ------------------------------------------------------------------ commands


def forked(words: list[str], out: int) -> int:
    """Start a vgpuctl command in a forked child process; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        os.dup2(out, 1)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        sys.argv = ["vgpuctl", "--json", "--yes", *words]
        from vgpuctl.cli.entry import main

        status = at_once() if words == AT_ONCE else main()
        sys.stdout.flush()
        os._exit(status)
    except BaseException:  # noqa: BLE001 - the parent sees the exit status alone
        traceback.print_exc()
    finally:
        os._exit(99)


def at_once() -> int:
    """Carry out three operations in three threads of this process: delete the VM, and create two others."""
    import vgpuctl as library

    def create_other(name: str) -> None:
        library.open_host().create_vm(name, profile=PROFILES[0], start=False)

    with ThreadPoolExecutor(3) as threads:
        done = [threads.submit(lambda: library.open_host().delete_vm(VM))]
        done += [threads.submit(create_other, name) for name in OTHERS]
    for each in done:
        each.result()
    print("{}")
    return 0


def vgpuctl(*words: str) -> tuple[int, dict[str, Any]]:
    """Run a command to its end; return its exit status and its JSON document."""
    read, write = os.pipe()
    pid = forked(list(words), write)
    os.close(write)
    with open(read, encoding="utf-8") as answer:
        text = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, json.loads(text)


def must(*words: str) -> Any:
    """Return the data of a command that succeeds; repeat it while it exits with 75 (try again later)."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        status, document = vgpuctl(*words)
        if status == 0:
            return document["data"]
        if status != 75 or time.monotonic() > until:
            raise SystemExit(f"{' '.join(words)}: {document}")
        time.sleep(0.2)


def killed_after(seconds: float, words: list[str]) -> tuple[bool, float]:
    """Kill a command `seconds` after its change began; return whether the kill ended it, and how long the change took.

    The change begins when the command writes its operation's file: what comes before it only reads.
    """
    devnull = os.open(os.devnull, os.O_WRONLY)
    started = time.monotonic()
    pid = forked(words, devnull)
    os.close(devnull)
    is_changing = False
    while not is_changing or time.monotonic() - started < seconds:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            if os.waitstatus_to_exitcode(status):
                raise SystemExit(f"{' '.join(words)} failed by itself: {vgpuctl(*words)}")
            return False, time.monotonic() - started
        if not is_changing and names(OPERATION_FILES):
            is_changing, started = True, time.monotonic()
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    return os.WIFSIGNALED(status), time.monotonic() - started


# -------------------------------------------------- the host before the kill


def have(vgpus: int, state: str = "stopped") -> list[dict[str, Any]]:
    """Ensure that the VM exists with this number of vGPUs and in this state (0: no VM); return its vGPUs."""
    exists = bool(must("list-vms"))
    if not vgpus or not exists:
        if exists:
            must("delete-vm", VM)
        if not vgpus:
            return []
        must("create-vm", VM, "--profile", PROFILES[0], "--no-start")
    vm = must("show-vm", VM)
    if vm["state"] != "stopped":
        must("stop-vm", VM, "--force")
    current = vm["vgpus"]
    if len(current) > vgpus:
        extra = [word for vgpu in current[vgpus:] for word in ("--vgpu", vgpu["carrier"])]
        must("detach-vgpu", VM, *extra)
    for _ in range(vgpus - len(current)):
        must("attach-vgpu", VM, "--profile", current[0]["profile"] if current else PROFILES[0])
    if state == "running":
        must("start-vm", VM)
    return list(must("show-vm", VM)["vgpus"])


def of_case(command: str, kill: Kill) -> Operation:
    """Return the operation of a line in `tests.command_cases`."""

    def words(chance: random.Random) -> list[str]:
        vgpus = have(kill.vgpus, kill.state)
        profile = vgpus[0]["profile"] if vgpus else PROFILES[0]
        values = {"profile": profile, "other": PROFILES[profile == PROFILES[0]], "image": str(IMAGES / TINY)}
        if vgpus:
            values["carrier"] = chance.choice(vgpus)["carrier"]
        if "{larger}" in kill.words:
            values["larger"] = f"{(must('show-vm', VM)['disks'][0]['size_bytes'] >> 20) + 1}MiB"
        if is_drained:
            wait_booted()
        return [command, VM, *kill.words.format(**values).split()]

    is_drained = "--drain" in kill.words
    name = f"{command}{' --drain' if is_drained else ''}{', running' if kill.state == 'running' else ''}"
    return Operation(name, words, LONG_GUESS_SECONDS if is_drained else FIRST_GUESS_SECONDS, runs=is_drained)


def wait_booted() -> None:
    """Wait until the guest's shell answers on its serial console: from then on it reacts to the power button."""
    result = subprocess.run(["virsh", "ttyconsole", VM], capture_output=True, text=True, check=True)
    line = os.open(result.stdout.strip(), os.O_RDWR | os.O_NOCTTY)
    tty.setraw(line)
    seen, until = b"", time.monotonic() + PATIENCE_SECONDS
    while b"booted-2" not in seen:
        if time.monotonic() > until:
            raise SystemExit(f"the guest does not answer: {seen[-1000:]!r}")
        os.write(line, b"\n echo booted-$((1+1))\n")
        while select.select([line], [], [], 2.0)[0] and b"booted-2" not in seen:
            seen += os.read(line, 65536)
    os.close(line)


def set_mode_nvidia(chance: random.Random) -> list[str]:
    """Enable or disable all VFs of the NVIDIA GPU with sriov-manage."""
    have(0)
    before, after = chance.sample(("vgpu", "passthrough"), 2)
    must("set-mode", NVIDIA, before)
    return ["set-mode", NVIDIA, after]


def set_mode(_chance: random.Random) -> list[str]:
    """Enable a different number of plain VFs."""
    number = int((PCI / PLAIN / "sriov_numvfs").read_text())
    return ["set-mode", PLAIN, "sriov", "--vfs", "2" if number != 2 else "3"]


def three(_chance: random.Random) -> list[str]:
    """Have the VM, and carry out three operations in one process."""
    for vm in must("list-vms"):
        if vm["name"] in OTHERS:
            must("delete-vm", vm["name"])
    (first,) = have(1)
    if first["profile"] != PROFILES[0]:
        must("set-vm", VM, "--profile", PROFILES[0])  # the GPU takes one size at a time
    return AT_ONCE


OPERATIONS = (
    *(of_case(command, kill) for command, case in CASES.items() for kill in case.kills),
    Operation("three operations of one process", three, 6.0),
    Operation("set-mode", set_mode),
    Operation("set-mode, sriov-manage", set_mode_nvidia, not_in=("mdev-pf",)),
)
"""All commands to kill."""


# ------------------------------------------------------ the host after it


def names(directory: Path) -> set[str]:
    """Return the names in a directory, or an empty set if the directory does not exist."""
    return set(os.listdir(directory)) if directory.is_dir() else set()


def devices() -> set[str]:
    """Return every vGPU in the kernel: mdevs, and VFs with a vGPU type."""
    typed = set()
    for file in PCI.glob("*/nvidia/current_vgpu_type"):
        with contextlib.suppress(OSError):
            if file.read_text().strip() != "0":
                typed.add(file.parts[-3])
    return names(MDEVS) | typed


def made_at_the_next_start(vms: list[dict[str, Any]]) -> list[str]:
    """Start and stop each stopped VM, as a start creates missing vGPUs; return the vGPUs that are still missing."""
    for vm in vms:
        if vm["state"] == "stopped":
            must("start-vm", vm["name"])
            must("stop-vm", vm["name"], "--force")
    seen = ((vm["name"], v) for vm in must("list-vms") for v in vm["vgpus"])
    return [f"vGPU {v['carrier']} of {name} is missing" for name, v in seen if not v["present"]]


def left_over() -> list[str]:
    """Return everything that is still wrong after reconcile: it has no owner, or it does not match its record."""
    wrong = [f"still to mend: {f}" for f in must("reconcile-host", "--dry-run")["findings"]]
    vms = must("list-vms")
    owned = {v["carrier"] for vm in vms for v in vm["vgpus"]}
    wrong += [f"VM {vm['name']} is {vm['ownership']}" for vm in vms if vm["ownership"] != "managed"]
    if any(not v["present"] for vm in vms for v in vm["vgpus"]):
        wrong += made_at_the_next_start(vms)
    wrong += [f"device {d}" for d in devices() ^ owned]
    wrong += [f"claim {c}" for c in names(CLAIMS) ^ owned]
    wrong += [f"operation {o}" for o in names(OPERATION_FILES)]
    disks = names(IMAGES) - {TINY}
    if len(disks) != len(vms):
        wrong.append(f"disks {sorted(disks)} of {len(vms)} VMs")
    return wrong


def after_kernel_writes() -> list[str]:
    """Wait for a kernel write that outlives the killed command: reconcile leaves its GPU alone. Return the findings."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        findings = [f["kind"] for f in must("reconcile-host", "--dry-run")["findings"]]
        if "stuck-write" not in findings or time.monotonic() > until:
            return findings
        time.sleep(0.5)


def started_again() -> list[str]:
    """Wait for a guest shutdown that began before the kill, let reconcile start the VM, and return its findings."""
    until = time.monotonic() + SETTLE_SECONDS
    while names(DRAINED) and time.monotonic() < until:
        if must("show-vm", VM)["state"] == "stopped":
            return [f["kind"] for f in must("reconcile-host")["findings"]]
        time.sleep(0.5)
    return []


def settled_state() -> str:
    """Return the VM's state after libvirt has started it. Until then it is paused: a minute on a busy machine."""
    until = time.monotonic() + PATIENCE_SECONDS
    while (state := str(must("show-vm", VM)["state"])) == "paused" and time.monotonic() < until:
        time.sleep(0.5)
    return state


def one(operation: Operation, longest: dict[str, float], chance: random.Random) -> dict[str, Any]:
    """Kill one operation, run reconcile, and check the host."""
    words = operation.words(chance)
    kill_time = chance.uniform(0, MARGIN * longest.get(operation.name, operation.guess))
    killed, duration = killed_after(kill_time, words)
    if not killed:
        longest[operation.name] = duration
    findings = after_kernel_writes()
    must("reconcile-host")
    if operation.runs:
        findings += started_again()
    left = left_over()
    if operation.runs and (state := settled_state()) != "running":
        left.append(f"VM {VM} is {state}, and should run")
    if words == AT_ONCE:
        for vm in must("list-vms"):
            must("delete-vm", vm["name"])
    if words[0] == "set-mode":
        must(*words)
    if words[:2] == ["set-mode", NVIDIA]:
        must("set-mode", NVIDIA, "vgpu")
    return {"operation": operation.name, "killed": killed, "seconds": duration, "findings": findings, "left": left}


def main(seed: int, count: int, form: str) -> int:
    """Print one line for each kill. Each round runs every operation once, in a new random order.

    Raises SystemExit when an operation ends by itself time after time.
    """
    import libvirt  # noqa: F401 - so that every fork has it already

    import vgpuctl

    for module in pkgutil.walk_packages(vgpuctl.__path__, "vgpuctl."):
        if "__main__" not in module.name and ".sim" not in module.name:
            importlib.import_module(module.name)
    chance = random.Random(seed)
    longest: dict[str, float] = {}
    done = 0
    possible = [operation for operation in OPERATIONS if form not in operation.not_in]
    while done < count:
        for operation in chance.sample(possible, len(possible))[: count - done]:
            for _ in range(MOST_TRIES):  # a command can end before its kill
                result = one(operation, longest, chance)
                if result["killed"] or result["left"]:
                    break
            else:
                raise SystemExit(f"{operation.name} was not killed in {MOST_TRIES} tries")
            print(json.dumps(result), flush=True)
            done += 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
