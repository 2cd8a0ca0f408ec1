# SPDX-License-Identifier: Apache-2.0
"""Run playbooks on simulated hosts, each with its own state, and read the result of every task."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANSIBLE = ROOT / ".venv-ansible/bin"
OLDEST_ANSIBLE = ROOT / ".venv-ansible-2.18/bin"
PROGRAMS = ROOT / ".venv/bin"
Task = Mapping[str, Any]


@dataclass(frozen=True)
class Done:
    """The result of one task on one host."""

    host: str
    task: str
    status: str
    result: dict[str, Any]

    @property
    def changed(self) -> bool:
        """Whether the task reports a change."""
        return bool(self.result.get("changed"))


@dataclass(frozen=True)
class Ran:
    """The result of a playbook: its exit status, its output, and each task."""

    status: int
    output: str
    tasks: tuple[Done, ...]

    def named(self, task: str) -> list[Done]:
        """Return the results of the task with that name, sorted by host."""
        return sorted((t for t in self.tasks if t.task == task), key=lambda done: done.host)

    @property
    def changed(self) -> list[tuple[str, str]]:
        """The hosts and tasks that changed something."""
        return [(t.host, t.task) for t in self.tasks if t.changed]

    @property
    def failed(self) -> list[Done]:
        """The tasks that failed, or whose host was unreachable."""
        return [t for t in self.tasks if t.status in ("failed", "unreachable")]


@dataclass
class Site:
    """Simulated hosts by their inventory names. They write only below `directory`.

    `ansible` is the directory of Ansible's programs; `program` is the hosts' vgpuctl.
    """

    directory: Path
    hosts: Mapping[str, str]
    ansible: Path = ANSIBLE
    program: Path = PROGRAMS / "vgpuctl"

    def environment(self, host: str) -> dict[str, str]:
        """Return the environment that points vgpuctl at that host."""
        return {"VGPUCTL_HOST": f"sim:{self.hosts[host]}", "XDG_STATE_HOME": str(self.directory / "state" / host)}

    def inventory(self) -> Path:
        """Write the inventory, and return its path."""
        path = self.directory / "inventory.json"
        local = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
        hosts = {name: {**local, "vgpuctl_environment": self.environment(name)} for name in self.hosts}
        path.write_text(json.dumps({"gpu_hosts": {"hosts": hosts}}))
        return path

    def vgpuctl(self, host: str, *words: str) -> dict[str, Any]:
        """Run vgpuctl on a host and return its document."""
        ran = subprocess.run(
            [self.program, "--json", "--yes", *words],
            env={**os.environ, **self.environment(host)},
            capture_output=True,
            text=True,
            check=False,
        )
        return json.loads(ran.stdout)

    def play(self, *tasks: Task, arguments: Sequence[str] = (), forks: int = 5) -> Ran:
        """Run these tasks on every host."""
        play = {
            "hosts": "gpu_hosts",
            "gather_facts": False,
            "environment": "{{ vgpuctl_environment }}",
            "module_defaults": {"group/vgpuctl.vgpuctl.vgpuctl": {"executable": str(self.program)}},
            "tasks": list(tasks),
        }
        path = self.directory / "play.yml"
        path.write_text(json.dumps([play]))
        return self.playbook(path, arguments=("--forks", str(forks), *arguments))

    def playbook(self, path: Path, arguments: Sequence[str] = ()) -> Ran:
        """Run a playbook."""
        return played(self.directory, self.inventory(), path, arguments, ansible=self.ansible)


def played(
    directory: Path,
    inventory: Path,
    path: Path,
    arguments: Sequence[str] = (),
    inside: Sequence[str] = (),
    ansible: Path = ANSIBLE,
    **more: str,
) -> Ran:
    """Run a playbook on an inventory's hosts; `more` adds environment variables for Ansible.

    `inside` is a command prefix that enters namespaces. `ansible` is the directory of Ansible's programs.
    """
    with tempfile.NamedTemporaryFile(dir=directory, prefix="results-", mode="r") as results:
        ran = subprocess.run(
            [*inside, ansible / "ansible-playbook", "-i", inventory, path, *arguments],
            env=ansible_environment(directory, VGPUCTL_RESULTS=results.name, **more),
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in results]
    tasks = tuple(Done(line["host"], line["task"], line["status"], line["result"]) for line in lines)
    return Ran(ran.returncode, ran.stdout + ran.stderr, tasks)


def ansible_environment(directory: Path, **more: str) -> dict[str, str]:
    """Return an environment in which Ansible uses this checkout's collection and writes only below `directory`."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ANSIBLE_", "VGPUCTL_"))}
    return {
        **inherited,
        "PATH": f"{ANSIBLE}:{inherited['PATH']}",
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "ansible"),
        "ANSIBLE_CALLBACK_PLUGINS": str(Path(__file__).parent / "callbacks"),
        "ANSIBLE_CALLBACKS_ENABLED": "results",
        "ANSIBLE_HOME": str(directory / "ansible-home"),
        "ANSIBLE_LOCAL_TEMP": str(directory / "tmp"),
        "ANSIBLE_REMOTE_TEMP": str(directory / "tmp"),
        "ANSIBLE_NOCOWS": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "0",
        "LC_ALL": "C.UTF-8",
        **more,
    }
