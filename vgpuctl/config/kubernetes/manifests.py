# SPDX-License-Identifier: Apache-2.0
"""Reads manifests: the pods that they make, whatever makes them.

A pod's specification is the mapping with `containers`: a Pod's own, or one below a `template` of a Deployment, a Job,
or a training job of any operator. So no list of kinds is needed, and a kind without pods is said to have none. How many
pods there are, the `replicas` and `parallelism` above it say, multiplied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vgpuctl.config.kubernetes.claims import CLAIM_TEMPLATE, DeviceClaim, is_claim, parse_claim, parse_refs
from vgpuctl.config.kubernetes.containers import read_container, read_containers, volumes_of
from vgpuctl.config.kubernetes.pod_gpus import FRACTION_ANNOTATIONS, NodeLabel, parse_node_affinity
from vgpuctl.config.kubernetes.pods import Container, PodTemplate
from vgpuctl.config.kubernetes.values import (
    MAX_TEXT,
    as_list,
    as_mapping,
    as_scalar,
    as_shown,
    as_text,
    as_texts,
    mapping_at,
    place_of,
    problem_at,
)
from vgpuctl.config.kubernetes.words import DOMAINS, find_word
from vgpuctl.config.not_text import refuse_nul
from vgpuctl.config.yaml_reader import Document, KeyPath, load_document
from vgpuctl.errors import InvalidInput
from vgpuctl.value import Value, replace

MAX_DOCUMENTS = 500
MAX_PODS = 10_000
_SEPARATOR = re.compile(r"^(---|\.\.\.)[ \t]*(#.*)?$\n?", re.MULTILINE)
_RESTARTS = {"Always": "always", "OnFailure": "on-failure", "Never": "no"}
_COUNT_KEYS = ("replicas", "parallelism", "size", "minReplicas")
_COMPONENTS = ("predictor", "transformer", "explainer")
"""Of KServe's InferenceService: each has pods of its own."""
_ROLE_KEYS = ("type", "name", "groupName")
"""What tells the templates of a list apart."""
_SCHEDULERS = frozenset({"scheduler.tensorstack.dev", "kueue.x-k8s.io", "hami.io", "kai.scheduler"})
"""Domains of labels and annotations of schedulers that give out GPUs, besides those of the words themselves."""
_QUEUE_LABELS = (
    "scheduler.tensorstack.dev/queue",
    "kueue.x-k8s.io/queue-name",
    "volcano.sh/queue-name",
    "kai.scheduler/queue",
)
_OF_POD = frozenset({
    "containers", "initContainers", "nodeSelector", "restartPolicy", "schedulerName", "resourceClaims", "volumes",
    "affinity", "hostNetwork",
})  # fmt: skip
"""What is read, or says nothing about a VM; all else is said to be left out."""
_OF_JOBS = frozenset({
    "schedule", "completions", "backoffLimit", "activeDeadlineSeconds", "suspend", "minAvailable", "plugins",
    "slotsPerWorker", "runPolicy", "serveConfigV2", "jobTemplate", "baseRefs", "enableInTreeAutoscaling",
})  # fmt: skip
"""What says when, how often and together with what the pods of an object run: no VM keeps it."""
_OF_GROUPS = ("minReplicas", "maxReplicas", "scaleTarget", "rayStartParams")
"""What says of a group of pods how many there may be, and how Ray's operator starts them: no VM keeps it."""
_STEPS = ("container", "script")
"""Of Argo's Workflows: each entry of `templates` has the one container of a pod."""
_GROUP_SIZE = "LWS_GROUP_SIZE"
"""The variable that LeaderWorkerSet's controller sets (kubernetes-sigs/lws, pkg/utils/pod)."""
_RAY_COMMAND = (
    "ray start, which Ray's operator runs in the containers by rayStartParams ($KUBERAY_GEN_RAY_START_CMD): write it "
    "into their units"
)


class Manifests(Value):
    """What files of manifests have: pods, what they claim, and the kinds without either.

    `unread`: what these say of GPUs in words that are known, where nobody looks for it.
    """

    templates: tuple[PodTemplate, ...]
    others: tuple[str, ...] = ()
    claims: tuple[DeviceClaim, ...] = ()
    unread: tuple[str, ...] = ()


def parse_manifests(text: str, name: str, file: str = "") -> Manifests:
    """Read one file of manifests; `name` is the file's, for messages, and `file` for commands, if it is a file.

    Raises:
        InvalidInput: each problem as `file:line:column`: it is no YAML, or no manifest.
    """
    refuse_nul(name, file, text)
    templates: list[PodTemplate] = []
    others: list[str] = []
    claims: list[DeviceClaim] = []
    unread: list[str] = []
    for document in _documents(text, name):
        for path, value in _objects(document, document.value, ()):
            if is_claim(value):
                claims.append(_claim(document, value, path))
                continue
            read = tuple(_Reader(document, value, path).templates())
            templates += read
            if not read:
                others.append(f"{place_of(document, path)}: {as_text(value.get('kind'), 'object')} {_name_of(value)}")
                unread += _unread(document, value, path)
    if not templates and not others and not claims:
        raise InvalidInput(f"{name} has no manifest", hint="kubectl get deployment NAME -o yaml prints one")
    return Manifests(tuple(templates), tuple(others), tuple(claims), tuple(unread))


def _unread(document: Document, value: Mapping[str, Any], path: KeyPath) -> Iterator[str]:
    """Yield where an object of a kind without pods names a GPU's resource."""
    for inner, word in _words_in(value, path):
        kind, name = as_text(value.get("kind"), "object"), _name_of(value)
        yield f"{place_of(document, inner)}: {kind} {name} asks for {word}, and its pods are not in the file"
        return


def _words_in(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str) and find_word(value) is not None:
        yield path, value
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(key, str) and find_word(key) is not None:
            yield (*path, key), key
        yield from _words_in(item, (*path, key))


def _documents(text: str, name: str) -> Iterator[Document]:
    starts = [(0, 0)] + [(match.start(), match.end()) for match in _SEPARATOR.finditer(text)]
    if len(starts) > MAX_DOCUMENTS:
        raise InvalidInput(
            f"{name} has {len(starts)} documents, and the limit is {MAX_DOCUMENTS}", hint="split the file"
        )
    ends = [start for start, _ in starts[1:]] + [len(text)]
    for (_, begin), end in zip(starts, ends, strict=True):
        part = text[begin:end]
        lines = (line.strip() for line in part.splitlines())
        if any(line and not line.startswith(("#", "%")) for line in lines):
            yield load_document(part, name, lines_before=text.count("\n", 0, begin))


def _objects(document: Document, value: object, path: KeyPath) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """Yield the objects of a document: itself, or the items of a List."""
    if value is None:
        return
    if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str) or "apiVersion" not in value:
        raise problem_at(document, path, "this is no manifest of Kubernetes: it has no apiVersion and kind")
    items = value.get("items")
    if value["kind"].endswith("List") and isinstance(items, list):
        for number, item in enumerate(items):
            yield from _objects(document, item, (*path, "items", number))
    else:
        yield path, value


def _claim(document: Document, value: Mapping[str, Any], path: KeyPath) -> DeviceClaim:
    inner = ("spec", "spec") if value["kind"] == CLAIM_TEMPLATE else ("spec",)
    requests: object = value
    for key in (*inner, "devices", "requests"):
        requests = as_mapping(requests).get(key)
    lines: dict[int | None, str] = {None: place_of(document, path)}
    for number in range(len(requests) if isinstance(requests, list) else 0):
        lines[number] = place_of(document, (*path, *inner, "devices", "requests", number))
    return parse_claim(value, _name_of(value), _namespace_of(value), lines)


class _Reader:
    """One pass over an object."""

    def __init__(self, document: Document, value: Mapping[str, Any], path: KeyPath) -> None:
        self._document = document
        self._object = value
        self._path = path
        metadata = as_mapping(value.get("metadata"))
        inner = (*path, "metadata")
        self._labels = _kept_labels(mapping_at(document, metadata, "labels", inner))
        self._annotations = _kept_labels(mapping_at(document, metadata, "annotations", inner))

    def templates(self) -> Iterator[PodTemplate]:
        spec, path = as_mapping(self._object.get("spec")), (*self._path, "spec")
        if self._object.get("kind") == "InferenceService":
            for role in _COMPONENTS:
                if isinstance(spec.get(role), Mapping):
                    yield self._component(spec[role], (*path, role), role)
        elif self._object.get("kind") == "LeaderWorkerSet":
            yield from self._group(spec, path)
        else:
            yield from self._find(self._object, self._path, (), 1)

    def _group(self, spec: Mapping[str, Any], path: KeyPath) -> Iterator[PodTemplate]:
        """Yield the templates of a LeaderWorkerSet: without one of its own, the leader is a worker."""
        group, inner = as_mapping(spec.get("leaderWorkerTemplate")), (*path, "leaderWorkerTemplate")
        groups, size = self._count({"replicas": spec.get("replicas")}, path), self._count(group, inner)
        if not size:
            raise problem_at(self._document, (*inner, "size"), "size 0: a group has one pod at least")
        leaders = groups if isinstance(group.get("leaderTemplate"), Mapping) else 0
        for role, pods in (("leader", leaders), ("worker", groups * size - leaders)):
            template = group.get(f"{role}Template")
            if isinstance(template, Mapping) and isinstance(as_mapping(template.get("spec")).get("containers"), list):
                where = (*inner, f"{role}Template")
                made = self._template(template, template["spec"], where, (role,), max(pods, 0))
                yield replace(made, containers=tuple(_with_variable(c, _GROUP_SIZE, size) for c in made.containers))

    def _component(self, spec: Mapping[str, Any], path: KeyPath, role: str) -> PodTemplate:
        """Return the pods of a component of KServe's InferenceService: a pod's own keys, and a model in a runtime."""
        named = [
            key for key in spec if key == "model" or (key not in _OF_POD and "storageUri" in as_mapping(spec[key]))
        ]
        values = {key: {**spec[key], "name": "kserve-container"} for key in named if isinstance(spec[key], Mapping)}
        runtime = next((as_text(value.pop("runtime", None), "") for value in values.values()), "")
        volumes = volumes_of(self._document, spec, path)
        models = [read_container(self._document, value, (*path, key), volumes) for key, value in values.items()]
        pods = self._count({"minReplicas": spec.get("minReplicas")}, path)
        others = {key: value for key, value in spec.items() if key not in (*named, *_OF_GROUPS)}
        made = self._template({}, others, path, () if role == "predictor" else (role,), pods, spec_path=path)
        made = replace(made, left_out=(*made.left_out, *_of_group(spec)))
        return replace(made, containers=(*models, *made.containers), runtime=runtime or None)

    def _find(self, value: object, path: KeyPath, roles: tuple[str, ...], pods: int) -> Iterator[PodTemplate]:
        """Yield the templates at or below a value. `roles`: the keys above it that tell templates apart."""
        if isinstance(value, list):
            for number, item in enumerate(value):
                yield from self._find(item, (*path, number), roles, pods)
        if not isinstance(value, Mapping):
            return
        spec = value.get("spec")
        if isinstance(spec, Mapping) and isinstance(spec.get("containers"), list):
            yield self._template(value, spec, path, roles, pods)
            return
        step = next((key for key in _STEPS if isinstance(value.get(key), Mapping) and "image" in value[key]), None)
        if step is not None and isinstance(path[-1], int):
            yield self._step(value, path, step, roles, pods)
            return
        pods *= self._count(value, path) if path != self._path else 1
        role = next((value[key] for key in _ROLE_KEYS if isinstance(value.get(key), str)), None)
        if role is not None and isinstance(path[-1] if path else None, int) and len(path) > len(self._path):
            roles = (*roles, role)
        for key, item in value.items():
            if key == "template" and isinstance(item, Mapping) and isinstance(item.get("containers"), list):
                inner = (*path, key)  # of KServe's LLMInferenceService: a pod's specification without metadata
                yield self._template({}, item, inner, roles, pods, spec_path=inner)
                continue
            is_role = isinstance(item, Mapping) and "template" in item
            named = key.lower().removesuffix("groupspec") if is_role else None  # of Ray: headGroupSpec
            templates = self._find(item, (*path, key), (*roles, named) if named and named != "spec" else roles, pods)
            policy = _RESTARTS.get(as_text(value.get("restartPolicy"), "")) if key == "template" else None
            lost = tuple(_of_group(value)) if key == "template" else ()
            for made in templates:  # Kubeflow's jobs say the policy beside the template, and set the pods' by it
                yield replace(made, restart=policy or made.restart, left_out=(*made.left_out, *lost))

    def _step(
        self, value: Mapping[str, Any], path: KeyPath, key: str, roles: tuple[str, ...], pods: int
    ) -> PodTemplate:
        """Return the pod of a step of an Argo Workflow: one container beside a pod's own keys."""
        main = read_container(
            self._document, {"name": "main", **value[key]}, (*path, key), volumes_of(self._document, value, path)
        )
        spec = {name: item for name, item in value.items() if name not in ("name", "metadata", key)}
        name = (as_text(value.get("name"), ""),) if value.get("name") else ()
        made = self._template(value, spec, path, (*roles, *name), pods, spec_path=path)
        return replace(made, containers=(main, *made.containers), restart="no")

    def _count(self, value: Mapping[str, Any], path: KeyPath) -> int:
        for key in _COUNT_KEYS:
            count = value.get(key)
            if count is None or (key == "size" and not isinstance(count, int)):
                continue
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_PODS:
                raise problem_at(self._document, (*path, key), f"{key} is no whole number from 0 to {MAX_PODS}")
            return count * self._count({"replicas": value.get("numOfHosts")}, path) if "numOfHosts" in value else count
        return 1

    def _template(
        self,
        value: Mapping[str, Any],
        spec: Mapping[str, Any],
        path: KeyPath,
        roles: tuple[str, ...],
        pods: int,
        *,
        spec_path: KeyPath | None = None,
    ) -> PodTemplate:
        if pods > MAX_PODS:
            raise problem_at(self._document, path, f"that is {pods} pods, and the limit is {MAX_PODS}")
        metadata = as_mapping(value.get("metadata"))
        inner = (*path, "metadata")
        labels = {**self._labels, **_kept_labels(mapping_at(self._document, metadata, "labels", inner))}
        scheduler = as_mapping(as_mapping(as_mapping(self._object.get("spec")).get("scheduler")).get("t9kScheduler"))
        own = mapping_at(self._document, metadata, "annotations", inner)
        annotations = {**self._annotations, **_kept_labels(own)}
        queue = scheduler.get("queue") or next((labels[label] for label in _QUEUE_LABELS if label in labels), None)
        spec_path = (*path, "spec") if spec_path is None else spec_path
        containers, before = read_containers(self._document, spec, spec_path)
        required, of_affinity = parse_node_affinity(self._document, spec, spec_path)
        selector = as_texts(mapping_at(self._document, spec, "nodeSelector", spec_path))
        selected = tuple(NodeLabel(key, (as_shown(text),)) for key, text in selector.items())
        return PodTemplate(
            kind=as_text(self._object.get("kind"), "object"),
            name=_name_of(self._object),
            namespace=_namespace_of(self._object),
            role="-".join(roles),
            pods=pods,
            containers=containers,
            init_containers=before,
            annotations=annotations,
            node_labels=(*selected, *required),
            labels=labels,
            restart=_RESTARTS.get(as_text(spec.get("restartPolicy"), ""), "always"),
            queue=None if queue is None else str(queue),
            at=place_of(self._document, path),
            left_out=(
                *self._lost(self._object.get("spec")),
                *(f"{key} of the pod" for key, item in spec.items() if key not in _OF_POD and item),
                *of_affinity,
            ),
            claims=parse_refs(spec),
        )

    def _lost(self, spec: object) -> Iterator[str]:
        """Yield what an object says about its pods that no VM keeps; a CronJob says it of the jobs that it makes."""
        kind = as_text(self._object.get("kind"), "object")
        if spec is self._object.get("spec") and kind.startswith("Ray"):
            yield _RAY_COMMAND
        for key, item in as_mapping(spec).items():
            if key == "jobTemplate":
                yield from self._lost(as_mapping(item).get("spec"))
            elif key in _OF_JOBS and item:
                yield f"{key}{_names_or_value(item)} of the {kind}"[:MAX_TEXT]


def _names_or_value(value: object) -> str:
    """Return a value, or the names of what a list has, with a space before; nothing for what is longer."""
    names = [as_mapping(item).get("name") for item in as_list(value)]
    if names and all(isinstance(name, str) for name in names):
        return f" {as_shown(', '.join(map(str, names)))}"
    return "" if isinstance(value, (list, Mapping)) else f" {as_scalar(value)}"


def _of_group(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is said of a group of pods that no VM keeps."""
    is_count = "replicas" not in value
    for key in _OF_GROUPS:
        if value.get(key) not in (None, {}) and not (key == "minReplicas" and is_count):
            words = [f"{name}={text}" for name, text in as_texts(value[key]).items()] or [as_scalar(value[key])]
            why = "" if key == "rayStartParams" else ": the number of VMs is fixed"
            yield f"{key} {as_shown(' '.join(words))}{why}"


def _with_variable(container: Container, name: str, value: int) -> Container:
    """Return a container with a variable that the object's controller sets."""
    return replace(container, env=((name, str(value)), *container.env))


def _name_of(value: Mapping[str, Any]) -> str:
    metadata = as_mapping(value.get("metadata"))
    return as_text(metadata.get("name"), "") or as_text(metadata.get("generateName"), "").rstrip("-") or "unnamed"


def _namespace_of(value: Mapping[str, Any]) -> str:
    return as_text(as_mapping(value.get("metadata")).get("namespace"), "default")


def _kept_labels(value: object) -> dict[str, str]:
    """Return the labels or annotations that say something about GPUs: an object may have thousands, and many pods."""
    return {key: text for key, text in as_texts(value).items() if _is_about_gpus(key)}


def _is_about_gpus(key: str) -> bool:
    domain, slash, _ = key.partition("/")
    of_words = any(domain == known or domain.endswith(f".{known}") for known in DOMAINS)
    return (bool(slash) and (of_words or domain in _SCHEDULERS)) or key in FRACTION_ANNOTATIONS
