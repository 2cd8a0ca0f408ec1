# SPDX-License-Identifier: Apache-2.0
"""The commands about Kubernetes: jobs as VM specs, and VMs and hosts as nodes."""

from __future__ import annotations

from shlex import join
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.run import CommandOutput
from vgpuctl.cli.shown import Page
from vgpuctl.model.numbers import count_text

if TYPE_CHECKING:
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.jobs import CapacityResult, JobResult

_FORMATS = ("labels", "device-plugin")


def _specs_text(jobs: tuple[JobResult, ...], assume: tuple[str, ...] = ()) -> str:
    """Return a YAML document for each job, with what it is and what it loses as comments."""
    from vgpuctl.config.spec_text import comment, render_spec

    documents = []
    for job in jobs:
        lines = [f"{job.at}: {job.kind} {job.name} ({count_text(job.pods, 'pod')}): {', '.join(job.words)}", *job.kept]
        lines += [f"first: {text}" for text in job.first]
        lines += [f"not kept: {text}" for text in job.left_out]
        if job.problem is not None:
            lines.append(f"no VM of this host: {job.problem}")
        elif job.pods > 1 and job.spec is not None:
            lines.append(f"for all of them: {_pipe(job, assume)} --count {job.pods}")
        documents.append("".join(map(comment, lines)) + (render_spec(job.spec) if job.spec else ""))
    return "---\n".join(documents)


def _pipe(job: JobResult, assume: tuple[str, ...]) -> str:
    """Return the command that makes the VM of a job."""
    file = job.at.rpartition(":")[0]
    source = "-" if file == "standard input" else f"./{file}" if file.startswith("-") else file
    options = [f"--job={job.job}", *(f"--assume={text}" for text in assume)]
    return f"vgpuctl import-job {join([source, *options])} | vgpuctl ensure-vm -f -"


def _units_text(jobs: tuple[JobResult, ...]) -> str:
    """Return the units, each after a comment with its file's name; and why a container has none."""
    from vgpuctl.config.spec_text import comment

    texts = []
    for job in jobs:
        lost = "".join(comment(f"not kept: {text}") for text in job.left_out)
        texts += [f"{lost}# /etc/systemd/system/{unit.name}\n{unit.text}" for unit in job.units] or [lost]
    texts += [
        f"# {unit.variables_path}, mode 0600\n{unit.variables}"
        for job in jobs
        for unit in job.units
        if unit.variables_path is not None
    ]
    return "\n".join(texts)


def _jobs_page(data: tuple[JobResult, ...]) -> Page:
    return Page([_specs_text(data).rstrip()])


@make_command(
    "import-job",
    page=_jobs_page,
    examples=(
        ("vgpuctl import-job train.yaml", "a VM spec for each pod that asks for GPUs"),
        ("vgpuctl import-job train.yaml --job train | vgpuctl ensure-vm -f -", "make the VM of one job"),
        ("vgpuctl import-job train.yaml --units", "the units that start the containers in the guests"),
        ("kubectl get deployment NAME -o yaml | vgpuctl import-job -", "what a cluster has"),
        ("vgpuctl import-job pod.yaml --assume aliyun.com/gpu-mem=GiB", "the unit that the cluster has"),
    ),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(allow_dash=True))
@click.option("--job", metavar="[[NAMESPACE/]KIND/]NAME", help="Convert only the object of this name, or one role.")
@click.option(
    "--assume",
    metavar="WORD=UNIT",
    multiple=True,
    help="What one unit of a word is where the cluster decides it: aliyun.com/gpu-mem=GiB or =MiB; "
    "nvidia.com/gpu.shared=N, the shares of a GPU. Repeatable.",
)
@click.option("--units", is_flag=True, help="Print units of systemd that start the containers, in place of the specs.")
@click.pass_obj
def import_job(
    settings: Settings, files: tuple[str, ...], job: str | None, assume: tuple[str, ...], units: bool
) -> int:
    """Convert manifests of Kubernetes to VM specs for this host and print them. It writes nothing.

    It reads pods, whatever makes them: Deployments, Jobs, Notebooks, training jobs. What a container asks for, in the
    words of NVIDIA's device plugin, HAMi, Volcano, Tencent, Alibaba, OrionX and others, becomes a vGPU profile whose
    memory for programs holds it, or whole GPUs; never another maker's GPU. What a VM does not keep is a comment. A pod
    that this host has no GPU for has no spec, and the exit status is 6.

    --units prints, for each container, a unit of systemd for the guest, which starts it by podman, and the file with
    its variables.
    """

    def shown(result: QueryResult[tuple[JobResult, ...]]) -> CommandOutput:
        return CommandOutput(result, raw=_units_text(result.data) if units else _specs_text(result.data, assume))

    return run.call(
        settings, "import-job", lambda host: host.import_job(list(files), assume=assume, job=job, units=units), shown
    )


@make_command(
    "capacity",
    examples=(
        ("vgpuctl capacity k8s-1", "the labels and resources of the node that this VM is"),
        ("kubectl label --overwrite node NODE $(vgpuctl capacity k8s-1 --format labels)", "label the node"),
        ("vgpuctl capacity k8s-1 --format device-plugin", "a ConfigMap with NVIDIA's device plugin's configuration"),
        ("vgpuctl --host sim:h100-mig capacity", "this host, with its GPU instances"),
    ),
)
@click.argument("vm", required=False, shell_complete=complete.vms)
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), help="Print only this: KEY=VALUE for each label, or a ConfigMap."
)
@click.pass_obj
def capacity(settings: Settings, vm: str | None, form: str | None) -> int:
    """Show a VM, or this host, as a node of Kubernetes: its labels, and what its pods can ask for.

    The labels are those of NVIDIA's GPU feature discovery. A VM with --guest-sharing mps:N or time-slicing:N offers
    nvidia.com/gpu.shared, others nvidia.com/gpu; GPU instances are nvidia.com/mig-NAME.
    """

    def shown(result: QueryResult[CapacityResult]) -> CommandOutput:
        return CommandOutput(result, raw=_capacity_text(result.data, form))

    return run.call(settings, "capacity", lambda host: host.capacity(vm), shown)


def _capacity_text(data: CapacityResult, form: str | None) -> str:
    labels = "".join(f"{key}={value}\n" for key, value in data.labels.items())
    if form == "labels":
        return labels
    if form == "device-plugin":
        return data.device_plugin
    resources = "".join(f"  {name}: {count}\n" for name, count in data.resources.items())
    indented = "".join(f"  {line}\n" for line in labels.splitlines())
    return f"labels:\n{indented}resources:\n{resources}"
