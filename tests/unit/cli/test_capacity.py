# SPDX-License-Identifier: Apache-2.0
"""What `capacity` prints is what Kubernetes takes: checked with Kubernetes' schemas, on every simulated host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kubernetes_validate import ValidationError

from tests.kubernetes_objects import LABEL_VALUE, QUALIFIED_NAME, QUANTITY, check_object, read_objects
from tests.unit.cli.conftest import Run
from vgpuctl.sim import SCENARIOS

CONFIG = "nvidia.com/device-plugin.config"
WITHOUT_NVIDIA = ("ascend", "mtt-s3000", "makers", "mi300x", "b60", "empty")


def node_of(run: Run, vm: str = "") -> dict[str, Any]:
    """Return the Node that `kubectl label node` makes of the labels, with the resources that its device plugin reports.

    kubectl splits each word at its first `=` and sets the rest as the value.
    """
    labels: dict[str, str] = {}
    printed = run(f"capacity {vm} --format labels")
    assert printed.status == 0, printed.err
    for line in printed.out.splitlines():
        assert line.split() == [line], "a shell makes several words of it"
        key, equals, value = line.partition("=")
        assert equals
        assert key not in labels
        labels[key] = value
    data = run(f"--json capacity {vm}").document["data"]
    assert data["labels"] == labels
    resources = {name: str(count) for name, count in data["resources"].items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": vm or "host", "labels": labels},
        "status": {"capacity": resources, "allocatable": resources},
    }


def config_of(run: Run, vm: str = "") -> tuple[str, dict[str, Any]]:
    """Return the name and the content of the plugin's configuration in the ConfigMap that is printed."""
    (config_map,) = read_objects(run(f"capacity {vm} --format device-plugin").out)
    check_object(config_map)
    assert config_map["kind"] == "ConfigMap"
    assert config_map["metadata"] == {"name": "vgpuctl-device-plugin"}
    ((name, text),) = config_map["data"].items()
    (config,) = read_objects(text)
    return name, config


@pytest.mark.parametrize("host", [name for name in SCENARIOS if name not in WITHOUT_NVIDIA])
def test_every_host_is_a_node_of_kubernetes(sim: Run, host: str) -> None:
    def run(line: str) -> Any:
        return sim(line, host=host)

    node = node_of(run)
    check_object(node)
    labels = node["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"]
    assert int(labels["nvidia.com/gpu.count"]) > 0
    limits = node["status"]["capacity"]
    assert limits
    pod = {"containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]}
    check_object({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "job"}, "spec": pod})
    name, config = config_of(run)
    assert (name, config["version"]) == (labels.get(CONFIG, "default"), "v1")
    assert ("flags" in config) is ("nvidia.com/mig.strategy" in labels)


@pytest.mark.parametrize("host", WITHOUT_NVIDIA)
def test_a_host_without_nvidia_prints_nothing_that_kubernetes_could_take(sim: Run, host: str) -> None:
    for form in ("labels", "device-plugin"):
        ran = sim(f"capacity --format {form}", host=host)
        assert (ran.status, ran.out) == (6, "")


@pytest.mark.parametrize("sharing", ["none", "mps", "mps:4", "time-slicing:3"])
def test_a_vm_is_a_node_of_kubernetes(sim: Run, sharing: str) -> None:
    image = "/srv/images/ubuntu-24.04.qcow2"
    assert sim(f"create-vm k8s-1 --profile A100-10C:2 --image {image} --guest-sharing {sharing}").status == 0
    node = node_of(sim, "k8s-1")
    check_object(node)
    labels = node["metadata"]["labels"]
    method, _, replicas = sharing.partition(":")
    shared = {"nvidia.com/gpu.shared": str(2 * int(replicas))} if replicas else {"nvidia.com/gpu": "2"}
    assert node["status"]["capacity"] == shared
    name, config = config_of(sim, "k8s-1")
    assert (name, labels.get(CONFIG)) == (
        (f"vgpuctl-{method}-{replicas}", f"vgpuctl-{method}-{replicas}") if replicas else ("default", None)
    )
    assert ("sharing" in config) is bool(replicas)


def test_gpu_instances_have_a_configuration_that_the_label_names(sim: Run) -> None:
    def run(line: str) -> Any:
        return sim(line, host="h100-mig")

    assert config_of(run) == ("vgpuctl-mig-mixed", {"version": "v1", "flags": {"migStrategy": "mixed"}})
    assert node_of(run)["metadata"]["labels"][CONFIG] == "vgpuctl-mig-mixed"


@pytest.mark.parametrize(
    ("model", "product"),
    [
        ("NVIDIA " + "long " * 30, "NVIDIA-" + "long-" * 11 + "l"),
        ("NVIDIA A1 (96GB), \u201cÄ\u201d \u2122/x=y", "NVIDIA-A1-96GB-x-y"),
        ("NVIDIA \U0001f9ca \u0661", "NVIDIA"),
        ("-NVIDIA_.-", "NVIDIA"),
        ("NVIDIA " + "a" * 55 + " .b", "NVIDIA-" + "a" * 55),
        ("$(reboot) `x` \\ '", "reboot-x"),
        ("\u663e\u5361", ""),
    ],
)
def test_an_odd_name_of_a_gpu_is_a_label_still(scenario: Callable[[str], Run], model: str, product: str) -> None:
    profile = "{name: NVIDIA NEXT-24Q, id: 2001, framebuffer_mib: 24576, max: 4}"
    quoted = model.replace("'", "''")
    run = scenario(
        f"version: 1\ngpus:\n  - model: '{quoted}'\n    backend: vendor-vf\n    framebuffer_mib: 98304\n"
        f"    vfs: {{total: 48}}\n    profiles:\n      - {profile}\n"
    )
    assert run("--json list-gpus").document["data"][0]["model"] == model
    node = node_of(run)
    check_object(node)
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == product


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "node"},
        {"metadata": {"labels": {"a": 1}}},
        {"metadata": {"label": {}}},
        {"metadata": {"labels": {"nvidia.com/gpu.product": "NVIDIA A100"}}},
        {"metadata": {"labels": {"nvidia.com/gpu.product": "x" * 64}}},
        {"metadata": {"labels": {"nvidia.com/gpu.product": "x-"}}},
        {"metadata": {"labels": {"a/b/c": ""}}},
        {"status": {"capacity": {"nvidia.com/gpu": "one"}}},
        {"status": {"capacity": [1]}},
        {"status": {"allocatable": {"nvidia.com/mig-1g.10gb+me": "1"}}},
    ],
)
def test_the_check_refuses_what_is_no_node(change: dict[str, Any]) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {}}}
    check_object(node)
    with pytest.raises((ValidationError, AssertionError)):
        check_object({**node, **change})


def test_the_rules_of_names_and_quantities() -> None:
    for pattern, good, bad in (
        (LABEL_VALUE, ("", "a", "A-b_c.1", "x" * 63), ("x" * 64, "-a", "a.", "a b", "\u00e4", "a\n", "\u0661")),
        (QUALIFIED_NAME, ("a", "nvidia.com/gpu.shared"), ("", "a/", "/a", "A.com/gpu", "a..b/c", "a/b/c")),
        (QUANTITY, ("0", "8", "500m", "4Gi", "1.5", "1e3", "-1"), ("", "Gi", "4GiB", "1 ", "1e", "0x1", "\u0661")),
    ):
        assert all(pattern.fullmatch(text) for text in good)
        assert not any(pattern.fullmatch(text) for text in bad)
