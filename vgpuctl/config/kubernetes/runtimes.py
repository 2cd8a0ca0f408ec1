# SPDX-License-Identifier: Apache-2.0
"""KServe's serving runtimes: their containers make the pods of the InferenceServices that name them.

What a service says of its container counts, and its arguments follow the runtime's; resources count one by one. A
runtime that a service here names makes no pods of its own. Source: kserve/kserve, pkg/controller/v1beta1, components.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.config.kubernetes.pods import Container, PodTemplate
from vgpuctl.value import replace

_NAMESPACED, _OF_CLUSTER = "ServingRuntime", "ClusterServingRuntime"
_MAIN = "kserve-container"


def with_runtimes(templates: Sequence[PodTemplate]) -> tuple[PodTemplate, ...]:
    """Return the templates of all files, the services with the containers of their runtimes."""
    used: set[int] = set()
    result = []
    for template in templates:
        number = next((n for n, one in enumerate(templates) if _is_runtime_of(one, template)), None)
        if template.runtime is not None and number is None:
            lost = f"runtime {template.runtime}, which is in none of the files: its containers are unknown"
            template = replace(template, left_out=(*template.left_out, lost))
        elif number is not None:
            used.add(number)
            template = _merged(template, templates[number])
        result.append(template)
    return tuple(template for number, template in enumerate(result) if number not in used)


def _is_runtime_of(runtime: PodTemplate, template: PodTemplate) -> bool:
    if template.runtime is None or runtime.name != template.runtime:
        return False
    return runtime.kind == _OF_CLUSTER or (runtime.kind == _NAMESPACED and runtime.namespace == template.namespace)


def _merged(service: PodTemplate, runtime: PodTemplate) -> PodTemplate:
    base = next((c for c in runtime.containers if c.name == _MAIN), None)
    own = next((c for c in service.containers if c.name == _MAIN), None)
    if base is None or own is None:
        return replace(service, containers=(*service.containers, *runtime.containers))
    others = [c for c in (*service.containers, *runtime.containers) if c not in (base, own)]
    main = Container(
        name=own.name,
        image=own.image or base.image,
        command=own.command or base.command,
        args=(*base.args, *own.args),
        env=tuple({**dict(base.env), **dict(own.env)}.items()),
        resources={**base.resources, **own.resources},
        at=own.at,
        left_out=(*base.left_out, *own.left_out),
        working_dir=own.working_dir or base.working_dir,
        shm_mib=base.shm_mib if own.shm_mib is None else own.shm_mib,
    )
    own_keys = {label.key for label in service.node_labels}
    labels = (*(label for label in runtime.node_labels if label.key not in own_keys), *service.node_labels)
    left_out = tuple(dict.fromkeys((*runtime.left_out, *service.left_out)))
    return replace(service, containers=(main, *others), node_labels=labels, left_out=left_out)
