# SPDX-License-Identifier: Apache-2.0
"""The units of systemd that start the containers of a pod in the guest, and why one has none."""

from __future__ import annotations

from vgpuctl.config.kubernetes.pods import Container, PodTemplate
from vgpuctl.config.kubernetes.words import AMD, NVIDIA
from vgpuctl.domain.container_unit import (
    container_unit,
    expand,
    full_image_name,
    unit_name,
    unknown_names,
    variables_file,
    variables_text,
)
from vgpuctl.model.results.jobs import JobUnitResult

_DEVICES = {NVIDIA: ("nvidia.com/gpu=all",), AMD: ("/dev/kfd", "/dev/dri")}
"""By maker, the devices of all GPUs of a guest: by NVIDIA's container toolkit, and as ROCm's documentation has them."""


def job_units(template: PodTemplate, maker: str) -> tuple[tuple[JobUnitResult, ...], tuple[str, ...]]:
    """Return a unit for each container, and why one has none, or none of the GPUs of its maker."""
    units: list[JobUnitResult] = []
    devices = _DEVICES.get(maker, ())
    lost: list[str] = [] if devices else [f"the GPUs of {maker} in the containers: add --device= to their units"]
    for container in template.containers:
        unknown = unknown_names((*container.command, *container.args), dict(container.env))
        if unknown:
            names = ", ".join(f"$({name})" for name in unknown[:10])
            lost.append(f"container {container.name}: {names} in its command: write the values into the unit")
        try:
            units.append(_unit(template, container, devices))
        except ValueError as error:
            lost.append(f"container {container.name}: no unit of systemd can have {error}")
    return tuple(units), tuple(lost)


def _unit(template: PodTemplate, container: Container, devices: tuple[str, ...]) -> JobUnitResult:
    name = unit_name(template.stem, container.name)
    env = dict(container.env)
    words = [expand(word, env) for word in (*container.command, *container.args)]
    text = container_unit(
        name,
        full_image_name(container.image),
        words[: len(container.command)],
        words[len(container.command) :],
        restart=template.restart,
        has_variables=bool(env),
        devices=devices,
        working_dir=container.working_dir,
        shm_mib=container.shm_mib,
    )
    return JobUnitResult(name, text, variables_file(name) if env else None, variables_text(env))
