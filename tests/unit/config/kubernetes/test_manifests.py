# SPDX-License-Identifier: Apache-2.0
"""Manifests: the pods of every kind that makes some, and input that wants to do harm."""

from __future__ import annotations

import json

import pytest

from tests.kubernetes_objects import check_manifests
from vgpuctl.config.kubernetes.manifests import MAX_DOCUMENTS, parse_manifests
from vgpuctl.config.kubernetes.pod_gpus import NodeLabel
from vgpuctl.config.kubernetes.pods import cpus_of, memory_mib_of
from vgpuctl.config.kubernetes.quantity import parse_quantity
from vgpuctl.errors import InvalidInput

POD = "{containers: [{name: main, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}"
TEMPLATE = f"template: {{metadata: {{labels: {{app: train}}, annotations: {{a: b}}}}, spec: {POD}}}"
SELECTED = f"selector: {{matchLabels: {{app: train}}}}, {TEMPLATE}"
OF_JOB = TEMPLATE.replace("spec: {", "spec: {restartPolicy: Never, ")


def manifest(kind: str, spec: str, api: str = "v1") -> str:
    """Return a manifest in YAML's short form."""
    return f"apiVersion: {api}\nkind: {kind}\nmetadata: {{name: train, namespace: ml}}\nspec: {spec}\n"


@pytest.mark.parametrize(
    ("text", "pods"),
    [
        (manifest("Pod", POD), [("", 1)]),
        (manifest("Deployment", f"{{replicas: 3, {SELECTED}}}", "apps/v1"), [("", 3)]),
        (manifest("StatefulSet", f"{{serviceName: train, replicas: 2, {SELECTED}}}", "apps/v1"), [("", 2)]),
        (manifest("DaemonSet", f"{{{SELECTED}}}", "apps/v1"), [("", 1)]),
        (manifest("Job", f"{{parallelism: 4, completions: 8, {OF_JOB}}}", "batch/v1"), [("", 4)]),
        (
            manifest(
                "CronJob", f"{{schedule: '@daily', jobTemplate: {{spec: {{parallelism: 2, {OF_JOB}}}}}}}", "batch/v1"
            ),
            [("", 2)],
        ),
        (manifest("Notebook", f"{{{TEMPLATE}}}", "kubeflow.org/v1"), [("", 1)]),
        (
            manifest(
                "PyTorchJob",
                f"{{pytorchReplicaSpecs: {{Master: {{{TEMPLATE}}}, Worker: {{replicas: 3, {TEMPLATE}}}}}}}",
                "kubeflow.org/v1",
            ),
            [("master", 1), ("worker", 3)],
        ),
        (
            manifest(
                "MPIJob",
                f"{{mpiReplicaSpecs: {{Launcher: {{{TEMPLATE}}}, Worker: {{replicas: 2, {TEMPLATE}}}}}}}",
                "kubeflow.org/v2beta1",
            ),
            [("launcher", 1), ("worker", 2)],
        ),
        (
            manifest(
                "PyTorchTrainingJob",
                f"{{replicaSpecs: [{{type: worker, replicas: 4, {TEMPLATE}}}]}}",
                "batch.tensorstack.dev/v1beta1",
            ),
            [("worker", 4)],
        ),
        (
            manifest(
                "JobSet",
                f"{{replicatedJobs: [{{name: w, replicas: 2, template: {{spec: {{parallelism: 3, {OF_JOB}}}}}}}]}}",
                "jobset.x-k8s.io/v1alpha2",
            ),
            [("w", 6)],
        ),
        (
            f"apiVersion: v1\nkind: List\nitems:\n- {{apiVersion: v1, kind: Pod, spec: {POD}}}\n",
            [("", 1)],
        ),
    ],
)
def test_the_pods_of_a_kind(text: str, pods: list[tuple[str, int]]) -> None:
    check_manifests(text)
    templates = parse_manifests(text, "job.yaml").templates
    assert [(template.role, template.pods) for template in templates] == pods
    assert all(template.containers[0].resources == {"nvidia.com/gpu": 1} for template in templates)


def test_what_a_pod_has_is_read() -> None:
    text = manifest(
        "Pod",
        """
  nodeSelector: {nvidia.com/gpu.product: Tesla-T4, zone: a}
  tolerations: [{operator: Exists}]
  volumes: [{name: data, emptyDir: {}}]
  initContainers: [{name: before, image: b}]
  containers:
  - name: main
    image: example.org/i
    command: [python, -m, serve]
    args: ["--port", "8000"]
    env: [{name: A, value: "1"}, {name: B}, {name: C, valueFrom: {secretKeyRef: {name: s, key: k}}}]
    volumeMounts: [{name: data, mountPath: /data}]
    resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {cpu: "2", memory: 1500M, nvidia.com/gpu: "1"}}
  - {name: side, image: s, resources: {requests: {cpu: 0.25, memory: 100Mi}}}""",
    )
    check_manifests(text)
    (template,) = parse_manifests(text, "job.yaml").templates
    main = template.containers[0]
    assert (main.command, main.args, main.env) == (
        ("python", "-m", "serve"), ("--port", "8000"), (("A", "1"), ("B", ""))
    )  # fmt: skip
    assert main.left_out == ("env C, whose value is in the cluster: secretKeyRef s k", "volume data at /data: emptyDir")
    assert (cpus_of(template.containers), memory_mib_of(template.containers)) == (3, 1531)
    assert template.node_labels == (NodeLabel("nvidia.com/gpu.product", ("Tesla-T4",)), NodeLabel("zone", ("a",)))
    assert (template.left_out, len(template.init_containers)) == (("tolerations of the pod",), 1)


def test_a_text_that_yaml_took_for_something_else_is_read_as_it_is_in_json() -> None:
    text = manifest("Pod", POD.replace("image: i", "image: i, args: [8000, true], env: [{name: A, value: 1}]"))
    (template,) = parse_manifests(text, "job.yaml").templates
    (main,) = template.containers
    assert (main.args, main.env) == (("8000", "true"), (("A", "1"),))


def test_several_documents_have_the_lines_of_the_file() -> None:
    text = f"# first\n---\n{manifest('Service', '{}')}---\n# only a comment\n---\n{manifest('Pod', POD)}...\n"
    check_manifests(text)
    read = parse_manifests(text, "job.yaml")
    assert read.others == ("job.yaml:3: Service train",)
    assert [(t.at, t.containers[0].at) for t in read.templates] == [("job.yaml:10", "job.yaml:13")]
    with pytest.raises(InvalidInput, match=r"job.yaml:14:"):
        parse_manifests(text.replace("...\n", "  bad: [\n"), "job.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "job.yaml has no manifest"),
        ("# nothing\n---\n", "job.yaml has no manifest"),
        ("name: vdi\nprofile: A100-4C\n", "this is no manifest of Kubernetes: it has no apiVersion and kind"),
        ("- 1\n", "this is no manifest"),
        ("just text", "this is no manifest"),
        (manifest("Deployment", f"{{replicas: -1, {TEMPLATE}}}"), "replicas is no whole number from 0 to 10000"),
        (manifest("Deployment", f"{{replicas: 1.5, {TEMPLATE}}}"), "replicas is no whole number"),
        (manifest("Deployment", f"{{replicas: 99999999999, {TEMPLATE}}}"), "replicas is no whole number"),
        (
            manifest("X", f"{{a: {{replicas: 9999, b: {{replicas: 9999, {TEMPLATE}}}}}}}"),
            "that is 99980001 pods, and the limit is 10000",
        ),
        (manifest("Pod", "{containers: [main]}"), "expected a container"),
        (manifest("Pod", "{containers: [{name: a, env: {A: b}}]}"), "env: expected a list"),
        (manifest("Pod", "{containers: [{name: a, env: [A]}]}"), "expected a name and a value"),
        (manifest("Pod", "{containers: [{name: a, command: run}]}"), "command: expected a list"),
        (
            manifest("Pod", "{containers: [{name: a, resources: {limits: {cpu: many}}}]}"),
            "cpu: 'many' is not an amount",
        ),
        (
            manifest("Pod", "{containers: [{name: a, resources: {limits: {x.com/g: 1}, requests: {x.com/g: 2}}}]}"),
            "x.com/g: request 2 and limit 1 differ",
        ),
        ("a: &a [1]\nb: [*a, *a]\n", "an alias (*name) is not allowed here"),
        ("a: " + "[" * 200 + "]" * 200, "it is nested too deeply"),
        ("apiVersion: v1\nkind: Pod\nkind: Pod\n", "the key appears twice"),
        ("apiVersion: v1\nkind: !!python/object:os.system Pod\n", "a tag (!name) is not allowed here"),
        ("apiVersion: v1\n\x00\n", "job.yaml:2: it has a NUL byte: this is no text file"),
    ],
)
def test_what_is_no_manifest_is_refused_at_its_place(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse_manifests(text, "job.yaml")
    assert problem in raised.value.message
    assert "job.yaml" in raised.value.message


def test_thousands_of_documents_are_refused_before_one_is_read() -> None:
    text = f"---\n{manifest('Pod', '[')}" * 2000
    with pytest.raises(InvalidInput, match=f"has 2001 documents, and the limit is {MAX_DOCUMENTS}"):
        parse_manifests(text, "job.yaml")


@pytest.mark.parametrize(
    ("text", "number"), [("2", 2), ("500m", 0.5), ("4Gi", 4 << 30), ("1e3", 1000), ("1.5k", 1500), (".5", 0.5), (3, 3)]
)
def test_quantities(text: object, number: float) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", "1 Gi", "1GiB", "-1", "0x10", "1e999", "9" * 30, "١", "1\n", None, [], "1Ei" + "0" * 9]
)
def test_what_is_no_quantity(text: object) -> None:
    with pytest.raises(ValueError, match=r"amount|large"):
        parse_quantity(text)


def test_thousands_of_labels_and_templates_need_no_memory_of_their_product() -> None:
    labels = ", ".join(f"l{number}: '{number}'" for number in range(3000))
    templates = ", ".join(f"{{replicas: 1, {TEMPLATE}}}" for _ in range(300))
    text = f"apiVersion: v1\nkind: X\nmetadata: {{name: x, labels: {{{labels}}}}}\nspec: {{parts: [{templates}]}}\n"
    read = parse_manifests(text, "job.yaml").templates
    assert (len(read), sum(len(template.labels) for template in read)) == (300, 0)


def test_names_cannot_forge_lines() -> None:
    text = 'apiVersion: v1\nkind: "Pod\\nfake"\nmetadata: {name: "a\\nvgpuctl: done\\e[31m"}\nspec: ' + POD
    (template,) = parse_manifests(text, "job.yaml").templates
    assert (template.kind, template.name) == ("Pod?fake", "a?vgpuctl: done?[31m")


def test_annotations_that_say_something_of_gpus_are_kept_and_no_others() -> None:
    annotations = {
        "tencent.com/vcuda-core-limit": "50",
        "hami.io/use-Ascend310P-uuid": "A-B",
        "example.org/nvidia.com": "no",
        "notnvidia.com/mode": "no",
        "gpu.nvidia.com/mode": "x",
    }
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: job, annotations: " + json.dumps(annotations) + "}\n"
    (template,) = parse_manifests(text + "spec: {containers: [{name: main, image: i}]}\n", "job.yaml").templates
    assert set(template.annotations) == {
        "tencent.com/vcuda-core-limit", "hami.io/use-Ascend310P-uuid", "gpu.nvidia.com/mode"
    }  # fmt: skip
