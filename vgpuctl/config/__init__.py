# SPDX-License-Identifier: Apache-2.0
"""What people write: YAML files and options, parsed and checked.

This file imports nothing, so that `config.vm_fields` stays light for `--help` and shell completion.
"""
