# SPDX-License-Identifier: Apache-2.0
"""Convert manifests of Kubernetes to VM specs that give each pod on this host what it asks for; writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.config.kubernetes.claims import CLAIM, DeviceClaim, find_claims
from vgpuctl.config.kubernetes.manifests import Container, Manifests, PodTemplate, cpus_of, memory_mib_of
from vgpuctl.config.kubernetes.request import Assumed, DeviceRequest, parse_request
from vgpuctl.config.kubernetes.runtimes import with_runtimes
from vgpuctl.config.kubernetes.words import AMD, DOMAINS, NVIDIA, find_word
from vgpuctl.config.rules import ValidationError
from vgpuctl.config.spec_text import choose_vm_name
from vgpuctl.config.vm_spec import VM_SHAPE
from vgpuctl.domain.container_unit import (
    container_unit,
    expand,
    full_image_name,
    unit_name,
    variables_file,
    variables_text,
)
from vgpuctl.errors import HostCannot, InvalidInput, NotFound
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.jobs import JobResult, JobUnitResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.plans.jobs import KNOWN_ANNOTATIONS, PRODUCT_LABELS, PodFit, fit_pod
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

GUEST_MIB = 1024
"""What the guest's own system needs besides the containers."""
_STEP_MIB = 256
_DEVICES = {NVIDIA: ("nvidia.com/gpu=all",), AMD: ("/dev/kfd", "/dev/dri")}
"""By maker, the devices of all GPUs of a guest: by NVIDIA's container toolkit, and as ROCm's documentation has them."""


def import_jobs(
    host: Host, files: Sequence[Manifests], assumed: Assumed, *, name: str | None, units: bool
) -> QueryResult[tuple[JobResult, ...]]:
    """Return the pods of manifests that ask for GPUs, each with the spec of a VM.

    `assumed`: units that clusters decide. `name`: of the only object to convert. `units`: also
    the units of their containers.

    Raises:
        InvalidInput: what a container asks for is not understood.
        NotFound: no pod asks for a GPU, or there is no object of this name.
        HostCannot: this host has nothing for a pod; `result` has all pods.
    """
    everything = with_runtimes([t for file in files for t in file.templates])
    templates = [t for t in everything if name is None or name in (t.name, _stem(t))]
    claims = [claim for file in files for claim in file.claims]
    if name is not None and not templates:
        names = sorted({t.name for t in everything})
        raise NotFound(f"no object with pods has the name {name}", hint=f"there are: {', '.join(names[:20]) or 'none'}")
    asked = [(t, requests) for t in templates if (requests := _requests(t, assumed, claims))]
    if not asked:
        names = sorted({name for t in templates for c in t.containers for name in c.resources if "/" in name})
        asks = f"; they ask for {', '.join(names[:10])}" if names else ""
        raise NotFound(f"no container asks for a GPU in words that are known{asks}", hint="vgpuctl import-job --help")
    snapshot = observe(host, ReadScope(types=True))
    taken: set[str] = set()
    results = tuple(_job(snapshot, template, requests, taken, units=units) for template, requests in asked)
    without = len(templates) - len(asked)
    others = [other for file in files for other in file.others]
    notes: tuple[str, ...] = (f"{count_text(without, 'pod template')} without a GPU not converted",) if without else ()
    notes += (f"no pods in: {', '.join(others[:20])}",) if others and name is None else ()
    result = QueryResult(results, snapshot.warnings, notes=notes)
    problems = [f"{job.at}: {job.kind} {job.name}: {job.problem}" for job in results if job.problem is not None]
    if problems:
        error = HostCannot(
            "\n".join(problems), hint="vgpuctl list-gpus; vgpuctl list-profiles", check="job", jobs=len(problems)
        )
        error.result = result
        raise error
    return result


def _requests(template: PodTemplate, assumed: Assumed, claims: Sequence[DeviceClaim]) -> tuple[DeviceRequest, ...]:
    """Return what the containers of a pod ask for, and what it claims.

    Those that run before the others count only where those ask for nothing.

    Raises:
        InvalidInput: a request is not understood, or the requests are for GPUs of several makers.
    """
    requests = [r for c in template.containers if (r := parse_request(c, assumed)) is not None]
    before = [r for c in template.init_containers if (r := parse_request(c, assumed)) is not None]
    requests = [*(requests or before[:1]), *_claimed(template, claims)]
    makers = list(dict.fromkeys(request.maker for request in (*requests, *before)))
    if len(makers) > 1:
        raise InvalidInput(
            f"{template.at}: {template.kind} {template.name} asks for GPUs of {' and '.join(makers)} in one pod",
            hint="a VM for each: make a pod for each maker",
        )
    return tuple(requests)


def _claimed(template: PodTemplate, claims: Sequence[DeviceClaim]) -> list[DeviceRequest]:
    """Return what a pod claims: its containers share that.

    Raises:
        InvalidInput: a claim is in none of the files, or for too many devices.
    """
    requests = []
    for claim in find_claims(template.claims, template.namespace, claims, template.at):
        left_out = list(claim.left_out)
        if claim.kind == CLAIM:
            left_out.append(f"claim {claim.name}: all pods that name it share its devices, and each VM has its own")
        for devices in claim.devices:
            resources = {devices.word: devices.count}
            request = parse_request(Container(claim.name, "", (), (), (), resources, devices.at))
            if request is not None:
                texts = (*(f"claim {claim.name}: {text}" for text in devices.left_out), *left_out)
                words = (f"claim {claim.name} {devices.word} {devices.count}",)
                requests.append(replace(request, words=words, left_out=(*request.left_out, *texts)))
                left_out = []
    return requests


def _job(
    snapshot: Snapshot, template: PodTemplate, requests: Sequence[DeviceRequest], taken: set[str], *, units: bool
) -> JobResult:
    """Return pods with their VM; its name is added to `taken`."""
    problem, fit, spec = None, PodFit({}), None
    renamed: tuple[str, ...] = ()
    try:
        fit = fit_pod(snapshot, template, requests)
        spec, renamed = _spec(template, fit, taken)
    except HostCannot as error:
        problem = f"{error.message} ({error.hint})"
    except ValidationError as error:
        problem = "; ".join(f"{'.'.join(map(str, entry.path))}: {entry.text}" for entry in error.problems)
    made, lost = _units(template, requests[0].maker) if units else ((), ())
    return JobResult(
        at=template.at,
        kind=template.kind,
        name=template.name,
        role=template.role,
        namespace=template.namespace,
        pods=template.pods,
        words=tuple(word for request in requests for word in request.words),
        spec=spec,
        problem=problem,
        kept=(*fit.kept, *_defaults(spec), *renamed),
        first=fit.first,
        left_out=(*(text for r in requests for text in r.left_out), *_left_out(template), *lost),
        units=made,
    )


def _defaults(spec: Mapping[str, object] | None) -> tuple[str, ...]:
    """Say which amounts come from the host's defaults, because the pod does not have them."""
    missing = [] if spec is None else [name for name in ("memory", "vcpus") if name not in spec]
    return (f"{' and '.join(missing)}: the host's default, as the pod asks for none",) if missing else ()


def _stem(template: PodTemplate) -> str:
    return f"{template.name}-{template.role}" if template.role else template.name


def _spec(template: PodTemplate, fit: PodFit, taken: set[str]) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the spec of the VM for a pod, and a note where another job's VM has its name.

    Raises:
        ValidationError: the pod has more than a VM can have.
    """
    suffix = "-{}" if template.pods > 1 else ""
    usual = choose_vm_name((_stem(template),), set(), suffix=suffix)
    first = [(container,) for container in template.init_containers]  # they run one after the other, before the rest
    cpus = max(map(cpus_of, (template.containers, *first)))
    memory = max(map(memory_mib_of, (template.containers, *first)))
    spec: dict[str, object] = {"name": usual, **fit.fields}
    if memory:
        spec["memory"] = f"{-(-(memory + GUEST_MIB) // _STEP_MIB) * _STEP_MIB}MiB"
    if cpus:
        spec["vcpus"] = cpus
    VM_SHAPE.check({**spec, "name": usual.removesuffix(suffix)})
    name = choose_vm_name((_stem(template),), taken, suffix=suffix)
    return {**spec, "name": name}, () if name == usual else (f"name {name}: another job's VM is {usual}",)


def _left_out(template: PodTemplate) -> tuple[str, ...]:
    """Return what a VM on this host does not keep of a pod."""
    lost: list[str] = []
    if template.queue is not None:
        lost.append(f"queue {template.queue}: VMs do not wait for GPUs")
    if not template.pods:
        lost.append("replicas 0: no such pod runs now")
    lost += [f"label {label}" for label in template.labels if label.partition("/")[0] in DOMAINS]
    lost += [
        f"annotation {name} {value}" for name, value in template.annotations.items() if name not in KNOWN_ANNOTATIONS
    ]
    labels = [key for key in template.node_selector if key not in PRODUCT_LABELS]
    lost += [f"nodeSelector {key}: this is about nodes" for key in labels]
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


def _units(template: PodTemplate, maker: str) -> tuple[tuple[JobUnitResult, ...], tuple[str, ...]]:
    """Return a unit for each container, and why one has none, or none of the GPUs of its maker."""
    units: list[JobUnitResult] = []
    devices = _DEVICES.get(maker, ())
    lost: list[str] = [] if devices else [f"the GPUs of {maker} in the containers: add --device= to their units"]
    for container in template.containers:
        name = unit_name(_stem(template), container.name)
        env = dict(container.env)
        words = [expand(word, env) for word in (*container.command, *container.args)]
        command, args = words[: len(container.command)], words[len(container.command) :]
        try:
            text = container_unit(
                name,
                full_image_name(container.image),
                command,
                args,
                restart=template.restart,
                has_variables=bool(env),
                devices=devices,
            )
            units.append(JobUnitResult(name, text, variables_file(name) if env else None, variables_text(env)))
        except ValueError as error:
            lost.append(f"container {container.name}: no unit of systemd can have {error}")
    return tuple(units), tuple(lost)
