"""Models as files that run without Python or without Flashpoint: ONNX, torch.export, AOTInductor.

How attention gets into such a file: ``torch.export`` traces the model with our operators as they
are, then ``run_decompositions`` writes each of them out in plain operations
(``plain_attention.decompositions``). All three formats are made of that one program.

- A translation of our operators to ONNX (``custom_translation_table``) would serve one format,
  once more in another language, and each of its lines could differ from PyTorch.
- Tracing with ``impl="reference"`` would need that argument in every layer, also in those of other
  people's models, and would write masks into graphs in which every query sees every key.

So a graph has MatMul, the activation, Mul and MatMul, and no Softmax unless the model has one. On
a CPU that is what a runtime wants. On a GPU it forms the matrix of weights: ``fused=True`` keeps
our operators and their kernels in a .pt2 file, which then needs Flashpoint where it is loaded.

Every file is compared with the model before it gets its name.
"""

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from flashpoint.convert.plain_attention import decompositions
from flashpoint.convert.served import Served, served
from flashpoint.errors import (
    FlashpointError,
    InputError,
    UnsupportedError,
    check_choice,
    reason,
    require,
)
from flashpoint.files import write_atomically

LARGEST_ONNX = 2**31 - 1
"""Bytes of a file in protobuf."""
ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-4}
"""How much a result may differ, as a share of the largest; of other dtypes a fiftieth."""
COARSE = 2e-2

Run = Callable[..., Any]
Int8 = Literal["none", "linear", "all"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A file that was written and compared with PyTorch.

    Attributes:
        path: where it lies.
        num_bytes: how large it is.
        max_difference: between its results and the model's, the largest.
        largest: of the model's results, to hold it against.
    """

    path: Path
    num_bytes: int
    max_difference: float
    largest: float


class ExportError(FlashpointError):
    """What was exported computes something else than the model; no file was written."""


def export_program(
    model: nn.Module, example: Any = None, *, dynamic_shapes: Any = None, fused: bool = False
) -> ExportedProgram:
    """The model as a program of ``torch.export``, for inference, of plain operations.

    Args:
        model: any module; one in training is traced as in evaluation and stays in training.
        example: a tensor, a tuple of arguments or a mapping of them. None, for a ViT, a
            ReLUFormer (of which the encoder is exported) or a causal language model of
            transformers (without a cache): made from its config.
        dynamic_shapes: axes that may change, as ``torch.export.export`` takes them, or words for
            their names, as ``({0: "batch"},)``. None: of an example made here the batch and the
            length of text, of others none. An axis that may change has two or more in the example.
        fused: keep Flashpoint's operators, and with them its kernels.

    Example:
        >>> import flashpoint
        >>> model = flashpoint.create_model("vit", image_size=8, patch_size=4, width=16, depth=1,
        ...                                 num_heads=2, num_classes=3)
        >>> export_program(model).module()(torch.zeros(5, 3, 8, 8)).shape
        torch.Size([5, 3])
    """
    return _trace(served(model, example, dynamic_shapes), fused=fused)


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Any = None,
    *,
    dynamic_shapes: Any = None,
    int8: Int8 = "none",
) -> Exported:
    """Write the model as an ONNX file and compare it with PyTorch in onnxruntime.

    Args:
        model, example, dynamic_shapes: as for ``export_program``.
        path: the file.
        int8: what onnxruntime's dynamic quantization stores and multiplies as int8: the matrices
            of "linear" layers; "all", the products of attention too; or "none". The fp32 graph is
            compared first; the difference that is returned is that of int8.

    Raises:
        UnsupportedError: the extra ``onnx`` is not installed, or the file would be too large.
        ExportError: the graph's results are not the model's.
    """
    path = _checked(path)
    check_choice("int8", int8, ("none", "linear", "all"))
    runtime = _require_onnx()
    serving = served(model, example, dynamic_shapes)
    _require_fit(serving.module)
    proto = _to_onnx(serving)
    content: bytes = proto.SerializeToString()
    difference, largest = _compare(serving, _session(runtime, content))
    _require_same("the ONNX graph", difference, largest, serving)
    if int8 != "none":
        content = _quantized(proto, linear_only=int8 == "linear")
        difference, largest = _compare(serving, _session(runtime, content))
    _write(path, lambda handle: handle.write(content))
    return Exported(path=path, num_bytes=len(content), max_difference=difference, largest=largest)


def export_pt2(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Any = None,
    *,
    dynamic_shapes: Any = None,
    compiled: bool = False,
    fused: bool = False,
) -> Exported:
    """Write the model as PyTorch's .pt2 file, load it and compare it with the model.

    Args:
        model, example, dynamic_shapes: as for ``export_program``.
        path: the file; its name ends in .pt2.
        compiled: by AOTInductor, to machine code of the model's device. It needs a C++ compiler
            here and none where it runs; ``torch._inductor.aoti_load_package`` loads it. False: a
            program for ``torch.export.load``.
        fused: keep Flashpoint's operators; who loads the file must ``import flashpoint.ops.api``.
    """
    path = _checked(path)
    if path.suffix != ".pt2":
        raise InputError(f"{path} must end in .pt2, by which PyTorch knows its files.")
    serving = served(model, example, dynamic_shapes)
    program = _trace(serving, fused=fused)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "model.pt2"
        run = _compile(program, made) if compiled else _save(program, made)
        difference, largest = _compare(serving, run)
        _require_same("the program", difference, largest, serving)
        content = made.read_bytes()
    _write(path, lambda handle: handle.write(content))
    return Exported(path=path, num_bytes=len(content), max_difference=difference, largest=largest)


def _trace(serving: Served, *, fused: bool) -> ExportedProgram:
    with _inference(serving.module), _quiet():
        try:
            program = torch.export.export(
                serving.module,
                serving.args,
                serving.kwargs,
                dynamic_shapes=pytree.tree_map(_unnamed, serving.shapes),
            )
        except FlashpointError:
            raise
        except Exception as error:  # its own kinds and those of the model's code
            raise UnsupportedError(
                f"torch.export cannot trace {type(serving.module).__name__} with this example and "
                f"these dynamic_shapes: {reason(error)}."
            ) from error
        return program if fused else program.run_decompositions(decompositions())


def _unnamed(dim: Any) -> Any:
    """An axis that may change, if a word named it."""
    return Dim.DYNAMIC if isinstance(dim, str) else dim


def _to_onnx(serving: Served) -> Any:
    program = _trace(serving, fused=False)
    with _quiet():
        made = torch.onnx.export(
            program,
            serving.args,
            kwargs=serving.kwargs,
            input_names=serving.inputs,
            output_names=serving.outputs,
            dynamic_shapes=serving.shapes,  # for the names of its axes
            verbose=False,
        )
    assert made is not None
    proto = made.model_proto
    for node in (*proto.graph.node, proto.graph):
        del node.metadata_props[:]  # where in which folder of this machine it was traced
    return proto


def _require_onnx() -> Any:
    """onnxruntime, if what makes the files is there too."""
    for name in ("onnx", "onnxscript"):
        require(name, "an ONNX file", extra="onnx")
    return require("onnxruntime", "an ONNX file", extra="onnx")


def _require_fit(module: nn.Module) -> None:
    """Refuse what no file could hold, or onnxruntime not compare."""
    tensors = _tensors(module)
    num_bytes = sum(x.numel() * x.element_size() for x in tensors)
    if num_bytes > LARGEST_ONNX:
        raise UnsupportedError(
            f"the model has {num_bytes:,} bytes, an ONNX file at most {LARGEST_ONNX:,}. Export it "
            "as pt2."
        )
    if any(x.dtype == torch.bfloat16 for x in tensors):
        raise UnsupportedError(
            "the model is in bfloat16, which onnxruntime has not on a CPU. Export model.float()."
        )


def _session(runtime: Any, content: bytes) -> Run:
    """The file as a function of the model's tensors."""
    try:
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for every code of its own
        raise UnsupportedError(
            f"onnxruntime has no kernels for this graph: {reason(error)}. Export model.float()."
        ) from error
    names = [given.name for given in session.get_inputs()]

    def run(*args: Any, **kwargs: Any) -> list[Tensor]:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        feed = {n: x.detach().cpu().numpy() for n, x in zip(names, tensors, strict=True)}
        return [torch.from_numpy(result) for result in session.run(None, feed)]

    return run


def _quantized(proto: Any, *, linear_only: bool) -> bytes:
    """The graph with products in int8: all, or those of matrices that are stored in it."""
    quantization = require("onnxruntime.quantization", "int8", extra="onnx")
    del proto.graph.value_info[:]  # shapes of matrices that are about to be transposed
    with tempfile.TemporaryDirectory() as folder, _quiet():
        file = Path(folder) / "int8.onnx"
        options = {"MatMulConstBOnly": linear_only}
        quantization.quantize_dynamic(proto, file, extra_options=options)
        return file.read_bytes()


def _save(program: ExportedProgram, file: Path) -> Run:
    with _quiet():
        torch.export.save(program, file)
        return torch.export.load(file).module()


def _compile(program: ExportedProgram, file: Path) -> Run:
    from torch._inductor import aoti_compile_and_package, aoti_load_package
    from torch._inductor.exc import InvalidCxxCompiler

    with _quiet():
        try:
            aoti_compile_and_package(program, package_path=str(file))
        except InvalidCxxCompiler as error:
            raise UnsupportedError(
                "AOTInductor needs a C++ compiler, and none was found. Install g++ or set CXX; "
                "without compiled=True none is needed."
            ) from error
        return aoti_load_package(str(file))


def _compare(serving: Served, run: Run) -> tuple[float, float]:
    """The largest difference between results of the model and of a file, and the largest result.

    Over the example and those of other sizes.
    """
    calls = [(serving.args, serving.kwargs), *((args, {}) for args in serving.others)]
    difference = largest = 0.0
    with _inference(serving.module):
        for args, kwargs in calls:
            wanted = _tensors_of(serving.module(*args, **kwargs))
            got = _tensors_of(run(*args, **kwargs))
            for ours, theirs in zip(wanted, got, strict=True):
                same = (ours == theirs) | (ours.isnan() & theirs.isnan())  # also infinities
                difference = max(difference, _largest((ours - theirs).masked_fill(same, 0)))
                largest = max(largest, _largest(ours.where(ours.isfinite(), 0)))
    return difference, largest


def _tensors_of(results: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(results)
    return [x.detach().cpu().double() for x in leaves if isinstance(x, Tensor)]


def _largest(x: Tensor) -> float:
    """In size; a NaN is beyond all."""
    return x.abs().nan_to_num(nan=float("inf")).max().item() if x.numel() else 0.0


def _require_same(what: str, difference: float, largest: float, serving: Served) -> None:
    dtypes = {x.dtype for x in _tensors(serving.module) if x.is_floating_point()}
    share = max((ROUNDING.get(dtype, COARSE) for dtype in dtypes), default=1e-4)
    if difference > share * max(largest, 1e-6):
        raise ExportError(
            f"{what} differs from the model by {difference:.1e}, where its results are up to "
            f"{largest:.1e}; rounding allows {share:.0e} of that. No file was written."
        )


def _tensors(module: nn.Module) -> Sequence[Tensor]:
    return (*module.parameters(), *module.buffers())


def _checked(path: str | os.PathLike[str]) -> Path:
    """A file's path, before anything is computed."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give the name of a file.")
    return path


def _write(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    try:
        write_atomically(path, write)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from error


@contextlib.contextmanager
def _inference(module: nn.Module) -> Generator[None]:
    """Evaluation without gradients; afterwards every part is in the mode that it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Without what exporters say of themselves: deprecations inside them, advice."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
