"""Shapes in signatures: jaxtyping's names where it is installed, else names that say nothing.

``Float[Tensor, "B H L D"]`` is for readers, type checkers and the tests; nobody needs jaxtyping to
compute.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt8
else:
    try:
        from jaxtyping import Bool, Float, Int, UInt8
    except ModuleNotFoundError:

        class _Unchecked:
            """``Float[Tensor, "B L"]`` is Tensor."""

            def __class_getitem__(cls, array_and_shape: tuple[Any, str]) -> Any:
                return array_and_shape[0]

        Bool = Float = Int = UInt8 = _Unchecked

__all__ = ["Bool", "Float", "Int", "UInt8"]
