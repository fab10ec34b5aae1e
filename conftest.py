"""Keep the checkout last on the path, so that `kernels/` never shadows the package of that name.

transformers probes for a distribution called `kernels`; with the repository root first on
`sys.path` it would find ours. See "Packaging" in the README.
"""

import os
import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parent)
sys.path.sort(key=lambda entry: os.path.abspath(entry or ".") == _ROOT)
