# SPDX-License-Identifier: Apache-2.0
"""Reads manifests: the pods that they make, whatever makes them.

A pod's specification is the mapping with `containers`: a Pod's own, or one below a `template` of a Deployment, a Job,
or a training job of any operator. So no list of kinds is needed, and a kind without pods is said to have none. How many
pods there are, the `replicas` and `parallelism` above it say, multiplied.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vgpuctl.config.kubernetes.claims import CLAIM_TEMPLATE, ClaimRef, DeviceClaim, is_claim, parse_claim, parse_refs
from vgpuctl.config.kubernetes.quantity import parse_quantity
from vgpuctl.config.kubernetes.words import DOMAINS
from vgpuctl.config.not_text import refuse_nul
from vgpuctl.config.yaml_reader import Document, KeyPath, LocatedProblem, load_document, problems_error
from vgpuctl.errors import InvalidInput
from vgpuctl.model.names import is_visible
from vgpuctl.value import EMPTY_MAPPING, Value, replace

MAX_DOCUMENTS = 500
_MAX_TEXT = 300
MAX_PODS = 10_000
_SEPARATOR = re.compile(r"^(---|\.\.\.)[ \t]*(#.*)?$\n?", re.MULTILINE)
_RESTARTS = {"Always": "always", "OnFailure": "on-failure", "Never": "no"}
_COUNT_KEYS = ("replicas", "parallelism", "size", "minReplicas")
_COMPONENTS = ("predictor", "transformer", "explainer")
"""Of KServe's InferenceService: each has pods of its own."""
_ROLE_KEYS = ("type", "name", "groupName")
"""What tells the templates of a list apart."""
_SCHEDULERS = frozenset({"scheduler.tensorstack.dev", "kueue.x-k8s.io", "hami.io"})
"""Domains of labels and annotations of schedulers that give out GPUs, besides those of the words themselves."""
_QUEUE_LABELS = ("scheduler.tensorstack.dev/queue", "kueue.x-k8s.io/queue-name", "volcano.sh/queue-name")
_OF_CONTAINER = frozenset({"name", "image", "imagePullPolicy", "command", "args", "env", "resources"})
_OF_POD = frozenset({
    "containers", "initContainers", "nodeSelector", "restartPolicy", "schedulerName", "resourceClaims",
})  # fmt: skip
"""What is read, or says nothing about a VM; all else is said to be left out."""
_OF_JOBS = frozenset({
    "schedule", "completions", "backoffLimit", "activeDeadlineSeconds", "suspend", "minAvailable", "plugins",
    "slotsPerWorker", "runPolicy", "serveConfigV2", "jobTemplate",
})  # fmt: skip
"""What says when, how often and together with what the pods of an object run: no VM keeps it."""


class Container(Value):
    """A container. `resources`: its limits, and the requests without a limit, as written. `at`: `file:line`.

    `env`: the variables with a plain value. `left_out`: what else it has.
    """

    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    resources: Mapping[str, object]
    at: str
    left_out: tuple[str, ...] = ()


class PodTemplate(Value):
    """Pods that are alike. `kind`, `name`, `namespace`: of what makes them; `role`: of those in it, such as `worker`.

    `annotations`, `labels` and `node_selector`: of the pods. `queue`: the one that they wait in.
    `restart`: when systemd starts a container again. `claims`: of devices. `runtime`: of KServe, which has the
    containers that these ones change. `at`: `file:line`.
    """

    kind: str
    name: str
    namespace: str
    role: str
    pods: int
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...]
    annotations: Mapping[str, str]
    node_selector: Mapping[str, str]
    labels: Mapping[str, str]
    queue: str | None
    restart: str
    at: str
    left_out: tuple[str, ...] = ()
    claims: tuple[ClaimRef, ...] = ()
    runtime: str | None = None


class Manifests(Value):
    """What files of manifests have: pods, what they claim, and the kinds without either."""

    templates: tuple[PodTemplate, ...]
    others: tuple[str, ...] = ()
    claims: tuple[DeviceClaim, ...] = ()


def parse_manifests(text: str, name: str, file: str = "") -> Manifests:
    """Read one file of manifests; `name` is the file's, for messages, and `file` for commands, if it is a file.

    Raises:
        InvalidInput: each problem as `file:line:column`: it is no YAML, or no manifest.
    """
    refuse_nul(name, file, text)
    templates: list[PodTemplate] = []
    others: list[str] = []
    claims: list[DeviceClaim] = []
    for document in _documents(text, name):
        for path, value in _objects(document, document.value, ()):
            if is_claim(value):
                claims.append(_claim(document, value, path))
                continue
            read = tuple(_Reader(document, value, path).templates())
            templates += read
            if not read:
                others.append(f"{_at(document, path)}: {_text(value.get('kind'), 'object')} {_name_of(value)}")
    if not templates and not others and not claims:
        raise InvalidInput(f"{name} has no manifest", hint="kubectl get deployment NAME -o yaml prints one")
    return Manifests(tuple(templates), tuple(others), tuple(claims))


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
        raise _problem(document, path, "this is no manifest of Kubernetes: it has no apiVersion and kind")
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
        requests = _mapping(requests).get(key)
    lines: dict[int | None, str] = {None: _at(document, path)}
    for number in range(len(requests) if isinstance(requests, list) else 0):
        lines[number] = _at(document, (*path, *inner, "devices", "requests", number))
    return parse_claim(value, _name_of(value), _namespace_of(value), lines)


class _Reader:
    """One pass over an object."""

    def __init__(self, document: Document, value: Mapping[str, Any], path: KeyPath) -> None:
        self._document = document
        self._object = value
        self._path = path
        metadata = _mapping(value.get("metadata"))
        self._labels, self._annotations = (_kept_labels(metadata.get(key)) for key in ("labels", "annotations"))

    def templates(self) -> Iterator[PodTemplate]:
        spec, path = _mapping(self._object.get("spec")), (*self._path, "spec")
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
        group, inner = _mapping(spec.get("leaderWorkerTemplate")), (*path, "leaderWorkerTemplate")
        groups, size = self._count({"replicas": spec.get("replicas")}, path), self._count(group, inner)
        leaders = groups if isinstance(group.get("leaderTemplate"), Mapping) else 0
        for role, pods in (("leader", leaders), ("worker", groups * size - leaders)):
            template = group.get(f"{role}Template")
            if isinstance(template, Mapping) and isinstance(_mapping(template.get("spec")).get("containers"), list):
                yield self._template(template, template["spec"], (*inner, f"{role}Template"), (role,), max(pods, 0))

    def _component(self, spec: Mapping[str, Any], path: KeyPath, role: str) -> PodTemplate:
        """Return the pods of a component of KServe's InferenceService: a pod's own keys, and a model in a runtime."""
        named = [key for key in spec if key == "model" or (key not in _OF_POD and "storageUri" in _mapping(spec[key]))]
        values = {key: {**spec[key], "name": "kserve-container"} for key in named if isinstance(spec[key], Mapping)}
        runtime = next((_text(value.pop("runtime", None), "") for value in values.values()), "")
        models = [self._container(value, (*path, key)) for key, value in values.items()]
        pods = self._count({"minReplicas": spec.get("minReplicas")}, path)
        others = {key: value for key, value in spec.items() if key not in (*named, "minReplicas")}
        made = self._template({}, others, path, () if role == "predictor" else (role,), pods, spec_path=path)
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
            found = self._find(item, (*path, key), (*roles, named) if named and named != "spec" else roles, pods)
            policy = _RESTARTS.get(_text(value.get("restartPolicy"), "")) if key == "template" else None
            for made in found:  # Kubeflow's jobs say it beside the template, and set the pods' by it
                yield made if policy is None else replace(made, restart=policy)

    def _count(self, value: Mapping[str, Any], path: KeyPath) -> int:
        for key in _COUNT_KEYS:
            count = value.get(key)
            if count is None or (key == "size" and not isinstance(count, int)):
                continue
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_PODS:
                raise _problem(self._document, (*path, key), f"{key} is no whole number from 0 to {MAX_PODS}")
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
            raise _problem(self._document, path, f"that is {pods} pods, and the limit is {MAX_PODS}")
        metadata = _mapping(value.get("metadata"))
        labels = {**self._labels, **_kept_labels(metadata.get("labels"))}
        scheduler = _mapping(_mapping(_mapping(self._object.get("spec")).get("scheduler")).get("t9kScheduler"))
        annotations = {**self._annotations, **_kept_labels(metadata.get("annotations"))}
        queue = scheduler.get("queue") or next((labels[label] for label in _QUEUE_LABELS if label in labels), None)
        spec_path = (*path, "spec") if spec_path is None else spec_path
        return PodTemplate(
            kind=_text(self._object.get("kind"), "object"),
            name=_name_of(self._object),
            namespace=_namespace_of(self._object),
            role="-".join(roles),
            pods=pods,
            containers=self._containers(spec, "containers", spec_path),
            init_containers=self._containers(spec, "initContainers", spec_path),
            annotations=annotations,
            node_selector=_texts(spec.get("nodeSelector")),
            labels=labels,
            restart=_RESTARTS.get(_text(spec.get("restartPolicy"), ""), "always"),
            queue=None if queue is None else str(queue),
            at=_at(self._document, path),
            left_out=(
                *self._lost(self._object.get("spec")),
                *(f"{key} of the pod" for key, item in spec.items() if key not in _OF_POD and item),
            ),
            claims=parse_refs(spec),
        )

    def _lost(self, spec: object) -> Iterator[str]:
        """Yield what an object says about its pods that no VM keeps; a CronJob says it of the jobs that it makes."""
        kind = _text(self._object.get("kind"), "object")
        for key, item in _mapping(spec).items():
            if key == "jobTemplate":
                yield from self._lost(_mapping(item).get("spec"))
            elif key in _OF_JOBS and item:
                yield f"{key}{f' {_scalar(item)}' if not isinstance(item, (list, Mapping)) else ''} of the {kind}"[
                    :_MAX_TEXT
                ]

    def _containers(self, spec: Mapping[str, Any], key: str, path: KeyPath) -> tuple[Container, ...]:
        values = spec.get(key)
        if values is None:
            return ()
        if not isinstance(values, list):
            raise _problem(self._document, (*path, key), "expected a list of containers")
        return tuple(self._container(item, (*path, key, number)) for number, item in enumerate(values))

    def _container(self, value: object, path: KeyPath) -> Container:
        if not isinstance(value, Mapping):
            raise _problem(self._document, path, "expected a container")
        env: list[tuple[str, str]] = []
        left_out = [str(key) for key, item in value.items() if key not in _OF_CONTAINER and item]
        for number, entry in enumerate(self._list(value, "env", path)):
            if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
                raise _problem(self._document, (*path, "env", number), "expected a name and a value")
            if "valueFrom" in entry:
                left_out.append(f"env {entry['name']}, whose value is in the cluster")
            else:
                env.append((entry["name"], _scalar(entry.get("value"))))
        resources = _mapping(value.get("resources"))
        limits, requests = _mapping(resources.get("limits")), _mapping(resources.get("requests"))
        return Container(
            name=_text(value.get("name"), "container"),
            image=_text(value.get("image"), ""),
            command=tuple(map(_scalar, self._list(value, "command", path))),
            args=tuple(map(_scalar, self._list(value, "args", path))),
            env=tuple(env),
            resources=self._amounts(limits, requests, path),
            at=_at(self._document, path),
            left_out=tuple(left_out),
        )

    def _amounts(self, limits: Mapping[str, Any], requests: Mapping[str, Any], path: KeyPath) -> Mapping[str, object]:
        """Return what a container asks for: the larger of limit and request for CPUs and memory.

        Kubernetes takes no other resource whose request is another amount than its limit.
        """
        result: dict[str, object] = {}
        for name in dict.fromkeys((*limits, *requests)):
            given = [amounts[name] for amounts in (limits, requests) if name in amounts]
            try:
                numbers = [parse_quantity(amount) for amount in given]
            except ValueError as error:
                raise _problem(self._document, (*path, "resources"), f"{name}: {error}") from error
            if "/" in name and len(set(numbers)) > 1:
                raise _problem(
                    self._document, (*path, "resources"), f"{name}: request {given[1]} and limit {given[0]} differ"
                )
            result[name] = given[numbers.index(max(numbers))]
        return result or EMPTY_MAPPING

    def _list(self, value: Mapping[str, Any], key: str, path: KeyPath) -> Sequence[object]:
        items = value.get(key) or []
        if not isinstance(items, list):
            raise _problem(self._document, (*path, key), f"{key}: expected a list")
        return items


def cpus_of(containers: Sequence[Container]) -> int:
    """Return how many CPUs containers ask for together, rounded up; 0 if they do not say."""
    return math.ceil(sum(parse_quantity(c.resources.get("cpu", 0)) for c in containers))


def memory_mib_of(containers: Sequence[Container]) -> int:
    """Return how much memory containers ask for together in MiB, rounded up; 0 if they do not say."""
    return math.ceil(sum(parse_quantity(c.resources.get("memory", 0)) for c in containers) / (1 << 20))


def _problem(document: Document, path: KeyPath, text: str) -> InvalidInput:
    position = document.position(path)
    return problems_error(
        document.name, [LocatedProblem(position.line, position.column, document.format_path(path), text)]
    )


def _at(document: Document, path: KeyPath) -> str:
    return f"{document.name}:{document.position(path).line}"


def _name_of(value: Mapping[str, Any]) -> str:
    metadata = _mapping(value.get("metadata"))
    return _text(metadata.get("name"), "") or _text(metadata.get("generateName"), "").rstrip("-") or "unnamed"


def _namespace_of(value: Mapping[str, Any]) -> str:
    return _text(_mapping(value.get("metadata")).get("namespace"), "default")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else EMPTY_MAPPING


def _texts(value: object) -> dict[str, str]:
    return {str(key): _scalar(item) for key, item in _mapping(value).items()}


def _kept_labels(value: object) -> dict[str, str]:
    """Return the labels or annotations that say something about GPUs: an object may have thousands, and many pods."""
    return {key: text for key, text in _texts(value).items() if _is_about_gpus(key)}


def _is_about_gpus(key: str) -> bool:
    domain, slash, _ = key.partition("/")
    of_words = any(domain == known or domain.endswith(f".{known}") for known in DOMAINS)
    return bool(slash) and (of_words or domain in _SCHEDULERS)


def _text(value: object, default: str) -> str:
    """Return a name, or another text in one line: what it has of invisible characters would forge lines of messages."""
    if not isinstance(value, str) or not value:
        return default
    return "".join(character if is_visible(character) else "?" for character in value)[:_MAX_TEXT]


def _scalar(value: object) -> str:
    """Return a value as its text in a manifest, where numbers and true may lack their quotes."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
