"""``flashpoint doctor``: what is installed, what runs here, and whether it is right."""

import json
import math
import platform
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer

from flashpoint import __version__
from flashpoint.lab.cli.doctor_check import (
    Cases,
    Check,
    Device,
    First,
    ImplName,
    Jobs,
    OneCase,
    Seed,
    TimeLimit,
    check_machine,
    refuse_alone,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from rich.table import Table
    from torch import Tensor

    from flashpoint.ops.implementations import Impl

_INSTRUCTION_SETS = ("avx2", "avx512_f", "avx512_bf16", "amx", "neon", "sve", "bf16")
_TOLERANCE = 1e-5  # of fp32 rounding over a few dozen keys
_TYPICAL = (1, 12, 197, 64)  # B, H, L, D of a call whose kernels are shown: a ViT-B/16's


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional set of packages; ``install`` is the command that completes it, if any."""

    name: str
    installed: dict[str, str]
    missing: list[str]
    install: str | None


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor as torch sees it; ``native_bf16`` is None where torch cannot tell."""

    model: str
    cores: int | None
    threads: int
    capability: str
    instruction_sets: list[str]
    native_bf16: bool | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One CUDA device."""

    name: str
    capability: str
    memory_gib: float
    driver: str
    kernels: str


@dataclass(frozen=True, slots=True)
class Implementation:
    """One ``impl=`` value: whether it serves here, why, and how far it is from the definition."""

    name: str
    available: bool
    detail: str
    error: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Kernels:
    """A row of the GPU's table of kernels: "serves" a typical call, or why it does not."""

    name: str
    forward: str
    backward: str


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the doctor found; ``--json`` prints exactly this."""

    versions: dict[str, str | None]
    extras: list[Extra]
    cpu: Cpu
    gpus: list[Gpu]
    implementations: list[Implementation]
    kernels: list[Kernels]

    @property
    def healthy(self) -> bool:
        """Whether every implementation that is available gave the right result."""
        return all(i.verdict == "exact" for i in self.implementations if i.available)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    check: Check = False,
    seed: Seed = None,
    cases: Cases = None,
    first: First = None,
    case: OneCase = None,
    time_limit: TimeLimit = None,
    device: Device = None,
    impl: ImplName = None,
    jobs: Jobs = None,
) -> None:
    """Show versions, devices and implementations, and check the results on this machine.

    With --check: does this machine compute right? Random calls over all options, shapes, dtypes
    and implementations are judged against the definition in float64. A verdict in one line ends
    it, with the command that repeats the worst case; the exit status is 1 if one is wrong, or if
    none could be judged.
    """
    if check:
        check_machine(
            seed=seed,
            cases=cases,
            first=first,
            case=case,
            time_limit=time_limit,
            device=device,
            impl=impl,
            jobs=jobs,
            as_json=as_json,
        )
        return
    refuse_alone(seed=seed, cases=cases, first=first, case=case, time_limit=time_limit)
    refuse_alone(device=device, impl=impl, jobs=jobs)
    implementations = _check_implementations()
    findings = Findings(
        versions=_find_versions(),
        extras=_find_extras(),
        cpu=_find_cpu(),
        gpus=_find_gpus(),
        implementations=implementations,
        kernels=_explain_typical() if _has_kernels(implementations) else [],
    )
    if as_json:
        typer.echo(json.dumps(asdict(findings), indent=2))
    else:
        from rich.console import Console

        console = Console()
        for table in _draw(findings):
            console.print(table)
    if not findings.healthy:
        raise typer.Exit(1)


def _find_versions() -> dict[str, str | None]:
    """Versions of what the results depend on."""
    packages = {name: _version(name) for name in ("torch", "triton", "numpy")}
    return {"python": platform.python_version(), "flashpoint": __version__, **packages}


def _version(package: str) -> str | None:
    """The installed version of a package, None if there is none."""
    from importlib import metadata  # takes longer to load than a --help of ours should

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _find_extras() -> list[Extra]:
    """Read the extras from the package's own metadata and see which packages are there."""
    from importlib import metadata

    packages: dict[str, list[str]] = {}
    requirements = metadata.requires("flashpoint") if _version("flashpoint") else None
    for requirement in requirements or ():
        if match := re.match(r"([\w.-]+).*;\s*extra == ['\"]([\w-]+)['\"]", requirement):
            packages.setdefault(match[2], []).append(match[1])
    extras: list[Extra] = []
    for name, members in packages.items():
        installed = {member: found for member in members if (found := _version(member))}
        missing = [member for member in members if member not in installed]
        install = f'pip install -e ".[{name}]"' if missing else None
        extras.append(Extra(name, installed, missing, install))
    return extras


def _find_cpu() -> Cpu:
    """Describe the processor in torch's words."""
    import torch

    flags = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return Cpu(
        model=flags.get("cpu_name") or platform.processor() or platform.machine(),
        cores=flags.get("num_physical_cores"),
        threads=torch.get_num_threads(),
        capability=torch.backends.cpu.get_cpu_capability(),
        instruction_sets=sorted(
            name for name, flag in flags.items() if flag and name.startswith(_INSTRUCTION_SETS)
        ),
        native_bf16=any(flag for name, flag in flags.items() if "bf16" in name) if flags else None,
    )


def _find_gpus() -> list[Gpu]:
    """Describe every CUDA device that torch can use."""
    import torch

    if not torch.cuda.is_available():
        return []
    driver = _find_driver()
    gpus: list[Gpu] = []
    for number in range(torch.cuda.device_count()):
        d = torch.cuda.get_device_properties(number)
        memory = round(d.total_memory / 2**30, 1)
        kernels = _describe_kernels(torch.device("cuda", number))
        gpus.append(Gpu(d.name, f"{d.major}.{d.minor}", memory, driver, kernels))
    return gpus


def _describe_kernels(device: "torch.device") -> str:
    """Which of our kernels a GPU gets."""
    import torch

    from flashpoint.ops.implementations import HAS_TRITON

    if not HAS_TRITON:
        return "none"
    if torch.version.hip is not None:
        return "none: AMD's GPUs take impl='reference'"
    from flashpoint.ops.gpu import dispatch, versions

    kernels = "for Hopper, and portable" if dispatch.serves(device) else "portable"
    return f"{kernels}; {versions.describe()}"


def _has_kernels(implementations: list[Implementation]) -> bool:
    return any(i.name == "triton" and i.available for i in implementations)


def _explain_typical() -> list[Kernels]:
    """Who serves a typical call here, and why those before it in the table do not."""
    import torch

    from flashpoint.ops.gpu import dispatch
    from flashpoint.ops.gpu.call import Call
    from flashpoint.ops.spec import Terms

    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v, do = (torch.empty(_TYPICAL, dtype=torch.bfloat16, device=device) for _ in range(4))
    call = Call.dense(q, k, v, None, None, None, Terms())
    both = (dispatch.explain(call), dispatch.explain(call, do))
    return [
        Kernels(name, *(found[name] or "serves" if name in found else "" for found in both))
        for name in max(both, key=len)
    ]


def _find_driver() -> str:
    """Ask nvidia-smi for the driver version, which torch does not know."""
    if not (command := shutil.which("nvidia-smi")):
        return "unknown"
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=10)
    except subprocess.TimeoutExpired:
        return "unknown"
    lines = answer.stdout.split()
    return lines[0] if answer.returncode == 0 and lines else "unknown"


def _check_implementations() -> list[Implementation]:
    """Run each available implementation on a small input beside the fp64 reference."""
    from flashpoint.ops.implementations import survey

    results: list[Implementation] = []
    for name, available, detail in survey():
        error, verdict = _measure(cast("Impl", name)) if available else (None, "")
        results.append(Implementation(name, available, detail, error, verdict))
    return results


def _measure(impl: "Impl") -> tuple[float | None, str]:
    """The largest error of output and gradients against the definition, and what it means."""
    import torch

    device = "cuda" if impl == "triton" and torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 2, 33, 16, generator=generator).to(device) for _ in range(4)]
    try:
        results = _run(impl, inputs)
    except Exception as error:  # noqa: BLE001 (whatever breaks here is a finding)
        return None, f"failed: {type(error).__name__}: {error}".splitlines()[0]
    exact = _run("reference", [x.double() for x in inputs])
    pairs = zip(results, exact, strict=True)
    errors = [(got - want).abs().max() / want.abs().max() for got, want in pairs]
    worst = torch.stack(errors).max().item()  # a NaN stays one
    return worst if math.isfinite(worst) else None, "exact" if worst <= _TOLERANCE else "WRONG"


def _run(impl: "Impl", inputs: "list[Tensor]") -> "list[Tensor]":
    """Output and gradients of causal attention for inputs q, k, v and do."""
    import torch

    from flashpoint.ops.api import attention

    q, k, v = (x.detach().requires_grad_() for x in inputs[:3])
    o = attention(q, k, v, causal=True, impl=impl)
    return [o.detach(), *torch.autograd.grad(o, (q, k, v), inputs[3])]


def _draw(findings: Findings) -> "Iterable[Table]":
    """Lay the findings out as tables."""
    cpu = findings.cpu
    native = {True: "native", False: "emulated", None: "unknown"}[cpu.native_bf16]
    yield _table(
        "Versions", ("package", "version"), [(n, v or "-") for n, v in findings.versions.items()]
    )
    yield _table(
        "CPU",
        ("model", "cores", "threads", "torch uses", "instruction sets", "bf16"),
        [
            (
                cpu.model,
                str(cpu.cores or "?"),
                str(cpu.threads),
                cpu.capability,
                " ".join(cpu.instruction_sets),
                native,
            )
        ],
    )
    yield _table(
        "GPUs",
        ("name", "capability", "memory", "driver", "kernels"),
        [(g.name, g.capability, f"{g.memory_gib} GiB", g.driver, g.kernels) for g in findings.gpus]
        or [("none that torch can use", "", "", "", "")],
    )
    yield _table(
        "Implementations",
        ("impl", "works here", "why", "max rel. error", "self-check"),
        [
            (
                i.name,
                "yes" if i.available else "no",
                i.detail,
                "" if i.error is None else f"{i.error:.1e}",
                i.verdict,
            )
            for i in findings.implementations
        ],
    )
    if findings.kernels:
        _, heads, tokens, dim = _TYPICAL
        yield _table(
            f"Kernels for {tokens} tokens, {heads} heads of {dim}, bfloat16",
            ("kernels", "forward", "backward"),
            [(row.name, row.forward, row.backward) for row in findings.kernels],
        )
    yield _table(
        "Extras",
        ("extra", "installed", "missing", "to complete it"),
        [
            (
                e.name,
                ", ".join(f"{n} {v}" for n, v in e.installed.items()),
                ", ".join(e.missing),
                e.install or "",
            )
            for e in findings.extras
        ],
    )


def _table(title: str, columns: tuple[str, ...], rows: "Iterable[tuple[str, ...]]") -> "Table":
    """A titled table of plain text."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left", title_style="bold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
