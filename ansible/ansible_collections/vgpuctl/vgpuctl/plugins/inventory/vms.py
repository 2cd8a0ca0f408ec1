# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""VMs as hosts of an inventory: what `vgpuctl list-vms` and `list-gpus` say, on this machine or over ssh."""

from __future__ import annotations

DOCUMENTATION = r"""
name: vms
short_description: The VMs of GPU hosts, with their GPUs as variables
version_added: 0.1.0
author:
  - the vgpuctl project (!UNKNOWN)
description:
  - Runs vgpuctl on each GPU host to list its VMs and GPUs. Each VM is a host of the inventory.
  - VMs are in the groups C(profile_PROFILE), C(model_MODEL), C(host_HOST) and C(state_STATE), and more by O(groups) and
    O(keyed_groups).
  - Each VM has the variables C(vgpuctl_host), C(vgpuctl_name), C(vgpuctl_uuid), C(vgpuctl_state), C(vgpuctl_ownership),
    C(vgpuctl_owner), C(vgpuctl_labels), C(vgpuctl_memory_mib), C(vgpuctl_vcpus), C(vgpuctl_vgpus), C(vgpuctl_profiles),
    and C(vgpuctl_gpus), the entries of C(list-gpus) for the GPUs of its vGPUs, without their vGPUs.
  - A C({) in a VM's name becomes an underscore in the inventory, so that no name is a template.
  - A GPU host that does not answer causes a warning; the other hosts are still used. 32 hosts are queried at a time.
  - The result is cached only if every host answered; otherwise all are queried again the next time.
extends_documentation_fragment:
  - constructed
  - inventory_cache
options:
  plugin:
    description: This plugin.
    type: str
    required: true
    choices: [vgpuctl.vgpuctl.vms]
  hosts:
    description:
      - The GPU hosts. V(localhost) is this machine. Any other host is reached with C(ssh) and this user's OpenSSH
        configuration; its key must be in known_hosts. Only these hosts need vgpuctl, not the machine that runs Ansible.
      - A user there who is not root needs the host agent, and to be in one of its groups. A key that
        C(command="vgpuctl agent dial",restrict) limits to it is enough.
    type: list
    elements: str
    default: [localhost]
  executable:
    description: The path of vgpuctl on each host.
    type: str
    default: vgpuctl
  unmanaged:
    description: Also VMs that vgpuctl did not create.
    type: bool
    default: false
  environment:
    description: Variables to add to the environment of vgpuctl on V(localhost).
    type: dict
    default: {}
  deadline:
    description: The time limit in seconds for each answer of a GPU host.
    type: int
    default: 60
"""

EXAMPLES = r"""
# desktops.vgpuctl.yml
plugin: vgpuctl.vgpuctl.vms
hosts: [gpu-1.example.com, gpu-2.example.com]
cache: true
compose:
  ansible_host: vgpuctl_name ~ '.desktops.example.com'
keyed_groups:
  - key: vgpuctl_vcpus | string
    prefix: vcpus
groups:
  running: vgpuctl_state == 'running'
"""

import json
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible.utils.unsafe_proxy import wrap_var

SCHEMA = "vgpuctl/1"
ENDINGS = ("vgpuctl.yml", "vgpuctl.yaml")
AT_A_TIME = 32
FACTS = ("name", "uuid", "state", "ownership", "owner", "labels", "memory_mib", "vcpus", "vgpus")


class Unanswered(Exception):
    """A GPU host did not list its VMs; the text has the reason."""


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """VMs as hosts."""

    NAME = "vgpuctl.vgpuctl.vms"

    def verify_file(self, path: str) -> bool:
        """Say whether a file's name is one of this plugin's."""
        return super().verify_file(path) and path.endswith(ENDINGS)

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Add the VMs of every GPU host, as they are now or as the cache has them."""
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        self.load_cache_plugin()
        key = self.get_cache_key(path)
        wanted = self.get_option("cache")
        hosts = set(self.get_option("hosts"))
        found = self._cache.get(key) if wanted and cache else None
        if found is None or set(found) != hosts:
            found = self._asked()
            if wanted:
                self._cache[key] = found if set(found) == hosts else None
        for host, said in found.items():
            for vm in said["vms"]:
                if vm["ownership"] != "unmanaged" or self.get_option("unmanaged"):
                    self._add(host, vm, said["gpus"])

    def _asked(self) -> dict[str, Any]:
        """Return each GPU host that answers, with its VMs and GPUs."""
        hosts = self.get_option("hosts")
        with ThreadPoolExecutor(AT_A_TIME) as crowd:
            answers = dict(zip(hosts, crowd.map(self._answer, hosts)))
        silent = {host: why for host, why in answers.items() if isinstance(why, Unanswered)}
        for host, why in silent.items():
            self.display.warning(f"vgpuctl.vgpuctl.vms: {host}: {why}")
        if hosts and len(silent) == len(answers):
            raise AnsibleError("vgpuctl.vgpuctl.vms: no GPU host answered; the warnings above say why")
        return {host: said for host, said in answers.items() if host not in silent}

    def _answer(self, host: str) -> dict[str, Any] | Unanswered:
        """Return what a GPU host says, or why it does not."""
        try:
            return {"vms": self._ask(host, "list-vms"), "gpus": self._ask(host, "list-gpus")}
        except Unanswered as error:
            return error

    def _ask(self, host: str, command: str) -> Any:
        """Run a command of vgpuctl on a GPU host and return its data.

        A restricted key makes `vgpuctl agent dial` of it: that reads the request, which the command itself ignores.
        """
        words = [self.get_option("executable"), "--json", command]
        environment = {**os.environ, **{k: str(v) for k, v in self.get_option("environment").items()}}
        if host != "localhost":
            words = ["ssh", "-o", "BatchMode=yes", "--", host, shlex.join(words)]
        try:
            ran = subprocess.run(  # noqa: S603 - a list of words, no shell here
                words,
                env=environment,
                input=f"GET /v1/{command} HTTP/1.0\r\n\r\n".encode(),
                capture_output=True,
                check=False,
                timeout=self.get_option("deadline"),
            )
        except subprocess.TimeoutExpired as error:
            raise Unanswered(f"no answer within {error.timeout:g} s") from error
        except OSError as error:
            raise Unanswered(f"{words[0]}: {error.strerror}") from error
        try:
            is_http = ran.stdout.startswith(b"HTTP/1.")
            document = json.loads(ran.stdout.partition(b"\r\n\r\n")[2] if is_http else ran.stdout)
        except ValueError as error:
            said = ran.stderr.decode(errors="replace").strip()[-500:]
            raise Unanswered(f"{command} printed no JSON: {said}") from error
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise Unanswered(f"{command} printed no document of {SCHEMA}: it is another version")
        if "error" in document:
            raise Unanswered(f"{document['error']['message']} [{document['error']['code']}]")
        return document["data"]

    def _add(self, host: str, vm: dict[str, Any], gpus: list[dict[str, Any]]) -> None:
        """Add one VM with its variables, whose texts are never templates, and groups.

        A VM whose name another host already has gets its host's name appended.
        """
        called = vm["name"].replace("{", "_")
        name = called if called not in self.inventory.hosts else f"{called}.{host}"
        addresses = {vgpu["gpu"] for vgpu in vm["vgpus"]}
        on = [{k: v for k, v in gpu.items() if k != "vgpus"} for gpu in gpus if gpu["address"] in addresses]
        profiles = sorted({vgpu["profile"] for vgpu in vm["vgpus"] if vgpu["profile"]})
        variables = {f"vgpuctl_{key}": vm[key] for key in FACTS if key in vm}
        said = wrap_var({**variables, "vgpuctl_gpus": on, "vgpuctl_profiles": profiles})
        variables = {"vgpuctl_host": host, **said}
        self.inventory.add_host(name)
        for key, value in variables.items():
            self.inventory.set_variable(name, key, value)
        groups = [f"profile_{p}" for p in profiles] + [f"model_{gpu['model']}" for gpu in on]
        for group in (*groups, f"host_{host}", f"state_{vm['state']}"):
            self.inventory.add_child(self.inventory.add_group(self._sanitize_group_name(group)), name)
        strict = self.get_option("strict")
        self._set_composite_vars(self.get_option("compose"), variables, name, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), variables, name, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, name, strict=strict)
