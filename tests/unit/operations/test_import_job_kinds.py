# SPDX-License-Identifier: Apache-2.0
"""Jobs in the shape of KServe, Ray, LeaderWorkerSet and Kubernetes' claims of devices, as VMs of simulated hosts."""

from __future__ import annotations

import pytest

from tests.callers import host_of
from tests.hosts import open_sim_host, picture
from tests.kubernetes_objects import check_manifests
from vgpuctl.errors import HostCannot, InvalidInput, NotFound

GPU_TEMPLATE = """apiVersion: resource.k8s.io/{version}
kind: ResourceClaimTemplate
metadata: {{namespace: ml, name: one-gpu}}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        {request}
"""
EXACTLY = "exactly: {deviceClassName: gpu.nvidia.com}"
POD = """---
apiVersion: v1
kind: Pod
metadata: {namespace: ml, name: pod1}
spec:
  containers:
  - name: ctr0
    image: ubuntu:24.04
    resources: {claims: [{name: shared-gpu}], limits: {cpu: 4, memory: 15Gi}}
  - name: ctr1
    image: ubuntu:24.04
    resources: {claims: [{name: shared-gpu}]}
  resourceClaims:
  - name: shared-gpu
    resourceClaimTemplateName: one-gpu
"""
MIG_CEL = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
ISVC = """apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama, namespace: ml}
spec:
  predictor:
    minReplicas: 2
    maxReplicas: 4
    model:
      modelFormat: {name: vLLM}
      name: ''
      runtime: vllm-runtime
      storageUri: pvc://models/llama
      args: [--max-model-len=4096]
      resources:
        limits: {cpu: '4', memory: 15Gi, nvidia.com/gpu: '1'}
"""
RUNTIME = """---
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: vllm-runtime, namespace: ml}
spec:
  supportedModelFormats: [{name: vLLM, autoSelect: true}]
  containers:
  - name: kserve-container
    image: vllm/vllm-openai:latest
    command: [python, -m, vllm.entrypoints.openai.api_server]
    args: [--port=8080]
    env: [{name: HF_HOME, value: /tmp}]
    resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 8000}}
  nodeSelector: {zone: a}
"""


@pytest.fixture
def convert(tmp_path):
    """Return a function that converts files on a simulated host; `valid`: Kubernetes would take them."""

    def run(*texts, scenario="a100-40", valid=True, **options):
        if valid:
            check_manifests("\n---\n".join(texts))
        host = open_sim_host(tmp_path / scenario, scenario)
        paths = [tmp_path / f"{number}.yaml" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        before = picture(host)
        try:
            return host_of(host, None).import_job([str(path) for path in paths], **options)
        finally:
            assert picture(host) == before

    return run


def template(request: str = EXACTLY, version: str = "v1") -> str:
    return GPU_TEMPLATE.format(request=request, version=version)


@pytest.mark.parametrize(
    ("version", "request_text"),
    [
        ("v1", EXACTLY),
        ("v1beta2", EXACTLY),
        ("v1beta1", "deviceClassName: gpu.nvidia.com"),
        ("v1", "exactly: {deviceClassName: gpu.nvidia.com, allocationMode: ExactCount, count: 1}"),
    ],
)
def test_a_claim_of_a_gpu_is_a_whole_one_for_all_containers_of_its_pod(convert, version, request_text):
    text = template(request_text, version)
    for files in ((text + POD,), (POD, text)):
        (job,) = convert(*files).data
        assert job.spec == {"name": "pod1", "profile": "A100-40C", "memory": "16384MiB", "vcpus": 4}
        assert job.words == ("claim one-gpu nvidia.com/gpu 1",)
        assert not [text for text in job.left_out if "laim" in text]


def test_a_claim_of_gpu_instances(convert):
    cel = f'exactly: {{deviceClassName: mig.nvidia.com, count: 2, selectors: [{{cel: {{expression: "{MIG_CEL}"}}}}]}}'
    (job,) = convert(template(cel) + POD, scenario="h100-mig").data
    assert job.words == ("claim one-gpu nvidia.com/mig-1g.10gb 2",)
    assert job.spec["profile"].startswith("H100")
    assert job.spec["profile"].endswith(":2")


def test_a_claim_by_name_and_what_a_claim_says_besides(convert):
    claim = (
        "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\nmetadata: {name: gpus, namespace: ml}\nspec:\n"
        "  devices:\n    requests:\n    - {name: a, deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "
        "\"device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')\"}}]}\n"
        "    - {name: nic, deviceClassName: dranet, count: 3}\n"
        "    - {name: watch, deviceClassName: gpu.nvidia.com, allocationMode: ExactCount, adminAccess: true}\n"
        "    config: [{requests: [a], opaque: {driver: gpu.nvidia.com, parameters: {kind: GpuConfig}}}]\n"
        "    constraints: [{requests: [a], matchAttribute: gpu.nvidia.com/parentUUID}]\n"
    )
    (job,) = convert(POD.replace("resourceClaimTemplateName: one-gpu", "resourceClaimName: gpus"), claim).data
    assert (job.spec["profile"], job.words) == ("A100-40C", ("claim gpus nvidia.com/gpu 1",))
    left_out = "\n".join(job.left_out)
    for text in (
        "claim gpus: selector device.attributes['gpu.nvidia.com'].productName.lowerAscii()",
        "claim gpus: devices of the class dranet, which vgpuctl does not know",
        "claim gpus: adminAccess",
        "claim gpus: constraints",
        "claim gpus: config",
        "claim gpus: all pods that name it share its devices, and each VM has its own",
    ):
        assert left_out.count(text) == 1
    old = POD.replace("resourceClaimTemplateName: one-gpu", "source: {resourceClaimName: gpus}")
    check_manifests(old, version="1.30")
    assert convert(old, claim, valid=False).data[0].words == job.words


@pytest.mark.parametrize(
    ("request_text", "problem"),
    [
        ("firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com}]", "firstAvailable has several choices"),
        ("exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All}", "allocationMode All is for all devices"),
        ("exactly: {deviceClassName: gpu.nvidia.com, count: many}", "count: 'many' is not an amount"),
        ("exactly: {deviceClassName: gpu.nvidia.com, count: -1}", "count: '-1' is not an amount"),
        ("exactly: {deviceClassName: gpu.nvidia.com, count: 99}", "it asks for 99 devices"),
        ("exactly: {deviceClassName: mig.nvidia.com}", "of which profile the GPU instances are is not plain"),
        ("exactly: {deviceClassName: mig.nvidia.com, selectors: [{cel: {expression: "
         f'"{MIG_CEL} || true"}}}}]}}', "of which profile the GPU instances are is not plain"),
        ("exactly: {deviceClassName: mig.nvidia.com, selectors: [{cel: {expression: "
         f'"{MIG_CEL.replace("1g.10gb", "1c.2g.10gb")}"}}}}]}}', "mig-1c.2g.10gb is no GPU instance of a profile"),
    ],
)  # fmt: skip
def test_a_claim_that_is_not_plain_is_an_error_with_its_line(convert, tmp_path, request_text, problem):
    with pytest.raises(InvalidInput, match=r"0\.yaml:8: ") as raised:
        convert(template(request_text) + POD, valid="many" not in request_text)
    assert problem in raised.value.message


def test_a_claim_that_is_missing_or_in_another_namespace_is_an_error_with_a_command(convert):
    claim = template().replace("ResourceClaimTemplate", "ResourceClaim").replace("spec:\n  spec:", "spec:")
    for text in (POD, template().replace("namespace: ml", "namespace: x") + POD, claim + POD):
        with pytest.raises(InvalidInput, match="the ResourceClaimTemplate one-gpu of the namespace ml is in none") as e:
            convert(text)
        assert "kubectl get resourceclaims,resourceclaimtemplates" in str(e.value.hint)
    with pytest.raises(NotFound, match="no container asks for a GPU"):
        convert(template())


@pytest.mark.parametrize("requests", ["[]", "3", "{a: b}", "[1, null, x]", "null", f"[{'{name: a},' * 40}]"])
def test_odd_claims_do_no_harm(convert, requests):
    text = template().replace("requests:\n      - name: gpu\n        " + EXACTLY, f"requests: {requests}")
    with pytest.raises((InvalidInput, NotFound)):
        convert(text + POD, valid=False)
    with pytest.raises((InvalidInput, NotFound)):
        convert(template() + POD.partition("  containers:")[0] + "  containers: []\n  resourceClaims: 5\n", valid=False)


def test_a_pod_without_containers_claims_a_gpu_too(convert):
    spec = "  containers: []\n  resourceClaims: [{name: a, resourceClaimTemplateName: one-gpu}]\n"
    (job,) = convert(template() + POD.partition("  containers:")[0] + spec, units=True).data
    assert job.spec["profile"] == "A100-40C"


def test_a_service_of_kserve_with_a_model(convert):
    (job,) = convert(ISVC).data
    assert (job.kind, job.name, job.pods) == ("InferenceService", "llama", 2)
    assert job.spec == {"name": "llama-{}", "profile": "A100-40C", "memory": "16384MiB", "vcpus": 4}
    left_out = "\n".join(job.left_out)
    assert "runtime vllm-runtime, which is in none of the files" in left_out
    assert "container kserve-container: storageUri" in left_out


@pytest.mark.parametrize("kind", ["ServingRuntime", "ClusterServingRuntime"])
def test_the_runtime_of_a_model_has_its_container(convert, kind):
    runtime = RUNTIME.replace("kind: ServingRuntime", f"kind: {kind}")
    runtime = runtime.replace(", namespace: ml", "") if kind.startswith("Cluster") else runtime
    (job,) = convert(runtime, ISVC, units=True).data
    assert job.spec["profile"] == "A100-10C", "the service has one GPU, the runtime says how much of it"
    (unit,) = job.units
    assert "vllm/vllm-openai:latest" in unit.text
    assert unit.text.index("vllm.entrypoints.openai.api_server") < unit.text.index("--port=8080")
    assert unit.text.index("--port=8080") < unit.text.index("--max-model-len=4096")
    assert "HF_HOME" in str(unit.variables)
    assert "node label zone: this is about nodes" in job.left_out
    other = RUNTIME.replace("namespace: ml", "namespace: x")
    assert [job.kind for job in convert(other, ISVC).data] == ["ServingRuntime", "InferenceService"]


def test_containers_of_kserve_and_its_other_components(convert):
    container = "{name: kserve-container, image: i, resources: {limits: {nvidia.com/gpumem: 8000}}}"
    text = (
        f"{ISVC.partition('  predictor:')[0]}  predictor:\n    minReplicas: 0\n    containers: [{container}]\n"
        f"  transformer:\n    nodeSelector: {{nvidia.com/gpu.product: T4}}\n    containers: [{container}]\n"
    )
    with pytest.raises(HostCannot) as raised:
        convert(text)
    predictor, transformer = raised.value.result.data
    assert (predictor.role, predictor.pods, predictor.spec["profile"]) == ("", 0, "A100-10C")
    assert (transformer.role, transformer.pods, transformer.spec) == ("transformer", 1, None)
    legacy = ISVC.replace("    model:", "    pytorch:").replace("      runtime: vllm-runtime\n", "")
    assert convert(legacy).data[0].spec["profile"] == "A100-40C"


RAY_GROUPS = """
  {prefix}headGroupSpec:
    rayStartParams: {{}}
    template: {{spec: {{containers: [{{name: ray-head, image: r, resources: {{limits: {{cpu: 1}}}}}}]}}}}
  {prefix}workerGroupSpecs:
  - groupName: small
    replicas: 3
    numOfHosts: 2
    minReplicas: 1
    template: {{spec: {{containers: [{{name: w, image: r, resources: {{limits: {{nvidia.com/gpumem: 8000}}}}}}]}}}}
  - groupName: large
    minReplicas: 2
    maxReplicas: 5
    template: {{spec: {{containers: [{{name: w, image: r, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]}}}}
"""


@pytest.mark.parametrize("kind", ["RayCluster", "RayService", "RayJob"])
def test_the_groups_of_ray(convert, kind):
    groups = RAY_GROUPS.format(prefix="")
    inner = {"RayCluster": "", "RayService": "rayClusterConfig", "RayJob": "rayClusterSpec"}[kind]
    body = groups if not inner else f"\n  {inner}:" + groups.replace("\n", "\n  ").rstrip() + "\n"
    text = f"apiVersion: ray.io/v1\nkind: {kind}\nmetadata: {{name: ray}}\nspec:\n  rayVersion: '2.46.0'{body}"
    result = convert(text)
    assert [(job.role, job.pods, job.spec["profile"]) for job in result.data] == [
        ("small", 6, "A100-10C"), ("large", 2, "A100-40C")
    ]  # fmt: skip
    assert [job.spec["name"] for job in result.data] == ["ray-small-{}", "ray-large-{}"]
    head = text.replace("limits: {cpu: 1}", "limits: {nvidia.com/gpu: 1}")
    assert convert(head).data[0].role == "head"


LWS = """apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: vllm}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 4
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      metadata: {labels: {role: leader}}
      spec: {containers: [{name: lead, image: v, resources: {limits: {nvidia.com/gpu: 1}}}]}
    workerTemplate:
      spec: {containers: [{name: work, image: v, resources: {limits: {nvidia.com/gpumem: 8000}}}]}
"""


def test_the_groups_of_a_leader_worker_set(convert):
    jobs = convert(LWS).data
    assert [(job.role, job.pods, job.spec["name"]) for job in jobs] == [
        ("leader", 2, "vllm-leader-{}"), ("worker", 6, "vllm-worker-{}")
    ]  # fmt: skip
    begin, end = LWS.index("    leaderTemplate"), LWS.index("    workerTemplate")
    (job,) = convert(LWS[:begin] + LWS[end:]).data
    assert (job.role, job.pods, job.at.endswith("0.yaml:10")) == ("worker", 8, True), "the leader is a worker too"
    (alone,) = convert((LWS[:begin] + LWS[end:]).replace("    size: 4\n", "").replace("  replicas: 2\n", "")).data
    assert alone.pods == 1
    with pytest.raises(InvalidInput, match="replicas is no whole number"):
        convert(LWS.replace("replicas: 2", "replicas: -1"))
    with pytest.raises(InvalidInput, match="that is 69993 pods"):
        convert(LWS.replace("size: 4", "size: 10000").replace("replicas: 2", "replicas: 7"))


def test_a_cron_job(convert):
    text = """apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "0 3 * * *"
  jobTemplate:
    spec:
      parallelism: 2
      template:
        spec:
          restartPolicy: OnFailure
          containers: [{name: main, image: t, resources: {limits: {nvidia.com/gpu: 1}}}]
"""
    (job,) = convert(text).data
    assert (job.kind, job.role, job.pods, job.spec["name"]) == ("CronJob", "", 2, "nightly-{}")
    assert "schedule 0 3 * * * of the CronJob" in job.left_out


def test_a_service_of_models_whose_template_is_a_pod(convert):
    text = """apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: qwen}
spec:
  replicas: 3
  template:
    containers: [{name: main, image: t, resources: {limits: {cpu: 4, memory: 8Gi, nvidia.com/gpu: 1}}}]
"""
    (job,) = convert(text).data
    assert (job.kind, job.pods, job.spec["memory"], job.spec["profile"]) == (
        "LLMInferenceService", 3, "9216MiB", "A100-40C"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "unit_says"),
    [("OnFailure", "on-failure"), ("Never", "no"), ("Always", "always"), ("ExitCode", "always")],
)
def test_a_job_of_kubeflow_says_beside_its_template_whether_pods_start_again(convert, policy, unit_says):
    text = f"""apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: train}}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: {policy}
      template:
        spec:
          containers: [{{name: pytorch, image: t, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]
"""
    (job,) = convert(text, units=True).data
    assert f"Restart={unit_says}" in job.units[0].text.splitlines()


def pod_with(label: str, resource: str = "nvidia.com/gpu: 1") -> str:
    return f"""apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  nodeSelector: {{{label}}}
  containers: [{{name: main, image: t, resources: {{limits: {{{resource}}}}}}}]
"""


@pytest.mark.parametrize(
    "label",
    [
        "nvidia.com/gpu.product: NVIDIA-A100-PCIE-40GB",
        "k8s.amazonaws.com/accelerator: nvidia-a100",
        "accelerator: nvidia-a100",
        "cloud.google.com/gke-accelerator: nvidia-a100",
    ],
)
def test_a_label_that_names_the_model_of_nodes_chooses_gpus(convert, label):
    (job,) = convert(pod_with(label)).data
    assert job.spec["profile"] == "A100-40C"
    assert not [text for text in job.left_out if "node label" in text]
    with pytest.raises(HostCannot, match="no GPU of this host is"):
        convert(pod_with(label.replace("100", "101")))


def test_a_label_of_other_nodes_is_left_out(convert):
    (job,) = convert(pod_with("gpu.example.com/accelerator: fast")).data
    assert [text for text in job.left_out if "gpu.example.com/accelerator" in text]


def test_a_label_of_shared_gpus_does_not_say_how_many_share_one(convert):
    text = pod_with("nvidia.com/gpu.product: NVIDIA-A100-PCIE-40GB-SHARED")
    with pytest.raises(InvalidInput, match="pods share each GPU, and not among how many") as raised:
        convert(text)
    assert raised.value.hint.endswith("0.yaml --assume nvidia.com/gpu.shared=4")
    (job,) = convert(text, assume=("nvidia.com/gpu.shared=4",)).data
    assert job.spec["profile"] == "A100-10C"
    assert any("a share limits no memory" in text for text in job.left_out)


def test_a_label_of_gpu_instances_makes_a_device_one_of_them(convert):
    text = pod_with("nvidia.com/gpu.product: NVIDIA-H100-PCIe-MIG-1g.10gb")
    (job,) = convert(text, scenario="h100-mig").data
    assert job.spec["profile"] == "H100-1-10C"


def test_a_whole_gpu_by_its_cores_has_the_memory_that_is_asked(convert):
    words = "tke.cloud.tencent.com/qgpu-core: 100, tke.cloud.tencent.com/qgpu-memory: {}"
    (job,) = convert(pod_with("a: b", words.format(40))).data
    assert job.spec["profile"] == "A100-40C"
    with pytest.raises(HostCannot, match=r"a whole GPU with 47104 MiB: the largest of NVIDIA A100.* has 40960 MiB"):
        convert(pod_with("a: b", words.format(46)))


def test_a_claim_of_a_gpu_for_a_vm_is_a_whole_one(convert):
    (job,) = convert(template().replace("gpu.nvidia.com", "vfio.gpu.nvidia.com"), POD).data
    assert job.spec["profile"] == "A100-40C"


@pytest.mark.parametrize(
    ("scenario", "word", "devices"),
    [
        ("mixed", "amd.com/gpu", " --device=/dev/kfd --device=/dev/dri "),
        ("ascend", "huawei.com/Ascend310P", " --name=job-p-main --network=host docker.io/library/t"),
    ],
)
def test_containers_have_the_devices_of_their_gpus_maker(convert, scenario, word, devices):
    (job,) = convert(pod_with("a: b", f"{word}: 1"), scenario=scenario, units=True).data
    assert devices in job.units[0].text
    assert "nvidia" not in job.units[0].text
    assert any("add --device=" in text for text in job.left_out) is (scenario == "ascend")
