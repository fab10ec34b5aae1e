"""Every test runs with the invariants checked, Triton interpreted, and without a network."""

import os

os.environ.setdefault("RADIXGEN_CHECK", "1")
# Whether kernels are interpreted, without a GPU, is decided when Triton is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")
