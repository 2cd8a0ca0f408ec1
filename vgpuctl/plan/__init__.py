# SPDX-License-Identifier: Apache-2.0
"""A snapshot and a wish become steps. Pure."""
