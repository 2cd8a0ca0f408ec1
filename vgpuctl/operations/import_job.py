# SPDX-License-Identifier: Apache-2.0
"""Convert manifests of Kubernetes to VM specs that give each pod on this host what it asks for; writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.config.kubernetes.claims import CLAIM, DeviceClaim, find_claims
from vgpuctl.config.kubernetes.job_names import choose_job, name_of_job
from vgpuctl.config.kubernetes.manifests import Manifests
from vgpuctl.config.kubernetes.pod_gpus import COUNT_LABEL, PodGpus, read_pod_gpus
from vgpuctl.config.kubernetes.pods import Container, PodTemplate, cpus_of, memory_mib_of
from vgpuctl.config.kubernetes.request import Assumed, DeviceRequest, parse_fraction, parse_request
from vgpuctl.config.kubernetes.runtimes import with_runtimes
from vgpuctl.config.kubernetes.words import DOMAINS, GPUSHARE, find_word
from vgpuctl.config.rules import ValidationError
from vgpuctl.config.spec_text import choose_vm_name
from vgpuctl.config.vm_spec import VM_SHAPE
from vgpuctl.errors import HostCannot, InvalidInput, NotFound
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.jobs import JobResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.plans.job_units import job_units
from vgpuctl.operations.plans.jobs import KNOWN_ANNOTATIONS, PodFit, fit_pod
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

GUEST_MIB = 1024
"""What the guest's own system needs besides the containers."""
_STEP_MIB = 256


def import_jobs(
    host: Host, files: Sequence[Manifests], assumed: Assumed, *, name: str | None, units: bool
) -> QueryResult[tuple[JobResult, ...]]:
    """Return the pods of manifests that ask for GPUs, each with the spec of a VM.

    `assumed`: units that clusters decide. `name`: of the only object to convert, as `choose_job` takes it. `units`:
    also the units of their containers.

    Raises:
        InvalidInput: what a container asks for is not understood, or several objects have this name.
        NotFound: no pod asks for a GPU, or there is no object of this name.
        HostCannot: this host has nothing for a pod; `result` has all pods.
    """
    everything = with_runtimes([t for file in files for t in file.templates])
    templates = everything if name is None else choose_job(everything, name)
    claims = [claim for file in files for claim in file.claims]
    asked = [asked for t in templates if (asked := _read(t, assumed, claims, everything)).requests]
    if not asked:
        names = sorted({name for t in templates for c in t.containers for name in c.resources if "/" in name})
        asks = f"; they ask for {', '.join(names[:10])}" if names else ""
        unread = [text for file in files for text in file.unread] if name is None else []
        text = f"no container asks for a GPU in words that are known{asks}"
        raise NotFound("\n".join([text, *unread[:10]]), hint="vgpuctl import-job --help")
    snapshot = observe(host, ReadScope(types=True))
    taken: set[str] = set()
    results = tuple(_job(snapshot, one, taken, units=units) for one in asked)
    without = len(templates) - len(asked)
    others = [other for file in files for other in file.others]
    notes: tuple[str, ...] = (f"{count_text(without, 'pod template')} without a GPU not converted",) if without else ()
    notes += (f"no pods in: {', '.join(others[:20])}",) if others and name is None else ()
    notes += tuple(text for file in files for text in file.unread)[:10] if name is None else ()
    result = QueryResult(results, snapshot.warnings, notes=notes)
    problems = [f"{job.at}: {job.kind} {job.name}: {job.problem}" for job in results if job.problem is not None]
    if problems:
        error = HostCannot(
            "\n".join(problems), hint="vgpuctl list-gpus; vgpuctl list-profiles", check="job", jobs=len(problems)
        )
        error.result = result
        raise error
    return result


class _Asked(Value):
    """Pods, and what they ask for. `pod_gpus`: by labels; `job`: what `--job` takes for them alone.

    `lost`: what their claims say that no VM keeps.
    """

    template: PodTemplate
    requests: tuple[DeviceRequest, ...]
    pod_gpus: PodGpus
    job: str
    lost: tuple[str, ...]


def _read(
    template: PodTemplate, assumed: Assumed, claims: Sequence[DeviceClaim], everything: Sequence[PodTemplate]
) -> _Asked:
    """Return what the containers of a pod ask for, and what it claims.

    Those that run before the others count only where those ask for nothing.

    Raises:
        InvalidInput: a request is not understood, or the requests are for GPUs of several makers.
    """
    pod_gpus = read_pod_gpus(template.node_labels, template.labels, template.annotations, template.at)
    requests = [r for c in template.containers if (r := parse_request(c, assumed, pod_gpus)) is not None]
    before = [r for c in template.init_containers if (r := parse_request(c, assumed, pod_gpus)) is not None]
    claimed, lost = _claimed(template, claims)
    requests = [*(requests or before[:1]), *claimed]
    annotated = None if requests else parse_fraction(pod_gpus, template.at)
    requests += [annotated] if annotated is not None else []
    makers = list(dict.fromkeys(request.maker for request in (*requests, *before)))
    if len(makers) > 1:
        raise InvalidInput(
            f"{template.at}: {template.kind} {template.name} asks for GPUs of {' and '.join(makers)} in one pod",
            hint="a VM for each: make a pod for each maker",
        )
    return _Asked(template, tuple(requests), pod_gpus, name_of_job(template, everything), tuple(lost))


def _claimed(template: PodTemplate, claims: Sequence[DeviceClaim]) -> tuple[list[DeviceRequest], list[str]]:
    """Return what a pod claims, which its containers share, and what else its claims say.

    Raises:
        InvalidInput: a claim is in none of the files, or for too many devices.
    """
    requests: list[DeviceRequest] = []
    lost: list[str] = []
    for claim in find_claims(template.claims, template.namespace, claims, template.at):
        lost += claim.left_out
        if claim.kind == CLAIM:
            lost.append(f"claim {claim.name}: all pods that name it share its devices, and each VM has its own")
        for devices in claim.devices:
            resources = {devices.word: devices.count}
            request = parse_request(Container(claim.name, "", (), (), (), resources, devices.at))
            if request is not None:
                lost += [f"claim {claim.name}: {text}" for text in devices.left_out]
                requests.append(replace(request, words=(f"claim {claim.name} {devices.word} {devices.count}",)))
    return requests, list(dict.fromkeys(lost))


def _job(snapshot: Snapshot, asked: _Asked, taken: set[str], *, units: bool) -> JobResult:
    """Return pods with their VM; its name is added to `taken`."""
    template, requests = asked.template, asked.requests
    problem, fit, spec = None, PodFit({}), None
    renamed: tuple[str, ...] = ()
    try:
        fit = fit_pod(snapshot, template, requests, asked.pod_gpus)
        spec, renamed = _spec(template, fit, taken)
    except HostCannot as error:
        problem = f"{error.message} ({error.hint})"
    except ValidationError as error:
        problem = "; ".join(f"{'.'.join(map(str, entry.path))}: {entry.text}" for entry in error.problems)
    made, lost = job_units(template, requests[0].maker) if units else ((), ())
    return JobResult(
        at=template.at,
        kind=template.kind,
        name=template.name,
        job=asked.job,
        role=template.role,
        namespace=template.namespace,
        pods=template.pods,
        words=tuple(word for request in requests for word in request.words),
        spec=spec,
        problem=problem,
        kept=(*fit.kept, *_defaults(spec), *renamed),
        first=fit.first,
        left_out=(*(text for r in requests for text in r.left_out), *asked.lost, *_left_out(asked), *lost),
        units=made,
    )


def _defaults(spec: Mapping[str, object] | None) -> tuple[str, ...]:
    """Say which amounts come from the host's defaults, because the pod does not have them."""
    missing = [] if spec is None else [name for name in ("memory", "vcpus") if name not in spec]
    return (f"{' and '.join(missing)}: the host's default, as the pod asks for none",) if missing else ()


def _spec(template: PodTemplate, fit: PodFit, taken: set[str]) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the spec of the VM for a pod, and a note where another job's VM has its name.

    Raises:
        ValidationError: the pod has more than a VM can have.
    """
    suffix = "-{}" if template.pods > 1 else ""
    usual = choose_vm_name((template.stem,), set(), suffix=suffix)
    first = [(container,) for container in template.init_containers]  # they run one after the other, before the rest
    cpus = max(map(cpus_of, (template.containers, *first)))
    memory = max(map(memory_mib_of, (template.containers, *first)))
    spec: dict[str, object] = {"name": usual, **fit.fields}
    if memory:
        spec["memory"] = f"{-(-(memory + GUEST_MIB) // _STEP_MIB) * _STEP_MIB}MiB"
    if cpus:
        spec["vcpus"] = cpus
    VM_SHAPE.check({**spec, "name": usual.removesuffix(suffix)})
    name = choose_vm_name((template.stem,), taken, suffix=suffix)
    return {**spec, "name": name}, () if name == usual else (f"name {name}: another job's VM is {usual}",)


def _left_out(asked: _Asked) -> tuple[str, ...]:
    """Return what a VM on this host does not keep of a pod."""
    template = asked.template
    lost: list[str] = []
    if template.queue is not None:
        lost.append(f"queue {template.queue}: VMs do not wait for GPUs")
    if not template.pods:
        lost.append("replicas 0: no such pod runs now")
    lost += [f"label {label}" for label in _unread_labels(asked)]
    lost += [
        f"annotation {name} {value}" for name, value in template.annotations.items() if name not in KNOWN_ANNOTATIONS
    ]
    lost += [f"node label {label.key}: {_why_unread(label.key)}" for label in asked.pod_gpus.others]
    lost += template.left_out
    for container in (*template.containers, *template.init_containers):
        lost += [f"container {container.name}: {text}" for text in container.left_out]
        others = [name for name in container.resources if name not in ("cpu", "memory") and find_word(name) is None]
        lost += [f"container {container.name}: {name}, which vgpuctl does not know" for name in others]
    for container in template.init_containers:
        gpus = [name for name in container.resources if find_word(name) is not None]
        words = f" and asks for {', '.join(gpus)}" if gpus else ""
        lost.append(f"container {container.name}, which runs before the others{words}: start it by hand")
    return tuple(lost)


def _unread_labels(asked: _Asked) -> list[str]:
    """Return the pod's labels about GPUs that say nothing here."""
    is_divided = any(
        GPUSHARE in {w.system for w in map(find_word, c.resources) if w} for c in asked.template.containers
    )
    labels = [label for label in asked.template.labels if label.partition("/")[0] in DOMAINS]
    return [label for label in labels if label != COUNT_LABEL or not is_divided]


def _why_unread(key: str) -> str:
    return "choose the GPUs by the field gpu" if key.partition("/")[0] in DOMAINS else "this is about nodes"
