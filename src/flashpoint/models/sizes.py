"""How large a model's sizes may be: far beyond any that was trained, near what can be counted."""

from typing import Annotated, TypeAlias

from flashpoint.bounds import Bounds

Width: TypeAlias = Annotated[int, Bounds(1, 65_536)]
Depth: TypeAlias = Annotated[int, Bounds(1, 256)]
Slots: TypeAlias = Annotated[int, Bounds(1, 2**20)]
