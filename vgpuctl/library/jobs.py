# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' words: jobs as VM specs, and VMs and GPUs as what a node of Kubernetes has."""

from __future__ import annotations

from shlex import join
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import as_texts
from vgpuctl.errors import InvalidInput
from vgpuctl.library.call import Calls, query
from vgpuctl.library.fields import Texts
from vgpuctl.library.text_file import command_path, display_name, read_given_text

if TYPE_CHECKING:
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.jobs import CapacityResult, JobResult

MAX_FILES = 50


class JobCalls(Calls):
    """What has to do with Kubernetes. Nothing here writes."""

    @query
    def import_job(
        self, files: Texts, *, assume: Texts = (), job: str | None = None, units: bool = False
    ) -> QueryResult[tuple[JobResult, ...]]:
        """Return the pods of manifests that ask for GPUs, each with the VM spec that gives it the same on this host.

        `files`: of manifests. `assume`: units that clusters decide, such as `aliyun.com/gpu-mem=GiB`. `job`: the name
        of the only object to convert, or of one of its roles, with its kind before a `/`, and its namespace before
        that, where several have it. `units`: also the units of systemd that start their containers in the guests.
        """
        from vgpuctl.config.kubernetes.manifests import parse_manifests
        from vgpuctl.config.kubernetes.request import parse_assumed
        from vgpuctl.operations import import_job

        names = as_texts("files", files)
        if not names or len(names) > MAX_FILES:
            raise InvalidInput(
                f"from 1 to {MAX_FILES} files of manifests, not {len(names)}", hint="vgpuctl import-job FILE"
            )
        read = [
            parse_manifests(read_given_text(self._ports, path, "manifest"), display_name(path), command_path(path))
            for path in names
        ]
        options = [] if job is None else [f"--job={job}"]
        options += [f"--assume={text}" for text in as_texts("assume", assume)] + (["--units"] if units else [])
        command = join(["vgpuctl", "import-job", *(command_path(path) or "-" for path in names), *options])
        assumed = parse_assumed(as_texts("assume", assume), command)
        return import_job.import_jobs(self._ports, read, assumed, name=job, units=units)

    @query
    def capacity(self, name: str | None = None) -> QueryResult[CapacityResult]:
        """Return what a VM, or this host, is as a node of Kubernetes: labels, resources, the plugin's configuration."""
        from vgpuctl.operations import capacity

        return capacity.capacity_of(self._ports, name)
