# SPDX-License-Identifier: Apache-2.0
"""The manifests of the documents, and those that the program prints, are of a shape that Kubernetes takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kubernetes_validate import SchemaNotFoundError, ValidationError

from tests.kubernetes_objects import check_manifests

ROOT = Path(__file__).resolve().parents[4]
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PRINTED = re.compile(r"printf '(apiVersion:[^']*)'")


def manifests_of(document: Path) -> list[str]:
    """Return the manifests in a document: in blocks of YAML, and in commands that write one by printf."""
    text = document.read_text(encoding="utf-8")
    printed = [quoted.replace("\\n", "\n") for quoted in _PRINTED.findall(text)]
    return [block for block in _BLOCK.findall(text) if "apiVersion:" in block] + printed


@pytest.mark.parametrize("document", ["howto/kubernetes-jobs.md", "tutorials/kubernetes-node.md"])
def test_a_manifest_of_a_document_is_one_of_kubernetes(document: str) -> None:
    manifests = manifests_of(ROOT / "docs" / document)
    assert manifests
    for text in manifests:
        check_manifests(text)


def test_the_manifest_of_the_tests_is_one_of_kubernetes() -> None:
    check_manifests((ROOT / "tests/data/job.yaml").read_text(encoding="utf-8"))


def test_no_document_with_a_manifest_is_forgotten() -> None:
    documents = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md") if manifests_of(path)}
    assert documents == {"howto/kubernetes-jobs.md", "tutorials/kubernetes-node.md"}


@pytest.mark.parametrize(
    ("api", "kind", "spec", "problem"),
    [
        ("batch/v1", "Job", "{template: {spec: {containers: [{name: a, image: i}]}}}", AssertionError),
        ("v1", "Deployment", "{}", SchemaNotFoundError),
        ("apps/v1", "Deployment", "{template: {spec: {containers: [{name: a, image: i}]}}}", ValidationError),
        ("v1", "Pod", "{containers: [{name: a, image: i, args: [1]}]}", ValidationError),
        ("v1", "Pod", "{containers: [{name: a}]}", AssertionError),
        ("v1", "Pod", "{container: []}", ValidationError),
        ("v1", "Pod", "{containers: [{name: a, image: i, resources: {limits: {a/b/c: 1}}}]}", AssertionError),
        ("v1", "Pod", "{containers: [{name: a, image: i, resources: {limits: {cpu: 4GiB}}}]}", AssertionError),
    ],
)
def test_the_check_refuses_an_impossible_shape(api: str, kind: str, spec: str, problem: type[Exception]) -> None:
    item = f"{{apiVersion: {api}, kind: {kind}, metadata: {{name: a}}, spec: {spec}}}"
    with pytest.raises(problem):
        check_manifests(item)
    with pytest.raises(problem):
        check_manifests(f"apiVersion: v1\nkind: List\nitems: [{item}]\n")


def test_the_check_is_of_kubernetes_own_kinds() -> None:
    check_manifests("apiVersion: kubeflow.org/v1\nkind: Notebook\nmetadata: {name: a}\nspec: 1\n")
    with pytest.raises(AssertionError):
        check_manifests("# nothing\n")
