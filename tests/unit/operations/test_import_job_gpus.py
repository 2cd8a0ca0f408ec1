# SPDX-License-Identifier: Apache-2.0
"""What pods say of their GPUs besides amounts, on simulated hosts: cards apart, MIG, labels of nodes, room, names."""

from __future__ import annotations

import pytest

from tests.callers import host_of
from tests.hosts import open_sim_host, picture
from tests.kubernetes_objects import check_manifests
from vgpuctl.config.vm_spec import parse_vm_spec
from vgpuctl.errors import HostCannot, InvalidInput, NotFound


def manifest(limits: str, *, spec: str = "", metadata: str = "", more: str = "", container: str = "") -> str:
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: job{metadata}}}\nspec:\n{spec}  containers:\n"
        f"  - {{name: main, image: example.org/i, resources: {{limits: {{{limits}}}}}{container}}}\n{more}"
    )


def affinity(terms: str) -> str:
    required = f"requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{terms}]}}"
    return f"  affinity: {{nodeAffinity: {{{required}}}}}\n"


@pytest.fixture
def convert(tmp_path):
    """Return a function that converts a manifest, which Kubernetes would take, on a simulated host."""
    hosts = {}

    def run(text, scenario="a100-40", valid=True, prepare=None, **options):
        if valid:
            check_manifests(text)
        if scenario not in hosts:
            hosts[scenario] = open_sim_host(tmp_path / scenario, scenario)
        calls = host_of(hosts[scenario], None)
        if prepare is not None:
            prepare(calls)
        path = tmp_path / "job.yaml"
        path.write_text(text)
        before = picture(hosts[scenario])
        try:
            return calls.import_job([str(path)], **options)
        finally:
            assert picture(hosts[scenario]) == before

    return run


def only(result):
    (job,) = result.data
    return job


def test_parts_of_several_cards_are_on_several_cards(convert, tmp_path):
    text = manifest("nvidia.com/gpu: 2, nvidia.com/gpumem: 4000, nvidia.com/gpucores: 20")
    job = only(convert(manifest("nvidia.com/gpu: 2, nvidia.com/gpumem: 4000"), "l40s-x4"))
    assert (job.spec["profile"], job.spec["placement"]) == ("L40S-6Q:2", "breadth")
    assert "2 devices are parts of 2 GPUs: placement breadth takes another for each while it has room" in job.kept
    made = host_of(open_sim_host(tmp_path / "made", "l40s-x4"), None).create_vm(**job.spec, disk="20GiB")
    assert len({vgpu.gpu for vgpu in made.data.vgpus}) == 2
    first = only(convert(text, "l40s-x4")).first
    assert first == tuple(f"vgpuctl set-scheduler 0000:{slot}:00.0 --policy fixed_share" for slot in ("3b", "3f"))
    host = host_of(open_sim_host(tmp_path / "one", "l40s-x4"), None)
    host.set_scheduler("0000:43:00.0", "fixed_share")
    (tmp_path / "two.yaml").write_text(text)
    (job,) = host.import_job([str(tmp_path / "two.yaml")]).data
    assert job.first == first[:1], "one of the two that are needed has it now"


def test_parts_of_more_cards_than_the_host_has_say_so(convert):
    job = only(convert(manifest("nvidia.com/gpu: 2, nvidia.com/gpumem: 4000, nvidia.com/gpucores: 10")))
    assert job.spec["profile"] == "A100-5C:2"
    assert "2 devices are parts of 2 GPUs, and this host has 1 such GPU: more than one comes from the same" in job.kept
    assert job.first == ("vgpuctl set-scheduler 0000:3b:00.0 --policy fixed_share",), "one command for the one card"
    bound = ", annotations: {hami.io/gpu-scheduler-policy: binpack}"
    text = manifest("nvidia.com/gpu: 2, nvidia.com/gpumem: 4000", metadata=bound)
    assert only(convert(text)).spec["placement"] == "breadth", "HAMi's policy chooses among cards, each once"


def test_the_memory_of_a_labelled_pod_is_of_several_gpus(convert):
    labels = ", labels: {aliyun.com/gpu-count: '2'}"
    job = only(convert(manifest("aliyun.com/gpu-mem: 8", metadata=labels), assume=("aliyun.com/gpu-mem=GiB",)))
    assert job.spec["profile"] == "A100-5C:2", "4 GiB of each of 2 GPUs"
    assert not [text for text in job.left_out if "gpu-count" in text]
    with pytest.raises(InvalidInput, match=r"7 MiB of 2 GPUs, as aliyun.com/gpu-count has it, is no whole number"):
        convert(manifest("aliyun.com/gpu-mem: 7", metadata=labels), assume=("aliyun.com/gpu-mem=MiB",))
    with pytest.raises(InvalidInput, match=r"job.yaml:1: aliyun.com/gpu-count 'two' is no whole number"):
        convert(manifest("aliyun.com/gpu-mem: 8", metadata=labels.replace("2", "two")))
    other = only(convert(manifest("nvidia.com/gpumem: 3000", metadata=labels)))
    assert "label aliyun.com/gpu-count" in other.left_out, "it says nothing of other systems' words"


def test_cores_of_a_gpu_with_mig_are_slices_of_it(convert):
    only_mig = {"metadata": ", annotations: {nvidia.com/vgpu-mode: mig}"}
    job = only(convert(manifest("nvidia.com/gpumem: 8000, nvidia.com/gpucores: 30", **only_mig), "h100-mig"))
    assert (job.spec["profile"], job.spec["gpu"], "scheduler" in job.spec) == ("H100-3-40C", ["0000:3b:00.0"], False)
    assert "8000 MiB and 30 % of the cores: H100-3-40C has about 38352 MiB for programs, and 42.9 % of the cores" in (
        job.kept
    )
    assert "nvidia.com/vgpu-mode mig" in job.kept
    with pytest.raises(HostCannot) as raised:
        convert(manifest("nvidia.com/gpucores: 60", **only_mig), "h100-mig")
    assert "the largest, H100-3-40C, has 40 GiB, of which programs get about 38352 MiB, and 42.9 % of the cores" in (
        raised.value.message
    ), "7g.80gb is no instance that exists"
    small = only(convert(manifest("nvidia.com/gpumem: 3000", **only_mig), "h100-mig"))
    assert small.spec["profile"] == "H100-1-10C"
    software = ", annotations: {nvidia.com/vgpu-mode: hami-core}"
    assert only(convert(manifest("nvidia.com/gpumem: 3000", metadata=software), "h100-mig")).spec["gpu"] == [
        "0000:3f:00.0"
    ]


def test_a_mode_that_no_card_has_is_said(convert):
    job = only(convert(manifest("nvidia.com/gpumem: 3000", metadata=", annotations: {nvidia.com/vgpu-mode: mig}")))
    assert job.spec["profile"] == "A100-4C"
    assert [text for text in job.kept if text.startswith("nvidia.com/vgpu-mode mig, and no such GPU is in MIG mode")]


def test_an_instance_of_another_size_is_said(convert):
    job = only(convert(manifest("nvidia.com/mig-3g.20gb: 1"), "h100-mig"))
    assert job.spec["profile"] == "H100-3-40C"
    text = "H100-3-40C has about 38352 MiB for programs; no smaller GPU instance of this host holds that"
    assert f"GPU instance 3g.20gb: {text}" in job.kept
    assert f"GPU instance 1g.12gb: {text}" in only(convert(manifest("nvidia.com/mig-1g.12gb: 1"), "h100-mig")).kept, (
        "1g.10gb has less memory than is asked"
    )
    assert only(convert(manifest("nvidia.com/mig-1g.5gb: 1"), "h100-mig")).spec["profile"] == "H100-1-10C"
    with pytest.raises(HostCannot, match=r"its GPU instances are 1g.10gb, 3g.40gb"):
        convert(manifest("nvidia.com/mig-4g.40gb: 1"), "h100-mig")


@pytest.mark.parametrize(
    ("labels", "profile"),
    [
        ("cloud.google.com/gke-gpu-partition-size: 1g.10gb", "H100-1-10C"),
        ("cloud.google.com/gke-gpu-sharing-strategy: time-sharing, "
         "cloud.google.com/gke-max-shared-clients-per-gpu: '8'", "H100-10C"),
    ],
)  # fmt: skip
def test_labels_of_gke(convert, labels, profile):
    job = only(convert(manifest("nvidia.com/gpu: 1", spec=f"  nodeSelector: {{{labels}}}\n"), "h100-mig"))
    assert job.spec["profile"] == profile
    assert not [text for text in job.left_out if "node label" in text]


def test_a_size_of_gke_that_is_none(convert):
    text = manifest("nvidia.com/gpu: 1", spec="  nodeSelector: {cloud.google.com/gke-gpu-partition-size: half}\n")
    with pytest.raises(InvalidInput, match=r"gke-gpu-partition-size 'half' is no GPU instance such as 1g.5gb"):
        convert(text)


def test_required_node_affinity_chooses_gpus(convert):
    product = "{key: nvidia.com/gpu.product, operator: In, values: [Tesla-T4, NVIDIA-L4]}"
    zone = "{key: zone, operator: In, values: [a]}, {key: spot, operator: DoesNotExist}"
    job = only(convert(manifest("nvidia.com/gpumem: 1000", spec=affinity(f"{{matchExpressions: [{product}, {zone}]}}")),
                       "mixed"))  # fmt: skip
    assert (job.spec["profile"], job.spec["gpu"]) == ("T4-2Q", ["0000:5e:00.0"])
    assert "nvidia.com/gpu.product Tesla-T4 or NVIDIA-L4" in job.kept
    assert {"node label zone: this is about nodes", "node label spot DoesNotExist"} <= set(job.left_out)
    without = product.replace("In,", "NotIn,").replace("Tesla-T4, NVIDIA-L4", "NVIDIA-A100")
    job = only(convert(manifest("nvidia.com/gpumem: 1000", spec=affinity(f"{{matchExpressions: [{without}]}}")),
                       "mixed"))  # fmt: skip
    assert job.spec["profile"] == "T4-2Q"
    terms = [f"{{matchExpressions: [{{key: nvidia.com/gpu.product, operator: In, values: [{name}]}}]}}"
             for name in ("Tesla-T4", "NVIDIA-L4")]  # fmt: skip
    job = only(convert(manifest("nvidia.com/gpumem: 1000", spec=affinity(", ".join(terms))), "mixed"))
    assert job.spec["gpu"] == ["0000:5e:00.0"], "either label is enough"
    terms[1] = "{matchExpressions: [{key: zone, operator: In, values: [b]}]}"
    job = only(convert(manifest("nvidia.com/gpumem: 1000", spec=affinity(", ".join(terms))), "mixed"))
    assert "2 alternatives of nodes: choose the GPUs by the field gpu" in job.left_out


def test_room_is_counted(convert):
    container = "{name: main, image: i, resources: {limits: {nvidia.com/gpumem: 8000}}}"
    text = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: job}\nspec:\n  replicas: 6\n"
        "  selector: {matchLabels: {app: job}}\n  template:\n    metadata: {labels: {app: job}}\n"
        f"    spec: {{containers: [{container}]}}\n"
    )
    assert "now there is room for 4 of 6 such VMs on this host" in only(convert(text)).kept
    assert not [note for note in only(convert(text.replace("6", "4"))).kept if "room" in note]
    two = text.replace("limits: {", "limits: {nvidia.com/gpu: 3, ")
    assert "now there is room for 1 of 6 such VMs on this host" in only(convert(two)).kept
    job = only(
        convert(
            manifest("nvidia.com/gpumem: 8000"),
            prepare=lambda calls: calls.create_vm("big", profile="A100-40C", disk="20GiB"),
        )
    )
    assert "now there is no room for it on this host: another VM has it" in job.kept
    shares = text.replace("limits: {", "limits: {nvidia.com/gpucores: 50, ")
    assert "now there is room for 0 of 6 such VMs on this host" in only(convert(shares)).kept, (
        "also before set-scheduler"
    )
    whole = text.replace("nvidia.com/gpumem: 8000", "nvidia.com/gpu: 2")
    assert "now there is room for 4 of 6 such VMs on this host" in only(convert(whole, "hgx-h100")).kept


def test_a_sidecar_runs_beside_the_others(convert):
    sidecar = "{name: proxy, image: example.org/p, restartPolicy: Always, resources: {limits: {cpu: 2, memory: 1Gi}}}"
    first = "{name: fetch, image: example.org/f, resources: {limits: {cpu: 1, memory: 1Gi}}}"
    text = manifest("nvidia.com/gpumem: 3000, cpu: 4, memory: 8Gi", spec=f"  initContainers: [{sidecar}, {first}]\n")
    job = only(convert(text, units=True))
    assert (job.spec["vcpus"], job.spec["memory"]) == (6, "10240MiB")
    assert [unit.name for unit in job.units] == ["job-job-main.service", "job-job-proxy.service"]
    assert "container fetch, which runs before the others: start it by hand" in job.left_out


def test_folders_and_shared_memory_of_a_container(convert):
    volumes = (
        "  volumes:\n  - {name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}\n"
        "  - {name: data, persistentVolumeClaim: {claimName: models}}\n  - {name: dir, hostPath: {path: /mnt/nfs}}\n"
    )
    mounts = (
        ", workingDir: '/work dir', volumeMounts: [{name: shm, mountPath: /dev/shm}, "
        "{name: data, mountPath: /models}, {name: dir, mountPath: /d}], "
        "envFrom: [{secretRef: {name: hf}}], ports: [{containerPort: 8000}, {containerPort: 80, hostPort: 8080}]"
    )
    job = only(convert(manifest("nvidia.com/gpumem: 3000", container=mounts, more=volumes), units=True))
    (unit,) = job.units
    assert '"--workdir=/work dir" --shm-size=8192m ' in unit.text
    assert [text for text in job.left_out if "volume" in text or "env" in text or "ports" in text] == [
        "container main: envFrom, values of the cluster: secretRef hf",
        "container main: ports 8000, 80 (hostPort 8080): they are the guest's own, allow them in its firewall",
        "container main: volume data at /models: persistentVolumeClaim models",
        "container main: volume dir at /d: hostPath /mnt/nfs",
    ]
    unlimited = volumes.replace(", sizeLimit: 8Gi", "")
    (unit,) = only(convert(manifest("nvidia.com/gpumem: 3000", container=mounts, more=unlimited), units=True)).units
    assert "--shm-size=0 " in unit.text
    with pytest.raises(InvalidInput, match="sizeLimit: 'much' is not an amount"):
        convert(manifest("nvidia.com/gpumem: 1", container=mounts, more=volumes.replace("8Gi", "much")), valid=False)


def test_what_an_operator_scales_and_starts_is_said(convert):
    container = "{name: w, image: r, resources: {limits: {nvidia.com/gpumem: 8000}}}"
    text = (
        "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: rc}\nspec:\n  enableInTreeAutoscaling: true\n"
        "  workerGroupSpecs:\n  - groupName: small\n    replicas: 1\n    minReplicas: 0\n    maxReplicas: 4\n"
        f"    rayStartParams: {{num-gpus: '1'}}\n    template: {{spec: {{containers: [{container}]}}}}\n"
    )
    left_out = only(convert(text)).left_out
    for lost in (
        "enableInTreeAutoscaling true of the RayCluster",
        "minReplicas 0: the number of VMs is fixed",
        "maxReplicas 4: the number of VMs is fixed",
        "rayStartParams num-gpus=1",
    ):
        assert lost in left_out
    assert [text for text in left_out if "$KUBERAY_GEN_RAY_START_CMD" in text]
    service = (
        "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nmetadata: {name: llm}\nspec:\n"
        f"  baseRefs: [{{name: kserve-multi-node}}]\n  template: {{containers: [{container}]}}\n"
        f"  prefill: {{template: {{containers: [{container}]}}}}\n"
    )
    decode, prefill = convert(service).data
    assert (decode.job, prefill.job) == ("llm", "llm-prefill")
    assert "baseRefs kserve-multi-node of the LLMInferenceService" in decode.left_out


def test_a_name_that_two_objects_have_needs_more(convert):
    text = manifest("nvidia.com/gpumem: 3000")
    deployment = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: job}\nspec:\n"
        "  selector: {matchLabels: {app: job}}\n  template:\n    metadata: {labels: {app: job}}\n"
        "    spec: {containers: [{name: m, image: i, resources: {limits: {nvidia.com/gpumem: 9000}}}]}\n"
    )
    both = f"{text}---\n{deployment}"
    with pytest.raises(InvalidInput, match="2 objects have the name job: Pod") as raised:
        convert(both, job="job")
    assert raised.value.hint == "say which: --job pod/job, --job deployment/job"
    assert [job.job for job in convert(both).data] == ["pod/job", "deployment/job"]
    assert only(convert(both, job="Deployment/job")).kind == "Deployment"
    spaces = "---\n".join(manifest("nvidia.com/gpumem: 3000", metadata=f", namespace: {n}") for n in "ab")
    assert [job.job for job in convert(spaces).data] == ["a/pod/job", "b/pod/job"]
    assert only(convert(spaces, job="b/pod/job")).namespace == "b"


def test_the_command_for_all_pods_chooses_them_alone(convert, tmp_path):
    from vgpuctl.cli.commands.jobs import _specs_text

    container = "{name: main, image: i, resources: {limits: {nvidia.com/gpumem: 3000}}}"
    text = (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: train}\nspec:\n  pytorchReplicaSpecs:\n"
        f"    Master: {{template: {{spec: {{containers: [{container}]}}}}}}\n"
        f"    Worker: {{replicas: 2, template: {{spec: {{containers: [{container}]}}}}}}\n"
    )
    shown = _specs_text(convert(text).data)
    assert f"vgpuctl import-job {tmp_path}/job.yaml --job=train-worker | vgpuctl ensure-vm -f - --count 2" in shown
    with pytest.raises(InvalidInput, match="a second document begins here"):
        parse_vm_spec(shown, "standard input")


@pytest.mark.parametrize("name", ["gpu.example.com", "shared-gpu", "mig-large.nvidia.com"])
def test_a_class_of_gpus_that_is_not_known_is_an_error_with_its_line(convert, name):
    claim = (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec:\n  devices:\n    requests:\n"
        f"    - {{name: g, exactly: {{deviceClassName: {name}}}}}\n"
    )
    text = f"{manifest('cpu: 1', more='  resourceClaims: [{name: g, resourceClaimName: c}]')}\n---\n{claim}"
    with pytest.raises(InvalidInput, match=rf"job.yaml:15: devices of the class {name}, which vgpuctl does not know"):
        convert(text)
    amd = text.replace(name, "gpu.amd.com")
    assert only(convert(amd, "mixed")).spec["gpu"] == ["0000:af:00.0"]


def test_a_compute_domain_makes_claims(convert):
    domain = (
        "---\napiVersion: resource.nvidia.com/v1beta1\nkind: ComputeDomain\nmetadata: {name: imex}\n"
        "spec: {numNodes: 2, channel: {resourceClaimTemplate: {name: imex-channel}}}\n"
    )
    claims = "  resourceClaims: [{name: c, resourceClaimTemplateName: imex-channel}]\n"
    job = only(convert(manifest("nvidia.com/gpu: 1", more=claims) + domain))
    assert job.spec["profile"] == "A100-40C"
    assert [text for text in job.left_out if text.startswith("ComputeDomain imex: its pods reach each other")]


def test_each_name_of_a_template_is_a_device_of_its_own(convert):
    claim = (
        "---\napiVersion: resource.k8s.io/v1\nkind: {kind}\nmetadata: {{name: one}}\nspec:{spec}\n"
        "    devices: {{requests: [{{name: g, exactly: {{deviceClassName: gpu.nvidia.com}}}}]}}\n"
    )
    claims = "  resourceClaims: [{{name: a, {key}: one}}, {{name: b, {key}: one}}]\n"
    templates = manifest("cpu: 1", more=claims.format(key="resourceClaimTemplateName"))
    text = templates + claim.format(kind="ResourceClaimTemplate", spec="\n  spec:")
    assert only(convert(text, "hgx-h100")).spec["gpus"] == 2
    shared = manifest("cpu: 1", more=claims.format(key="resourceClaimName"))
    text = shared + claim.format(kind="ResourceClaim", spec="").replace("    devices", "  devices")
    assert only(convert(text, "hgx-h100")).spec["gpus"] == 1, "a ResourceClaim is one, however often it is named"


def test_a_variable_that_the_operator_sets(convert):
    container = (
        "{name: w, image: r, command: [sh, -c], args: ['run --size=$(LWS_GROUP_SIZE) --to=$(LWS_LEADER_ADDRESS)']}"
    )
    container = container[:-1] + ", resources: {limits: {nvidia.com/gpumem: 8000}}}"
    text = (
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: v}\nspec:\n  replicas: 1\n"
        f"  leaderWorkerTemplate:\n    size: 2\n    workerTemplate: {{spec: {{containers: [{container}]}}}}\n"
    )
    job = only(convert(text, units=True))
    (unit,) = job.units
    assert "--size=2 --to=$$(LWS_LEADER_ADDRESS)" in unit.text
    assert "LWS_GROUP_SIZE=2" in unit.variables
    assert "container w: $(LWS_LEADER_ADDRESS) in its command: write the values into the unit" in job.left_out
    with pytest.raises(InvalidInput, match="size 0: a group has one pod at least"):
        convert(text.replace("size: 2", "size: 0"))


def test_a_part_of_a_gpu_by_an_annotation(convert):
    job = only(convert(manifest("cpu: 1", metadata=", annotations: {gpu-fraction: '0.5'}")))
    assert (job.words, job.spec["profile"]) == (("gpu-fraction 0.5 of 1 GPU",), "A100-20C")
    several = ", annotations: {gpu-memory: '2000', gpu-fraction-num-devices: '2'}"
    job = only(convert(manifest("cpu: 1", metadata=several), "l40s-x4"))
    assert (job.spec["profile"], job.spec["placement"]) == ("L40S-3Q:2", "breadth")
    for given in ("{gpu-fraction: '2'}", "{gpu-fraction: half}", "{gpu-memory: 2Gi}",
                        "{gpu-fraction: '0.5', gpu-memory: '100'}"):  # fmt: skip
        with pytest.raises(InvalidInput, match=r"job.yaml:1: gpu-"):
            convert(manifest("cpu: 1", metadata=f", annotations: {given}"))


def test_the_steps_of_a_workflow_are_pods(convert):
    text = (
        "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: gpu-}\nspec:\n  entrypoint: train\n"
        "  templates:\n  - name: train\n    nodeSelector: {zone: a}\n"
        "    container: {image: i, command: [run], resources: {limits: {nvidia.com/gpumem: 8000}}}\n"
        "  - name: all\n    steps: [[{name: a, template: train}]]\n"
        "  - name: s\n    script: {image: i, source: x, resources: {limits: {nvidia.com/gpu: 1}}}\n"
    )
    train, script = convert(text).data
    assert (train.job, train.spec["name"], train.spec["profile"]) == ("gpu-train", "gpu-train", "A100-10C")
    assert "node label zone: this is about nodes" in train.left_out
    assert (script.job, script.spec["profile"]) == ("gpu-s", "A100-40C")
    assert "container main: source" in script.left_out


def test_a_gpu_where_nobody_looks_for_it_is_said(convert):
    runtime = "apiVersion: example.org/v1\nkind: Runtime\nmetadata: {name: r}\nspec: {gpuType: nvidia.com/gpu}\n"
    with pytest.raises(
        NotFound, match=r"job.yaml:4: Runtime r asks for nvidia.com/gpu, and its pods are not in the file"
    ):
        convert(runtime)
    result = convert(manifest("nvidia.com/gpumem: 3000") + "---\n" + runtime)
    assert [note for note in result.notes if "Runtime r asks for nvidia.com/gpu" in note]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"spec": "  nodeSelector: [nvidia.com/gpu.product]\n"}, "nodeSelector: expected a mapping"),
        ({"spec": "  affinity: [1]\n"}, "affinity: expected a mapping"),
        ({"spec": affinity("1").replace("[1]", "text")}, "nodeSelectorTerms: expected a list"),
        ({"metadata": ", labels: [a, b]"}, "labels: expected a mapping"),
        ({"container": ", envFrom: x"}, "envFrom: expected a list"),
        ({"container": ", ports: 80"}, "ports: expected a list"),
        ({"more": "  volumes: {a: b}\n"}, "volumes: expected a list"),
        ({"container": ", volumeMounts: [{name: 5}]"}, "expected a name and a mountPath"),
    ],
)
def test_what_is_of_another_type_is_an_error_with_its_line(convert, options, problem):
    with pytest.raises(InvalidInput, match=r"job.yaml:\d+:\d+: ") as raised:
        convert(manifest("nvidia.com/gpumem: 3000", **options), valid=False)
    assert problem in raised.value.message
