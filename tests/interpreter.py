"""Triton's interpreter without what it does again in every operation; results are the same.

It takes most of the time of tests of kernels where there is no GPU. What is left out: language
that is patched in every call inside a kernel, sums in int64 that check int32 ones but assert
nothing unless Triton debugs, names of types that nobody reads, and tables that are made anew.
"""

from functools import cache, cached_property

import triton
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter

KNOWN = "3.6."
"""The Triton whose types are built as below; another one keeps its own."""


def hasten():
    """Change Triton's modules for this process."""
    if not hasattr(interpreter, "_LangPatchScope"):  # Triton 3.5
        return
    _patch_language_once()
    if not triton.__version__.startswith(KNOWN):
        return
    options = interpreter.InterpreterOptions(sanitize_overflow=False)
    if not options.debug:  # else overflow would end the kernel
        interpreter.interpreter_builder.options = options
    _name_types_when_asked()
    _keep_shapes()
    _keep_numpy_types()


def _patch_language_once():
    """Keep the interpreter from patching its language again; a patched module has no builtin."""
    patch = interpreter._patch_lang

    @cache
    def languages(function):
        return [x for x in (tl, core) if x in function.__globals__.values()]

    def patch_once(function):
        if any(core.is_builtin(module.load) for module in languages(function)):
            return patch(function)
        return interpreter._LangPatchScope()  # nothing to undo

    interpreter._patch_lang = patch_once


def _name_types_when_asked():
    """A tuple's type spells the types of all its values, and each shape is a tuple."""

    def start(self, types, fields=None):
        self.types = types
        self.fields = fields or [""] * len(types)

    def name(self):
        pairs = zip(self.fields, self.types, strict=False)
        return "[" + ",".join(f"{field}:{each}" for field, each in pairs) + "]"

    _give_name(core.tuple_type, name)
    core.tuple_type.__init__ = start


def _keep_shapes():
    """Check a block's shape and make its tuples once; nothing changes a shape in place."""
    blocks, tensors = {}, {}
    start_block = core.block_type.__init__

    def start(self, element_ty, shape):
        sizes = tuple([size.value if isinstance(size, core.constexpr) else size for size in shape])
        if sizes not in blocks:
            start_block(self, element_ty, shape)
            blocks[sizes] = self.shape, self.numel
            del self.name
        self.element_ty = element_ty
        self.shape, self.numel = blocks[sizes]

    def start_tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        sizes = tuple(type.shape.values) if type.is_block() else ()
        if sizes not in tensors:
            made = core.tuple([core.constexpr(size) for size in sizes])
            tensors[sizes] = made, core.constexpr(type.numel if sizes else 1)
        self.shape, self.numel = tensors[sizes]

    _give_name(core.block_type, lambda self: f"<{self.shape}, {self.element_ty}>")
    core.block_type.__init__ = start
    core.tensor.__init__ = start_tensor


def _keep_numpy_types():
    """Look a type up by its name, in a table that is not made anew."""
    found, find = {}, interpreter._get_np_dtype

    def find_once(type):
        scalar = type.scalar
        if scalar.name not in found:
            found[scalar.name] = find(scalar)
        return found[scalar.name]

    interpreter._get_np_dtype = find_once


def _give_name(cls, name):
    """Let a type's name be made when it is asked for."""
    cls.name = cached_property(name)
    cls.name.__set_name__(cls, "name")
