"""torchtitan's smallest Llama with the example's hook: two processes equal one.

torchrun --nproc-per-node 2 tests/examples/titan_llama.py

All on the CPU. torchtitan 0.3.0 hands its FSDP parameters of the backend "spmd_types" that torch
2.13 refuses, with or without the hook. There the model is parallelized without FSDP.
"""

import copy
import functools
import itertools
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torchtitan.distributed.parallel_dims as titan
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.context_parallel import cp_shard
from torchtitan.distributed.spmd_types import set_current_spmd_mesh
from torchtitan.distributed.utils import set_spmd_backend
from torchtitan.models.common.attention import (
    ScaledDotProductAttention,
    create_varlen_metadata_for_document,
)
from torchtitan.models.llama3 import model_registry, parallelize_llama
from torchtitan.trainer import Trainer

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchtitan_context_parallel.py"
apply_pointwise = runpy.run_path(str(EXAMPLE))["apply_pointwise"]

BACKENDS = ("full_dtensor", "partial_dtensor", "spmd_types")
BALANCERS = {"headtail": "zigzag", None: "contiguous"}
WORDS, LENGTH = 2048, 32


class DocumentTrainer(Trainer):
    """Gives the model all ranks' documents."""

    def post_dataloading_process(self, input_dict, labels):
        """Inputs, labels and the model's other arguments."""
        inputs, labels, more = super().post_dataloading_process(input_dict, labels)
        documents = create_varlen_metadata_for_document(input_dict["positions"])
        return inputs, labels, more | {"attention_masks": documents}


def main():
    """All backends and load balancers, sequences and documents."""
    titan.device_type = "cpu"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for backend, balancer, packed in itertools.product(BACKENDS, BALANCERS, (False, True)):
        set_spmd_backend(backend)
        output, gradient = differences(backend, balancer, packed)
        if dist.get_rank() == 0:
            what = "documents" if packed else "sequences"
            shown = f"{backend} {balancer} {what}: output {output:.1e}, gradient {gradient:.1e}"
            sys.stdout.write(f"{shown}\n")
    dist.destroy_process_group()


def differences(backend, balancer, packed):
    """The largest of the output and of a gradient to one process, over the largest value."""
    settings = ParallelismConfig(
        context_parallel_degree=2, spmd_backend=backend, context_parallel_load_balancer=balancer
    )
    options = {"layout": BALANCERS[balancer], "activation": "relu", "alpha": 0.5}
    one, cut, dims = build(settings), build(settings), parallel_dims(2, backend)
    apply_pointwise(one.layers.values(), parallel_dims(1, backend), **options)
    parallelize(cut, dims, settings, options)

    tokens, weights = torch.randint(WORDS, (2, LENGTH)), torch.randn(2, LENGTH, WORDS)
    lengths = ((5, 20, 7), (17, 15)) if packed else ((LENGTH,), (LENGTH,))
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    arguments = {"input": tokens, "positions": positions}
    part, _, more = prepare(cut, dims, settings, arguments, packed)
    documents = {"attention_masks": more["attention_masks"]} if packed else {}

    expected = one(tokens, positions, **documents)
    if packed:
        assert relative(one(tokens[1:, 17:], positions[1:, 17:]), expected[1:, 17:]) < 1e-5
    (expected * weights).sum().backward()
    with set_current_spmd_mesh(dims.spmd_dense_mesh()) if spmd(backend) else nullcontext():
        o = cut(part, **more)
        o = o.to_local() if isinstance(o, DTensor) else o
        own = (expected.detach(), weights)
        (own, own_weights), _ = cp_shard(dims.get_mesh("cp"), own, None, balancer)
        (o * own_weights).sum().backward()
    gradients = [total(p.grad) for p in cut.parameters()]
    largest = [relative(o, own)]
    largest += [relative(a, b.grad) for a, b in zip(gradients, one.parameters(), strict=True)]
    assert all(p.grad.abs().max() > 0 for p in one.parameters())
    error = torch.tensor([largest[0], max(largest[1:])])
    dist.all_reduce(error, dist.ReduceOp.MAX)
    return error.tolist()


def build(settings):
    """The same model each time, with attention that counts."""
    config = model_registry("debugmodel").model
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.update_from_config(config=SimpleNamespace(parallelism=settings))
    torch.manual_seed(0)
    model = config.build()
    model.init_states()
    for layer in model.layers.values():
        for parameter in layer.attention.parameters():
            parameter.data *= 6
    return model


@functools.cache
def parallel_dims(cp, backend):
    """Of context parallelism alone; meshes are compared by identity."""
    return titan.ParallelDims(1, 1, cp, 1, 1, 1, cp, backend)


def parallelize(model, dims, settings, options):
    """As the example says."""
    if settings.spmd_backend != "partial_dtensor":
        apply_pointwise(model.layers.values(), dims, **options)
    if spmd(settings.spmd_backend):
        model.parallelize(dims)
        return
    parallelize_llama(
        model,
        parallel_dims=dims,
        training=TrainingConfig(mixed_precision_param="float32"),
        parallelism=settings,
        compile_config=CompileConfig(enable=False),
        ac_config=None,
        dump_folder="",
    )
    if settings.spmd_backend == "partial_dtensor":
        apply_pointwise(model.layers.values(), dims, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # all that gloo can


def prepare(model, dims, settings, arguments, packed):
    """What the trainer makes of a batch for this rank."""
    trainer = object.__new__(DocumentTrainer if packed else Trainer)
    trainer.config, trainer.parallel_dims = SimpleNamespace(parallelism=settings), dims
    trainer.model_config, trainer.model_parts = model.config, [model]
    trainer.device, trainer.ntokens_seen = torch.device("cpu"), 0
    return trainer.post_dataloading_process(arguments, copy.copy(arguments["input"]))


def spmd(backend):
    """Whether tensors are plain, and gradients not yet added up."""
    return backend == "spmd_types"


def total(gradient):
    """Over all ranks."""
    if isinstance(gradient, DTensor):
        return gradient.full_tensor()
    dist.all_reduce(gradient)
    return gradient


def relative(a, b):
    """The largest difference over the largest value."""
    return ((a - b).abs().max() / b.abs().max()).item()


if __name__ == "__main__":
    main()
