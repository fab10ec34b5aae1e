"""Every test runs with the invariants checked and without reaching for a network."""

import os

os.environ.setdefault("RADIXGEN_CHECK", "1")
