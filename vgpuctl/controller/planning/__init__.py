# SPDX-License-Identifier: Apache-2.0
"""What the controller decides, as pure functions: what people write, what a pool lacks, what a host does next."""
