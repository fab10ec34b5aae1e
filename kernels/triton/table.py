"""Every kernel in the configurations in use, compiled for every target, as a table.

    python -m radixgen.kernels.triton.table [--write FILE]

Prints JSON: Triton's version, and "kernel configuration, target" -> what its binary takes
(`compile.Binary`).
"""

import argparse
import json
import sys
from pathlib import Path

import triton

from radixgen.kernels.triton.compile import TARGETS, inspect
from radixgen.kernels.triton.variants import variants


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    found = {
        f"{variant.name}, {target}": inspect(variant, target).as_dict()
        for variant in variants()
        for target in TARGETS
    }
    text = json.dumps({"triton": triton.__version__, "binaries": found}, indent=1)
    if options.write:
        options.write.write_text(text + "\n")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
