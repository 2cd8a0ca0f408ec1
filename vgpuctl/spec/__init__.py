# SPDX-License-Identifier: Apache-2.0
"""What people write: YAML and options become checked values (pydantic is imported only here).

Imports nothing, so that `spec.fields` and `spec.sizes` stay light for `--help` and shell completion.
"""
