# SPDX-License-Identifier: Apache-2.0
"""VMs and hosts as nodes of Kubernetes."""

from __future__ import annotations

import pytest

from tests.callers import host_of
from tests.hosts import open_sim_host
from vgpuctl.config.yaml_reader import load_document
from vgpuctl.errors import HostCannot, NotFound

IMAGE = "/srv/images/ubuntu-24.04.qcow2"


@pytest.mark.parametrize(
    ("sharing", "strategy", "resources"),
    [
        ("none", "none", {"nvidia.com/gpu": 2}),
        ("mps", "none", {"nvidia.com/gpu": 2}),
        ("mps:4", "mps", {"nvidia.com/gpu.shared": 8}),
        ("time-slicing:3", "time-slicing", {"nvidia.com/gpu.shared": 6}),
    ],
)
def test_a_vm_is_a_node(tmp_path, sharing, strategy, resources):
    calls = host_of(open_sim_host(tmp_path), None)
    calls.create_vm("k8s-1", profile="A100-10C:2", image=IMAGE, guest_sharing=sharing)
    data = calls.capacity("k8s-1").data
    assert (data.vm, data.resources, data.labels["nvidia.com/gpu.sharing-strategy"]) == ("k8s-1", resources, strategy)
    assert data.labels["nvidia.com/gpu.product"] == "NVIDIA-A100-10C"
    assert (data.labels["nvidia.com/gpu.count"], data.labels["nvidia.com/gpu.memory"]) == ("2", "10240")
    ((name, text),) = load_document(data.device_plugin, "map.yaml").value["data"].items()
    assert name == data.labels.get("nvidia.com/device-plugin.config", "default")
    config = load_document(text, "config.yaml").value
    assert config["version"] == "v1"
    if strategy != "none":
        key = {"mps": "mps", "time-slicing": "timeSlicing"}[strategy]
        assert config["sharing"] == {
            key: {
                "renameByDefault": True,
                "failRequestsGreaterThanOne": True,
                "resources": [{"name": "nvidia.com/gpu", "replicas": int(sharing[-1])}],
            }
        }


def test_gpu_instances_are_resources_of_their_own(tmp_path):
    data = host_of(open_sim_host(tmp_path, "h100-mig"), None).capacity().data
    assert data.resources == {"nvidia.com/gpu": 1, "nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb": 2}
    assert data.labels["nvidia.com/mig.strategy"] == "mixed"


def test_who_has_no_gpu_of_nvidia_is_no_such_node(tmp_path):
    (tmp_path / "a").mkdir()
    ascend = host_of(open_sim_host(tmp_path / "a", "ascend"), None)
    with pytest.raises(HostCannot, match="this host has no GPU of NVIDIA"):
        ascend.capacity()
    calls = host_of(open_sim_host(tmp_path), None)
    with pytest.raises(NotFound):
        calls.capacity("nothing")


def test_gpus_for_vms_are_not_for_pods_of_the_host(tmp_path):
    calls = host_of(open_sim_host(tmp_path), None)
    (note,) = calls.capacity().notes
    assert note.startswith("0000:3b:00.0: set up for VMs, so pods of this host cannot have them")
