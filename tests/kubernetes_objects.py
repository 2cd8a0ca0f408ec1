# SPDX-License-Identifier: Apache-2.0
"""Objects of Kubernetes, checked with its own schemas and with the rules of its API server that no schema has.

The schemas are those of the package kubernetes-validate, strict: a field that Kubernetes does not know is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import kubernetes_validate
from ruamel.yaml import YAML

VERSION = kubernetes_validate.latest_version()
_PART = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
QUALIFIED_NAME = re.compile(rf"({_DOMAIN}/)?{_PART}", re.ASCII)
"""Keys of labels, and names of resources (Kubernetes, "Labels and Selectors"); a domain has at most 253 characters."""
LABEL_VALUE = re.compile(rf"({_PART})?", re.ASCII)
CONFIG_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}", re.ASCII)
QUANTITY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?", re.ASCII)
_OWN_GROUP = re.compile(r"(v|[a-z]+/v|(?!.*\bx-k8s\.io/)[a-z0-9.-]+\.k8s\.io/v)[0-9].*")
"""Versions of Kubernetes' own groups: others' have another domain, or `x-k8s.io`."""


def read_objects(text: str) -> list[dict[str, Any]]:
    """Return the objects of the YAML documents of a text."""
    return [document for document in YAML(typ="safe").load_all(text) if document is not None]


def check_manifests(text: str, version: str = VERSION) -> None:
    """Check every object of Kubernetes' own kinds in a text, also those of a list; `version`: of Kubernetes."""
    objects = read_objects(text)
    assert objects
    for one in objects:
        for item in one.get("items", [one]):
            if _OWN_GROUP.fullmatch(item["apiVersion"]):
                check_object(item, version)


def check_object(document: dict[str, Any], version: str = VERSION) -> None:
    """Check an object that an API server would take."""
    kubernetes_validate.validate(document, version, strict=True)
    metadata, status = document.get("metadata", {}), document.get("status", {})
    _check_labels(metadata.get("labels", {}))
    for resources in (status.get("capacity", {}), status.get("allocatable", {})):
        _check_resources(resources)
    if document["kind"] == "ConfigMap":
        assert all(CONFIG_KEY.fullmatch(key) for key in document["data"])
    _check_templates(document["kind"], document.get("spec", {}))


def _check_templates(kind: str, spec: Mapping[str, Any]) -> None:
    if kind == "CronJob":
        _check_templates("Job", spec["jobTemplate"]["spec"])
    template = spec.get("template", {})
    labels, pod = template.get("metadata", {}).get("labels", {}), template.get("spec", spec)
    _check_labels(labels)
    if kind == "Job":
        assert pod.get("restartPolicy") in ("Never", "OnFailure"), "a Job's pods cannot have the default, Always"
    if kind in ("Deployment", "StatefulSet", "DaemonSet"):
        assert spec["selector"]["matchLabels"].items() <= labels.items() != set(), "the selector is not for these pods"
    for container in [*pod.get("initContainers", ()), *pod.get("containers", ())]:
        assert container.get("image"), f"container {container['name']} has no image"
        resources = container.get("resources", {})
        _check_resources({**resources.get("requests", {}), **resources.get("limits", {})})


def _check_labels(labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        assert QUALIFIED_NAME.fullmatch(key), key
        assert LABEL_VALUE.fullmatch(value), f"{key}={value}"


def _check_resources(resources: Mapping[str, object]) -> None:
    for name, amount in resources.items():
        assert QUALIFIED_NAME.fullmatch(name), name
        assert QUANTITY.fullmatch(str(amount)), f"{name}: {amount}"
