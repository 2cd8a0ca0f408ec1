# SPDX-License-Identifier: Apache-2.0
"""Turn a snapshot and a request into steps. Pure: no I/O."""
