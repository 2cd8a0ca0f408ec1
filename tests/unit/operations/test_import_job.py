# SPDX-License-Identifier: Apache-2.0
"""Jobs of Kubernetes as VMs of simulated hosts: which vGPU, which not, and why."""

from __future__ import annotations

import json

import pytest

from tests.callers import VIEWER, host_of
from tests.hosts import open_sim_host, picture
from tests.kubernetes_objects import check_manifests
from vgpuctl.config.spec_text import render_spec
from vgpuctl.config.vm_spec import parse_vm_spec
from vgpuctl.errors import HostCannot, InvalidInput, NotFound


def pod(limits, *, name="job", metadata="", spec=""):
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{metadata}}}\nspec:\n{spec}  containers:\n"
        f"  - {{name: main, image: example.org/i, resources: {{limits: {{{limits}}}}}}}\n"
    )


@pytest.fixture
def convert(tmp_path):
    """Return a function that converts manifests, which Kubernetes would take, on a simulated host."""
    hosts = {}

    def run(text, scenario="a100-40", **options):
        check_manifests(text)
        if scenario not in hosts:
            (tmp_path / scenario).mkdir()
            hosts[scenario] = open_sim_host(tmp_path / scenario, scenario)
        path = tmp_path / "job.yaml"
        path.write_text(text)
        before = picture(hosts[scenario])
        try:
            return host_of(hosts[scenario], None).import_job([str(path)], **options)
        finally:
            assert picture(hosts[scenario]) == before

    return run


def spec_of(result):
    (job,) = result.data
    return dict(job.spec)


@pytest.mark.parametrize(
    ("limits", "scenario", "fields"),
    [
        ("nvidia.com/gpu: 1", "a100-40", {"profile": "A100-40C"}),
        ("nvidia.com/gpu: 2", "hgx-h100", {"mode": "passthrough", "gpus": 2}),
        ("nvidia.com/gpu: 1, nvidia.com/gpumem: 3700", "a100-40", {"profile": "A100-4C"}),
        ("nvidia.com/gpu: 1, nvidia.com/gpumem: 4000", "a100-40", {"profile": "A100-5C"}),
        ("nvidia.com/gpu: 2, nvidia.com/gpumem: 4000", "a100-40", {"profile": "A100-5C:2"}),
        ("nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50", "a100-40", {"profile": "A100-20C"}),
        ("nvidia.com/gpu: 1, nvidia.com/gpucores: 20", "a100-40", {"profile": "A100-8C"}),
        ("nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 50", "a100-40", {"profile": "A100-20C"}),
        ("tencent.com/vcuda-core: 20, tencent.com/vcuda-memory: 16", "a100-40", {"profile": "A100-8C"}),
        ("nvidia.com/mig-1g.10gb: 1", "h100-mig", {"profile": "H100-1-10C"}),
        ("nvidia.com/gpumem: 5000", "l40s-x4", {"profile": "L40S-6Q"}),
        ("nvidia.com/gpumem: 4000", "t4", {"profile": "T4-8C"}),
        ("huawei.com/Ascend310P: 1, huawei.com/Ascend310P-memory: 6144", "ascend", {"profile": "vnpu-vir02"}),
        (
            "huawei.com/Ascend310P: 1, huawei.com/Ascend310P-memory: 8192, huawei.com/Ascend310P-core: 50",
            "ascend",
            {"profile": "vnpu-vir04"},
        ),
        ("amd.com/gpu: 1", "mixed", {"mode": "passthrough", "gpus": 1, "gpu": ["0000:af:00.0"]}),
        ("gpu.intel.com/i915: 1", "mixed", {"mode": "passthrough", "gpus": 1, "gpu": ["0000:86:00.0"]}),
        (
            "cpu: 1500m, memory: 3Gi, nvidia.com/gpumem: 3000",
            "a100-40",
            {"profile": "A100-4C", "memory": "4096MiB", "vcpus": 2},
        ),
    ],
)
def test_a_pod_gets_what_it_asks_for(convert, limits, scenario, fields):
    spec = spec_of(convert(pod(limits), scenario))
    assert {key: spec[key] for key in fields} == fields
    assert spec["name"] == "job"
    assert parse_vm_spec(render_spec(spec), "spec.yaml")["name"] == "job"


def test_a_spec_makes_a_vm_that_has_it(tmp_path):
    host = open_sim_host(tmp_path)
    path = tmp_path / "job.yaml"
    path.write_text(pod("nvidia.com/gpumem: 8000"))
    calls = host_of(host, None)
    spec = spec_of(calls.import_job([str(path)]))
    made = calls.create_vm(**{**spec, "image": "/srv/images/ubuntu-24.04.qcow2"})
    assert made.data.vgpus[0].profile == "A100-10C"


@pytest.mark.parametrize(
    ("limits", "scenario", "problem"),
    [
        ("amd.com/gpu: 1", "a100-40", "this host has no GPU of AMD that vgpuctl manages: NVIDIA A100-PCIE-40GB"),
        ("huawei.com/Ascend910: 1", "ascend", "no GPU of this host is model 910"),
        ("huawei.com/Ascend310P-core: 50", "ascend", "holds 50 % of the cores"),
        ("cambricon.com/mlu: 1", "mixed", "this host has no GPU of Cambricon"),
        ("nvidia.com/gpu: 4", "a100-40", "4 whole GPUs of one model: this host has NVIDIA A100-PCIE-40GB"),
        ("nvidia.com/gpumem: 60000", "a100-40", "A100-40C, has 40 GiB, of which programs get about 38352 MiB"),
        ("nvidia.com/mig-7g.40gb: 1", "a100-40", "no GPU of this host is divided into GPU instances for 7g.40gb"),
    ],
)
def test_what_this_host_does_not_have_is_no_spec_and_exit_6(convert, limits, scenario, problem):
    with pytest.raises(HostCannot) as raised:
        convert(pod(limits), scenario)
    assert problem in raised.value.message
    (job,) = raised.value.result.data
    assert (job.spec, problem in job.problem) == (None, True)


def test_node_selectors_and_annotations_choose_the_gpus(convert):
    text = pod("nvidia.com/gpumem: 1000", spec="  nodeSelector: {nvidia.com/gpu.product: Tesla-T4-SHARED, zone: a}\n")
    (job,) = convert(text, "mixed").data
    assert (job.spec["profile"], job.spec["gpu"]) == ("T4-2Q", ["0000:5e:00.0"])
    assert "node label zone: this is about nodes" in job.left_out
    with pytest.raises(HostCannot, match=r"no GPU of this host is nvidia\.com/gpu\.product Tesla-V100"):
        convert(pod("nvidia.com/gpu: 1", spec="  nodeSelector: {nvidia.com/gpu.product: Tesla-V100}\n"), "mixed")
    (job,) = convert(
        pod("nvidia.com/gpumem: 1000", metadata=", annotations: {nvidia.com/nouse-gputype: A100}"), "mixed"
    ).data
    assert job.spec["profile"] == "T4-2Q"
    metadata = ", annotations: {hami.io/gpu-scheduler-policy: spread}"
    assert spec_of(convert(pod("nvidia.com/gpumem: 1000", metadata=metadata)))["placement"] == "breadth"


def test_a_gpu_is_chosen_by_its_uuid(convert, tmp_path):
    calls = host_of(open_sim_host(tmp_path / "l40s", "l40s-x4"), None)
    uuid = calls.show_gpu("0000:43:00.0").data.uuid
    assert uuid.startswith("GPU-")
    metadata = f", annotations: {{nvidia.com/use-gpuuuid: '{uuid}'}}"
    spec = spec_of(convert(pod("nvidia.com/gpumem: 3000", metadata=metadata), "l40s-x4"))
    assert spec["gpu"] == ["0000:43:00.0"]
    made = calls.create_vm("vm", profile="L40S-4Q", gpu=uuid.upper(), image="/srv/images/windows-11.qcow2")
    assert made.data.vgpus[0].gpu == "0000:43:00.0"
    other = calls.create_vm("vm2", profile="L40S-4Q", not_gpu=uuid, placement="binpack", disk="20GiB")
    assert other.data.vgpus[0].gpu != "0000:43:00.0"


def test_a_share_of_the_cores_needs_a_policy_that_keeps_it(tmp_path, convert):
    (job,) = convert(pod("nvidia.com/gpumem: 3000, nvidia.com/gpucores: 20")).data
    assert job.spec["scheduler"] == "fixed_share", "ensure-vm refuses it until a GPU has that policy"
    assert job.first == ("vgpuctl set-scheduler 0000:3b:00.0 --policy fixed_share",)
    (job,) = convert(pod("nvidia.com/gpucores: 60")).data
    assert (job.spec["profile"], "scheduler" in job.spec) == ("A100-40C", False), "the whole GPU needs no policy"
    host = open_sim_host(tmp_path / "fixed")
    calls = host_of(host, None)
    calls.set_scheduler("0000:3b:00.0", "fixed_share")
    (tmp_path / "job.yaml").write_text(pod("nvidia.com/gpumem: 3000, nvidia.com/gpucores: 20"))
    (job,) = calls.import_job([str(tmp_path / "job.yaml")]).data
    assert (job.spec["scheduler"], job.first) == ("fixed_share", ())


def test_several_pods_are_one_spec_with_a_pattern(convert):
    container = "{name: main, image: i, resources: {limits: {nvidia.com/gpumem: 3000}}}"
    text = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: job}\nspec:\n  replicas: 3\n"
        "  selector: {matchLabels: {app: job}}\n  template:\n    metadata: {labels: {app: job}}\n"
        f"    spec: {{containers: [{container}]}}\n"
    )
    (job,) = convert(text).data
    assert (job.pods, job.spec["name"]) == (3, "job-{}")


def test_containers_of_one_pod_get_their_own_vgpus(convert):
    text = (
        pod("nvidia.com/gpumem: 3000") + "  - {name: side, image: s, resources: {limits: {nvidia.com/gpumem: 9000}}}\n"
    )
    assert spec_of(convert(text))["profile"] == "A100-10C:2", "one GPU has vGPUs of one size"
    assert spec_of(convert(text, "rtx-pro-6000"))["profile"]
    whole = pod("nvidia.com/gpumem: 3000") + "  - {name: side, image: s, resources: {limits: {nvidia.com/gpu: 1}}}\n"
    with pytest.raises(HostCannot, match="one container asks for whole GPUs and another for a part"):
        convert(whole)
    other = pod("nvidia.com/gpumem: 3000") + "  - {name: side, image: s, resources: {limits: {amd.com/gpu: 1}}}\n"
    with pytest.raises(InvalidInput, match="asks for GPUs of NVIDIA and AMD in one pod"):
        convert(other)


def test_what_has_no_gpu_is_counted_and_not_converted(convert):
    text = pod("nvidia.com/gpumem: 3000") + "---\n" + pod("cpu: 1", name="web")
    text += "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
    result = convert(text)
    assert [job.name for job in result.data] == ["job"]
    assert result.notes[0] == "1 pod template without a GPU not converted"
    assert "Service web" in result.notes[1]
    with pytest.raises(NotFound, match="no container asks for a GPU"):
        convert(pod("cpu: 1"))
    with pytest.raises(NotFound, match="no object with pods has the name web2") as raised:
        convert(text, job="web2")
    assert raised.value.hint == "there are: job, web"


def test_a_name_of_kubernetes_is_a_name_of_a_vm(convert):
    for name in ("a" * 253, "'-.x'", "'ü'", "a.b-c"):
        spec = spec_of(convert(pod("nvidia.com/gpumem: 3000", name=name)))
        assert parse_vm_spec(render_spec(spec), "spec.yaml")["name"] == spec["name"]


def test_what_a_unit_cannot_have_is_left_out(convert):
    text = pod("nvidia.com/gpumem: 3000").replace("image: example.org/i", 'image: "--privileged"')
    (job,) = convert(text, units=True).data
    assert (job.units, any("no unit of systemd can have the image" in text for text in job.left_out)) == ((), True)


@pytest.mark.parametrize(
    "spec", [{"name": "a", "gpu": ["0000:3b:00.0"]}, {"name": "true", "memory": "4096MiB", "vcpus": 2}]
)
def test_a_spec_reads_back_as_it_was(spec):
    from vgpuctl.config.yaml_reader import load_document

    assert load_document(render_spec(spec), "x").value == json.loads(json.dumps(spec))


def test_a_user_of_the_agent_may_ask(tmp_path):
    (tmp_path / "job.yaml").write_text(pod("nvidia.com/gpumem: 3000"))
    host = host_of(open_sim_host(tmp_path), VIEWER)
    assert spec_of(host.import_job([str(tmp_path / "job.yaml")]))["profile"] == "A100-4C"


@pytest.mark.parametrize("limits", ["cpu: 100000", "memory: 900Pi"])
def test_more_than_a_vm_can_have_is_a_problem_of_that_pod_alone(convert, limits):
    text = pod(f"nvidia.com/gpumem: 3000, {limits}") + "---\n" + pod("nvidia.com/gpumem: 3000", name="other")
    with pytest.raises(HostCannot) as raised:
        convert(text)
    first, second = raised.value.result.data
    assert (first.spec, bool(first.problem), second.spec["name"]) == (None, True, "other")


def test_units_of_the_roles_of_a_job_have_names_of_their_own(convert):
    container = "name: m, image: i, env: [{name: A, value: s3cret}], resources: {limits: {nvidia.com/gpumem: 3000}}"
    template = f"{{spec: {{containers: [{{{container}}}]}}}}"
    text = (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: train}\nspec:\n  pytorchReplicaSpecs:\n"
        f"    Master: {{template: {template}}}\n    Worker: {{template: {template}}}\n"
    )
    units = [unit for job in convert(text, units=True).data for unit in job.units]
    assert [unit.name for unit in units] == ["job-train-master-m.service", "job-train-worker-m.service"]
    assert [("s3cret" in unit.text, unit.variables) for unit in units] == [(False, "A=s3cret\n")] * 2
    assert all(job.units == () for job in convert(text).data), "they are made only when they are asked for"


def test_containers_that_run_before_are_not_added_up(convert):
    resources = "resources: {limits: {cpu: '4', memory: 8Gi}}"
    spec = f"  initContainers: [{{name: a, image: i, {resources}}}, {{name: b, image: i, {resources}}}]\n"
    spec = spec_of(convert(pod("nvidia.com/gpumem: 3000", spec=spec)))
    assert (spec["vcpus"], spec["memory"]) == (4, "9216MiB")


def test_a_model_is_not_the_beginning_of_another(convert):
    with pytest.raises(HostCannot, match="no GPU of this host is"):
        convert(pod("nvidia.com/gpu: 1", spec="  nodeSelector: {nvidia.com/gpu.product: NVIDIA-A10}\n"))
    for product in ("NVIDIA-A100", "NVIDIA-A100-PCIE-40GB", "NVIDIA-A100-PCIE-40GB-SHARED"):
        text = pod("nvidia.com/gpu: 1", spec=f"  nodeSelector: {{nvidia.com/gpu.product: {product}}}\n")
        assert spec_of(convert(text, assume=("nvidia.com/gpu.shared=4",)))


def test_what_a_pod_loses_is_said(convert):
    text = pod(
        "nvidia.com/gpumem: 3000, hugepages-2Mi: 4Mi, rdma/hca: 1",
        metadata=", labels: {aliyun.com/gpu-count: '4'}",
        spec="  nodeName: n1\n  tolerations: [{operator: Exists}]\n",
    ).replace("image: example.org/i,", "image: '${IMAGE}', workingDir: /w, securityContext: {privileged: true},")
    (job,) = convert(text, units=True).data
    for lost in (
        "label aliyun.com/gpu-count",
        "nodeName of the pod",
        "tolerations of the pod",
        "container main: securityContext",
        "container main: hugepages-2Mi, which vgpuctl does not know",
        "container main: rdma/hca, which vgpuctl does not know",
        "container main: no unit of systemd can have the image '${IMAGE}'",
    ):
        assert lost in job.left_out


def test_a_role_is_chosen_by_its_name(convert):
    template = "{spec: {containers: [{name: m, image: i, resources: {limits: {nvidia.com/gpumem: 3000}}}]}}"
    text = (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: train}\nspec:\n  pytorchReplicaSpecs:\n"
        f"    Master: {{template: {template}}}\n    Worker: {{replicas: 2, template: {template}}}\n"
    )
    assert [job.spec["name"] for job in convert(text).data] == ["train-master", "train-worker-{}"]
    assert spec_of(convert(text, job="train-worker"))["name"] == "train-worker-{}"


def test_gpus_that_have_another_mode_are_passed_through_first(convert, tmp_path):
    (job,) = convert(pod("amd.com/gpu: 1"), "mixed").data
    (first,) = job.first
    assert first == (
        "0000:af:00.0 has 4 VFs, which stay on: vgpuctl set-mode 0000:af:00.0 sriov --vfs 1; then that VF is the whole "
        "GPU, by mode: sriov in place of passthrough"
    ), "set-mode passthrough is refused there: gim turns on at least one"
    (tmp_path / "one.yaml").write_text(pod("huawei.com/Ascend310P: 1"))
    calls = host_of(open_sim_host(tmp_path / "ascend", "ascend"), None)
    (job,) = calls.import_job([str(tmp_path / "one.yaml")]).data
    assert job.first == ("vgpuctl set-mode 0000:3b:00.0 passthrough",)
    calls.set_mode("0000:3b:00.0", "passthrough")
    (job,) = calls.import_job([str(tmp_path / "one.yaml")]).data
    assert (job.spec["mode"], job.first) == ("passthrough", ()), "it is done"
    (job,) = convert(pod("gpu.intel.com/i915: 1"), "mixed").data
    assert job.first == ("vgpuctl set-mode 0000:86:00.0 passthrough",)


def test_whole_gpus_are_of_one_model(convert):
    with pytest.raises(HostCannot, match=r"2 whole GPUs of one model: this host has NVIDIA A16, NVIDIA A100"):
        convert(pod("nvidia.com/gpu: 2"), "mixed")
    assert spec_of(convert(pod("nvidia.com/gpu: 1"), "mixed"))["gpu"] == ["0000:d8:00.0"], (
        "the one that is passed through"
    )


def test_two_jobs_of_one_name_are_two_vms(convert):
    text = "---\n".join(pod("nvidia.com/gpumem: 3000", metadata=f", namespace: {space}") for space in "ab")
    first, second = convert(text).data
    assert (first.spec["name"], second.spec["name"]) == ("job", "job-2")
    assert "name job-2: another job's VM is job" in second.kept


def test_an_annotation_that_is_not_kept_is_said(convert):
    (job,) = convert(pod("nvidia.com/gpumem: 3000", metadata=", annotations: {hami.io/gpu-oversubscribe: '1'}")).data
    assert "annotation hami.io/gpu-oversubscribe 1" in job.left_out
