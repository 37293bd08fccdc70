"""What the GPU's kernels compile to, one hash each, so that two trees can be compared.

    python tools/machine_code.py OUT.json                     about 3 minutes, no GPU needed
    python tools/machine_code.py OUT.json --compare OLD.json  fails where a kernel differs
    python tools/machine_code.py OUT.json --cases hopper      only cases with such a name

The calls are those of the compile tests: the Hopper kernels for arch 90, the portable ones for
arch 80 and 90. A kernel is known by its case and its place among the case's launches, so that
renaming it changes nothing. Two files compare only if one Triton made both.
"""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
PORTABLE_ARCHS = (80, 90)  # without the copy engine and with it


def main() -> None:
    """Hash every kernel, write the file, compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--compare", type=Path, metavar="OLD", help="file of another tree")
    parser.add_argument("--cases", default="", metavar="TEXT", help="only those with it in a name")
    options = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)
    sys.path[:0] = [str(ROOT / folder) for folder in ("src", "tests", "tests/ops/gpu")]
    import triton

    kernels = hash_portable(options.cases) | hash_hopper(options.cases)
    found = {"triton": triton.__version__, "kernels": kernels}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    say(f"{len(found['kernels'])} kernels, Triton {triton.__version__}: {options.out}")
    if options.compare is not None:
        old = json.loads(options.compare.read_text())
        old["kernels"] = {k: v for k, v in old["kernels"].items() if options.cases in k}
        sys.exit(compare(old, found))


def hash_portable(text: str) -> dict[str, str]:
    """Hashes of the kernels that any GPU can run, of cases with a text in their names."""
    import test_portable_compiles as portable
    from ahead_of_time import compiling_for

    found: dict[str, str] = {}
    for arch in PORTABLE_ARCHS:
        for case, (*arguments, _) in portable.CASES.items():
            name = f"portable {arch} {case}"
            if text not in name:
                continue
            call = portable.call_packed if "norms" in arguments[-1] else portable.call_plain
            with compiling_for(arch) as kernels:
                call(*arguments)
            found |= hash_all(name, kernels)
    return found


def hash_hopper(text: str) -> dict[str, str]:
    """The same of those for Hopper; last, since what their tests replace stays replaced."""
    import test_hopper_compiles as hopper
    import torch

    torch.cuda.get_device_properties = lambda _: SimpleNamespace(
        multi_processor_count=132, L2_cache_size=60 * 2**20
    )
    groups = (
        *(hopper.CASES, hopper.NORMED_CASES, hopper.SUMMED_CASES, hopper.ADDED_CASES),
        hopper.SECTIONED_CASES,
    )
    found: dict[str, str] = {}
    for case in (case for cases in groups for case in cases):
        name = f"hopper {case}"
        if text in name:
            found |= hash_all(name, hopper.launches_by(case))
    return found


def hash_all(case: str, kernels: list) -> dict[str, str]:
    """One hash of the instructions of each kernel: no addresses in a file, no names."""
    from ahead_of_time import machine_code

    say(f"{case}: {' '.join(kernel.name for kernel in kernels)}")
    codes = ["\n".join(machine_code(kernel).values()) for kernel in kernels]
    hashes = [hashlib.sha256(code.encode()).hexdigest() for code in codes]
    return {f"{case} #{at}": value for at, value in enumerate(hashes)}


def compare(old: dict, new: dict) -> int:
    """Tell which kernels differ; gives the exit status."""
    if old["triton"] != new["triton"]:
        say(f"Not comparable: Triton {old['triton']} made the old file, {new['triton']} this one.")
        return 2
    before, after = old["kernels"], new["kernels"]
    names = sorted(before.keys() | after.keys())
    different = [name for name in names if before.get(name) != after.get(name)]
    for name in different:
        say(f"differs: {name}")
    say(f"{len(names) - len(different)} of {len(names)} kernels are equal")
    return 1 if different else 0


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
