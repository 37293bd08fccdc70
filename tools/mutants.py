"""Plants faults in a copy of this repository, one at a time, and shows which test catches each.

    python tools/mutants.py              all of them, a table at the end; status 1 if one survives
    python tools/mutants.py --list       what they are
    python tools/mutants.py --only NAME  one of them

A test suite that is cut must still catch them all. The tests that ``make test`` leaves out (marker
``slow``) do not count, unless ``--slow`` is given.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "configs", "pyproject.toml")
TIMEOUT_S = 1200  # of one mutant's tests; under a minute where nothing else runs


class MutantError(Exception):
    """A mutant that cannot be planted: its text or its tests are not there, or not once."""


@dataclass(frozen=True)
class Mutant:
    """One planted fault.

    Attributes:
        name: for ``--only``.
        file: under src/flashpoint; only a hint where the text has moved to another.
        find, put: a text that occurs exactly once, and what takes its place.
        tests: files or tests under tests/ of which one must fail, the likeliest first.
        only: pytest's -k, for tests that run on several implementations.
    """

    name: str
    file: str
    find: str
    put: str
    tests: tuple[str, ...]
    only: str = ""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: the test that caught it, or "" where it survived.

    With an ``error`` nothing is known.
    """

    mutant: Mutant
    caught_by: str = ""
    path: str = ""
    seconds: float = 0.0
    error: str = ""


def locate(root: Path, mutant: Mutant) -> Path:
    """The file that holds the text once, by its path or by the text alone."""
    source = root / "src"
    stated = source / "flashpoint" / mutant.file
    if stated.is_file() and mutant.find in stated.read_text("utf-8"):
        files = [stated]
    else:
        files = [f for f in sorted(source.rglob("*.py")) if mutant.find in f.read_text("utf-8")]
    count = sum(file.read_text("utf-8").count(mutant.find) for file in files)
    if count != 1:
        places = ", ".join(str(file.relative_to(root)) for file in files) or mutant.file
        raise MutantError(f"{mutant.name}: {mutant.find!r} occurs {count} times in {places}.")
    return files[0]


def find_test(root: Path, test: str) -> str:
    """A test's path in the tree; where the file has moved, that of the only one of its name."""
    file, *rest = test.split("::")
    tests = root / "tests"
    found = [tests / file] if (tests / file).exists() else sorted(tests.rglob(Path(file).name))
    if len(found) != 1:
        raise MutantError(f"{test}: {len(found)} files of this name are in {tests}.")
    return "::".join([str(found[0].relative_to(root)), *rest])


def copy_tree(root: Path, target: Path) -> None:
    """What tests need of a repository: sources, tests and configs."""
    for name in COPIED:
        origin = root / name
        if origin.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(origin, target / name, ignore=ignored)
        elif origin.exists():
            shutil.copy2(origin, target / name)


def run(mutant: Mutant, root: Path = ROOT, with_slow: bool = False) -> Verdict:
    """Plant one fault in a copy of the tree and run its tests until one fails."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        copy_tree(root, copy)
        path = locate(copy, mutant)
        path.write_text(path.read_text("utf-8").replace(mutant.find, mutant.put), "utf-8")
        caught_by = _failed_test(copy, mutant, with_slow)
        place = str(path.relative_to(copy))
    return Verdict(mutant, caught_by, place, time.monotonic() - began)


def attempt(mutant: Mutant, with_slow: bool) -> Verdict:
    """The same, where an error is no end of the others."""
    try:
        return run(mutant, with_slow=with_slow)
    except (MutantError, subprocess.TimeoutExpired) as error:
        return Verdict(mutant, error=str(error))


def _failed_test(tree: Path, mutant: Mutant, with_slow: bool) -> str:
    tests = [find_test(tree, test) for test in mutant.tests]
    chosen = ["-k", mutant.only] + ([] if with_slow else ["-m", "not slow"])
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *chosen, *tests],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode == 0:
        return ""
    failed = re.search(r"^FAILED (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    if done.returncode != 1 or failed is None:
        raise MutantError(f"{mutant.name}: its tests did not run.\n{done.stdout}{done.stderr}")
    return failed[1]


def show(verdict: Verdict) -> str:
    """A line of the table; a file that is not where it was is named."""
    fate = verdict.error or verdict.caught_by or "SURVIVED"
    has_moved = not verdict.path.endswith(verdict.mutant.file) and not verdict.error
    place = f"  (in {verdict.path})" if has_moved else ""
    return f"{verdict.mutant.name:24} {verdict.seconds:5.0f} s  {fate}{place}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants that are asked for; 1 if one survives."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="show the mutants and stop")
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="this one; may be given again"
    )
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument("--slow", action="store_true", help="tests with the marker slow count too")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.only or ()) - {mutant.name for mutant in MUTANTS})
    if unknown:
        parser.error(f"no mutant is called {unknown[0]}. --list shows them.")
    chosen = [m for m in MUTANTS if not given.only or m.name in given.only]
    say = sys.stdout.write
    if given.list:
        for m in chosen:
            say(f"{m.name:24} {locate(ROOT, m).relative_to(ROOT)}\n{'':24} {m.find} -> {m.put}\n")
        return 0
    verdicts = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for verdict in pool.map(lambda m: attempt(m, given.slow), chosen):
            verdicts.append(verdict)
            say(show(verdict) + "\n")
            sys.stdout.flush()
    caught = sum(bool(verdict.caught_by) for verdict in verdicts)
    say(f"{caught} of {len(verdicts)} caught\n")
    return 0 if caught == len(verdicts) else 1


MUTANTS = (
    Mutant(
        "cpu-window-edge",
        "ops/cpu/tiling.py",
        "seen &= key >= position - self.left",
        "seen &= key > position - self.left",
        ("ops/test_properties.py",),
    ),
    Mutant(
        "cpu-hidden-nan",
        "ops/cpu/scores.py",
        "x.view(_BITS[x.dtype]).mul_(visible.to(_BITS[x.dtype]))",
        "x.mul_(visible.to(x.dtype))",
        ("ops/test_poison.py", "ops/test_edges.py", "ops/test_properties.py"),
    ),
    Mutant(
        "cpu-bf16-sigmoid",
        "ops/cpu/activations.py",
        "rest = s.neg().sigmoid_()",
        "rest = 1 - s.sigmoid()",
        ("ops/test_numerics.py::test_saturated_sigmoid_keeps_its_slope_in_bf16",),
    ),
    Mutant(
        "cpu-mask-gradient",
        "ops/cpu/backward.py",
        "self._add(self.dmask, gradient, visible, group, tile)",
        "self._add(self.dmask, gradient, None, group, tile)",
        ("ops/test_gradcheck.py", "ops/test_properties.py"),
    ),
    Mutant(
        "native-window-edge",
        "ops/cpu/native/call.h",
        "seen &= row <= clip(j + call.left - first);",
        "seen &= row < clip(j + call.left - first);",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-last-share",
        "ops/cpu/native/backward.h",
        "for (int64_t s = 0; s < shares; ++s)",
        "for (int64_t s = 0; s + 1 < shares; ++s)",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-heads-overwritten",
        "ops/cpu/native/backward.h",
        "const bool is_first = h == h0 && s0 == 0;",
        "const bool is_first = s0 == 0;",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-flat-gradient",
        "ops/cpu/native/activations.h",
        "    dw = keep(on, dw);\n",
        "",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-key-too-many",
        "ops/cpu/native/call.h",
        "return j < existing ? j : existing;",
        "return j < call.keys ? j : call.keys;",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-mask-uncounted",
        "ops/cpu/native/call.h",
        "seen += mask[j] != 0;",
        "seen += 1;",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-mask-row",
        "ops/cpu/native/scores.h",
        "view.place(x, i0) + j0 * x.key",
        "view.place(x, 0) + j0 * x.key",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-hidden-slope",
        "ops/cpu/native/backward.h",
        "        if (c.mask_is_bool) dx = masked(c, mask, dx);\n",
        "",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-bias-of-one-head",
        "ops/cpu/native/backward.h",
        "h1 = x.head ? h0 + 1 : c.q_heads;",
        "h1 = h0 + 1;",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-rows-beyond",
        "ops/cpu/native/backward.h",
        "          clear_lanes(packed.ds, rows, keys);\n",
        "",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-divided-offset",
        "ops/cpu/native/backward.h",
        "offset -= double(g[d]) * o[d];",
        "offset += double(g[d]) * o[d];",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-rounded-share",
        "ops/cpu/native/backward.h",
        "offset -= double(g[d]) * o[d];",
        "offset = static_cast<float>(offset - g[d] * o[d]);",
        ("ops/test_native_sums.py",),
    ),
    Mutant(
        "native-few-window",
        "ops/cpu/native/few.h",
        "last < j0 + keys ? last : j0 + keys",
        "j0 + keys",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-few-heads",
        "ops/cpu/native/few.h",
        "return hk * group + (r0 + r) / c.queries;",
        "return hk * group + r / c.queries;",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-few-columns",
        "ops/cpu/native/few.h",
        "float sum = 0;",
        "float sum = w[r * kKeys];",
        ("ops/test_native.py",),
    ),
    Mutant(
        "native-tiny-sums",
        "ops/cpu/native/call.h",
        "divided_by != 0 && divided_by < kTiny",
        "divided_by != 0 && divided_by < 0",
        ("ops/test_native_sums.py",),
    ),
    Mutant(
        "gpu-causal-edge",
        "ops/gpu/portable/blocks.py",
        "seen & (keys <= queries + shift + right)",
        "seen & (keys < queries + shift + right)",
        ("ops/test_numerics.py::test_option_matches_reference",),
        only="triton and causal",
    ),
    Mutant(
        "gpu-visible-count",
        "ops/gpu/normalizer.py",
        "last = tl.minimum(rows + shift + right + 1, existing)",
        "last = tl.minimum(rows + shift + right, existing)",
        ("ops/test_numerics.py::test_option_matches_reference",),
        only="triton and causal",
    ),
    Mutant(
        "gpu-grouped-dkdv",
        "ops/gpu/portable/backward_dkdv.py",
        "h = kv_head * GROUP + member",
        "h = kv_head + member",
        ("ops/test_numerics.py::test_activation_matches_reference",),
        only="triton and grouped",
    ),
    Mutant(
        "gpu-norm-gradient",
        "ops/gpu/portable/qk_norm.py",
        "dx = g - u * (tl.sum(g * u, 1) / D)[:, None]",
        "dx = g - u * (tl.sum(dy * u, 1) / D)[:, None]",
        ("ops/test_packed.py::test_few_programs_do_the_work_of_many",),
    ),
    Mutant(
        "gpu-rows-between",
        "ops/gpu/portable/blocks.py",
        "before = tl.minimum(start, T)",
        "before = tl.minimum(start, 0)",
        ("ops/test_varlen.py::test_tokens_of_no_sequence_give_zeros_with_zero_gradients",),
    ),
    Mutant(
        "gpu-sums-offset",
        "ops/gpu/portable/backward_rows.py",
        "offset -= tl.sum(tile * o_tile.to(tl.float32), 1)",
        "offset += tl.sum(tile * o_tile.to(tl.float32), 1)",
        ("ops/test_sums_numerics.py",),
        only="triton",
    ),
    Mutant(
        "gpu-sums-beyond-keys",
        "ops/gpu/portable/forward.py",
        "one_range = call.hides_nothing and (sums is None or call.ends_in_zeros)",
        "one_range = call.hides_nothing",
        ("ops/test_sums_numerics.py",),
        only="triton",
    ),
    Mutant(
        "cpu-sums-floor",
        "ops/cpu/scores.py",
        "divisor = sums + self._over_length(self.terms.floor, group, i0, i1)",
        "divisor = sums + self.terms.floor",
        ("ops/test_sums_numerics.py", "ops/test_properties.py"),
        only="cpu",
    ),
    Mutant(
        "replay-strides",
        "ops/gpu/replay.py",
        "x.shape, x.stride(), x.dtype",
        "x.shape, x.dtype",
        ("ops/gpu/test_replay.py",),
    ),
    Mutant(
        "replay-copies",
        "ops/gpu/replay.py",
        "        if self.prepares:\n",
        "        if False:\n",
        ("ops/gpu/test_replay.py", "ops/gpu/test_replay_kinds.py"),
    ),
    Mutant(
        "launcher-stream",
        "ops/gpu/launcher.py",
        "own[STREAM] = stream",
        "own[STREAM] = 0",
        ("ops/gpu/test_launcher.py",),
    ),
    Mutant(
        "dispatch-family",
        "ops/gpu/dispatch.py",
        "gpu_of(device).family == HOPPER_FAMILY",
        "gpu_of(device).family >= HOPPER_FAMILY",
        ("ops/gpu/test_dispatch.py",),
    ),
    Mutant(
        "library-autocast",
        "ops/operator.py",
        "if _is_autocast(device):",
        "if not device:",
        ("ops/test_library.py::test_autocast_computes_in_its_dtype_like_sdpa",),
    ),
    Mutant(
        "layer-causal-count",
        "layers/visibility.py",
        "count = (position + 1 + self.num_keys",
        "count = (position + self.num_keys",
        ("layers/test_attention.py",),
    ),
    Mutant(
        "cache-reordered-lengths",
        "layers/cache.py",
        "self.lengths = self.lengths[rows]",
        "self.lengths = self.lengths[: len(rows)]",
        ("layers/test_cache.py", "models/test_generation.py"),
    ),
    Mutant(
        "beam-length-penalty",
        "models/generation.py",
        "total / ((5 + length) / 6) ** self.exponent",
        "total / ((6 + length) / 6) ** self.exponent",
        ("models/test_generation.py",),
    ),
    Mutant(
        "accumulated-loss",
        "lab/training/step.py",
        "loss = task.loss(model.forward, part) / count",
        "loss = task.loss(model.forward, part)",
        ("lab/training/test_step.py", "lab/training/test_loop.py"),
    ),
    Mutant(
        "distributed-window",
        "distributed/blocks.py",
        "stop - 1 else right + moved",
        "stop - 1 else right + moved + 1",
        ("distributed/test_blocks.py",),
    ),
    Mutant(
        "distributed-documents",
        "distributed/documents.py",
        "offset = (k1 - k0) - (q1 - q0) - q0",
        "offset = -q0",
        ("distributed/test_blocks.py",),
    ),
    Mutant(
        "distributed-late-rank",
        "distributed/attendance.py",
        "min(MOST_S if timeout_s is None else timeout_s, MOST_S)",
        "1.0",
        ("distributed/test_attendance.py",),
    ),
    Mutant(
        "distributed-store-hangs",
        "distributed/attendance.py",
        "thread.join(limit_s)",
        "thread.join()",
        ("distributed/test_attendance.py",),
    ),
    Mutant(
        "added-rows",
        "ops/gpu/portable/addition.py",
        "rows.to(tl.int64) * total_row",
        "rows.to(tl.int64) * D",
        ("ops/gpu/test_added.py",),
    ),
    Mutant(
        "added-samples",
        "ops/gpu/portable/addition.py",
        "(head // H).to(tl.int64) * total_batch",
        "(head // H).to(tl.int64) * total_head",
        ("ops/gpu/test_added.py",),
    ),
    Mutant(
        "added-again",
        "ops/gpu/attend.py",
        "inputs, outputs = inputs | {Role.TOTALS: totals}, outputs[1:]",
        "outputs = outputs[1:]",
        ("ops/gpu/test_added.py",),
    ),
    Mutant(
        "native-exponential",
        "ops/cpu/native/activations.h",
        "0.16666521f",
        "0.16666f",
        ("ops/test_native.py::test_weights_and_slopes_are_as_exact_as_those_of_pytorch",),
    ),
    Mutant(
        "optimizer-decay",
        "lab/training/optimizer.py",
        "and not isinstance(owner, nn.Embedding)",
        "and not isinstance(owner, nn.LayerNorm)",
        ("lab/training/test_optimizer.py",),
    ),
    Mutant(
        "checkpoint-checksum",
        "lab/runs/checkpoints.py",
        "if hashlib.sha256(content).hexdigest() != expected:",
        "if expected is None:",
        ("lab/training/test_checkpoint_tensors.py",),
    ),
    Mutant(
        "mixup-neighbor",
        "lab/data/order.py",
        "(rank * share - 1) % batch_size",
        "(rank * share) % batch_size",
        ("lab/data/test_order.py", "lab/data/test_batches.py"),
    ),
    Mutant(
        "shard-place",
        "lab/data/shards.py",
        'side="right")) - 1',
        'side="left")) - 1',
        ("lab/data/test_shards.py",),
    ),
    Mutant(
        "verdict-word",
        "lab/study/verdict.py",
        "if least <= low and high <= most:",
        "if least <= low or high <= most:",
        ("lab/study/test_verdict.py",),
    ),
    Mutant(
        "failed-runs-count",
        "lab/study/reading.py",
        'finished = [outcome for outcome in there if outcome.status == "finished"]',
        'finished = [outcome for outcome in there if outcome.status != "failed"]',
        ("lab/study/studies/test_findings.py",),
    ),
    Mutant(
        "report-best",
        "lab/report/run_report.py",
        "(max if metric.is_share else min)(values, default=None)",
        "max(values, default=None)",
        ("lab/report/test_run_report.py", "lab/report/test_tables.py"),
    ),
    Mutant(
        "report-verdict-signs",
        "lab/report/verdicts.py",
        'return f"at least {low:.4g}"',
        'return f"at most {low:.4g}"',
        ("lab/report/test_study_report.py", "lab/report/test_tables.py"),
    ),
)

if __name__ == "__main__":
    sys.exit(main())
