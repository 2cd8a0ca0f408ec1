# SPDX-License-Identifier: Apache-2.0
"""All tests and their shared helpers."""
