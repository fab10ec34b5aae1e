"""Every test runs with the invariants checked, Triton interpreted, and without a network."""

import os

from hypothesis import settings

os.environ.setdefault("RADIXGEN_CHECK", "1")
# Whether kernels are interpreted, without a GPU, is decided when Triton is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# The same inputs on every run: a failure met once can be met again.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")
