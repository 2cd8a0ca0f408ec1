# SPDX-License-Identifier: Apache-2.0
"""Reads manifests of Kubernetes: what a pod asks for, in the words of the systems that share GPUs there."""
