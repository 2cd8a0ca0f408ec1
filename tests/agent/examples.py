# SPDX-License-Identifier: Apache-2.0
"""One example request for each call of the API: docs/reference/api.md shows it, tests/agent/test_page.py sends it.

On the simulated host `mixed` the VM `runs` runs, `off` is off, `cloned` runs from a clone of IMAGE, and `lab` is a vGPU
without a VM (`tests.agent.test_commands.prepare`).
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from tests.command_cases import IMAGE, MANIFEST
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.results.migration import MigrationHostResult, MigrationOfferResult, MigrationPlaceResult

GPU, TURING = "0000:3b:00.0", "0000:86:00.0"
MOVE_ID, UUID = "0a4ff9c1-6f3d-4c1e-9a57-5d5ad5a6c3f1", "4b20d080-1b54-4048-85b3-a6a62d165c01"
PEER = MigrationHostResult("gpu02", "5f0d6b5ae3d94b7e8c2f4a1b9d7e6c30", "x86_64")
OFFER = MigrationOfferResult(MOVE_ID, "runs", UUID, "running", 4096, 2, "<domain/>", PEER, (), ())
PLACE = MigrationPlaceResult(MOVE_ID, "runs", UUID, PEER, (), "")
FENCE = {"incarnation": "db-1", "epoch": 1, "holder": "controller-1"}
EXAMPLES: dict[str, dict[str, Any]] = {
    "adopt": {"name": "old-desktop"},
    "advise-sizes": {"by": "team"},
    "advise-workload": {"workload": "office"},
    "allow-logon": {"name": "runs", "user": "alice"},
    "apply": {"sets": [f"gpus[{GPU}].reserved_for=vdi-*"]},
    "attach-gpu": {"name": "off", "gpus": 2},
    "attach-vgpu": {"name": "off", "profile": "A100-4C"},
    "capacity": {"name": "runs"},
    "check-image": {"image": IMAGE},
    "check-vm-change": {"memory": "8GiB"},
    "cordon": {"gpu": GPU},
    "create-vgpu": {"name": "spare", "profile": "A100-4C"},
    "create-vm": {"name": "vdi-001", "profile": "A100-4C"},
    "create-vms": {"pattern": "vdi-{:03}", "count": 3, "profile": "A100-4C"},
    "delete-vgpu": {"name": "lab"},
    "delete-vm": {"name": "runs"},
    "detach-gpu": {"name": "off", "gpus": ["0000:3d:00.0"]},
    "detach-vgpu": {"name": "off"},
    "diff": {},
    "doctor": {"checks": ["libvirt"]},
    "ensure-vgpu": {"name": "spare", "profile": "A100-4C"},
    "ensure-vm": {"name": "vdi-001", "profile": "A100-4C", "state": "started"},
    "ensure-vms": {
        "file": "vdi.yaml",
        "count": 3,
        "request": {"files": {"vdi.yaml": "{name: 'vdi-{:03}', profile: A100-4C}"}},
    },
    "explain": {"profile": "A100-4C"},
    "export-host": {},
    "find-causes": {"code": "no-capacity"},
    "finish-migration": {"name": "runs", "migration_id": MOVE_ID, "outcome": "runs-here"},
    "fits": {"profiles": ["A100-4C:2"]},
    "fix-problems": {"checks": ["libvirt"], "dry_run": True},
    "guest-processes": {"name": "runs"},
    "import-host": {"path": "mig.yaml", "request": {"files": {"mig.yaml": "version: 1\n"}}},
    "import-job": {"files": ["job.yaml"], "request": {"files": {"job.yaml": MANIFEST.read_text()}}},
    "import-vm": {
        "files": ["desk-1.conf"],
        "request": {"files": {"desk-1.conf": "name: desk-1\nmemory: 8192\nhostpci0: 0000:01:00.4,mdev=nvidia-468\n"}},
    },
    "instance-profiles": {"gpu": GPU},
    "list-deleted": {},
    "list-gpus": {"everything": True},
    "list-images": {},
    "list-profiles": {"gpu": "A100"},
    "list-vgpus": {"unassigned": True},
    "list-vms": {},
    "log": {"vm": "runs", "lines": 5},
    "make-account": {"name": "runs", "user": "alice"},
    "mark-desktop": {
        "name": "off",
        "request": {
            "fleet": {
                "fence": FENCE,
                "mark": {
                    "id": "4b20d080-1b54-4048-85b3-a6a62d165c01",
                    "pool": "office",
                    "incarnation": "db-1",
                    "generation": 2,
                    "dirty": True,
                    "user": "ada",
                },
            }
        },
    },
    "message-vm": {"name": "runs", "text": "Please save your work"},
    "migrate-out": {"name": "runs", "place": to_json_value(PLACE), "target_uri": "qemu+ssh://gpu02/system"},
    "monitoring": {"name": "rules"},
    "move-vms": {"defragment": True},
    "offer-vm": {"name": "runs"},
    "plan-moves": {"defragment": True},
    "pool-names": {},
    "prepare-incoming": {"offer": to_json_value(OFFER)},
    "prepare-vm": {"name": "cloned", "drain": True},
    "print-xml": {"name": "vdi-001", "profile": "A100-4C"},
    "purge-deleted": {"names": ["cad-07"]},
    "reboot-vm": {"name": "runs"},
    "reconcile-host": {},
    "refresh-license": {"name": "runs", "clear": True},
    "refresh-vm": {"name": "cloned", "image": IMAGE, "drain": True},
    "resize-disk": {"name": "cloned", "size": "300GiB"},
    "restore-disk": {"name": "cad-07"},
    "restore-host": {},
    "save-vm": {"name": "runs"},
    "select-gpus": {"names": ["A100"]},
    "select-vgpus": {"everything": True},
    "select-vms": {"names": ["r*"]},
    "set-mig": {"gpu": GPU, "vgpus": ["H100-1-10C:4"], "drain": True},
    "set-mixed-size": {"gpu": GPU, "on": False, "drain": True},
    "set-mode": {"gpu": TURING, "mode": "sriov", "vfs": 4},
    "set-password": {"name": "runs", "user": "alice", "password": "abcd2-efgh3-jkmn4-pqrs5"},
    "set-scheduler": {"gpu": GPU, "policy": "equal_share", "drain": True},
    "set-vm": {"name": "runs", "owner": "ada", "labels": {"team": "cad"}},
    "shutdown-in": {"name": "runs", "minutes": 10, "text": "New image"},
    "show-address": {"name": "cloned"},
    "show-console": {"name": "runs"},
    "show-gpu": {"gpu": GPU},
    "show-migration": {"name": "runs"},
    "show-vm": {"name": "runs"},
    "show-vms": {"names": ["runs", "off"]},
    "start-vm": {"name": "off"},
    "stop-vm": {"name": "runs", "force": True},
    "top": {},
    "uncordon": {"gpu": "A16"},
    "usage-report": {},
    "vgpu-names": {},
    "vm-names": {},
    "wait": {"names": ["runs"], "event": "running"},
}
HOSTS = {
    "attach-gpu": "h100-pcie-x8",
    "detach-gpu": "h100-pcie-x8",
    "set-mig": "h100-mig",
    "instance-profiles": "h100-mig",
    "set-mixed-size": "rtx-pro-6000",
    "set-scheduler": "t4",
}
"""The simulated host of an example, where it is not `mixed`."""
SOCKET = "/run/vgpuctl-agent/agent.sock"


def command(name: str, *, changes: bool) -> str:
    """Return the example of a call as a command line with curl."""
    arguments = EXAMPLES[name]
    is_plain = all(isinstance(value, (str, int, list)) for value in arguments.values())
    url = f"http://agent/v1/{name}"
    if changes or not is_plain:
        body = json.dumps(arguments).replace("'", "'\\''")
        return f"curl --unix-socket {SOCKET} {url} -d '{body}'"
    query = urlencode({key: str(v).lower() if isinstance(v, bool) else v for key, v in arguments.items()}, doseq=True)
    return f"curl --unix-socket {SOCKET} '{url}?{query}'" if query else f"curl --unix-socket {SOCKET} {url}"
