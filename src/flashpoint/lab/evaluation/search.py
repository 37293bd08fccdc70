"""How translations are looked for, as data; the command line reads its limits without torch."""

from dataclasses import dataclass
from typing import Annotated

from flashpoint.bounds import Bounds, check_bounds
from flashpoint.errors import InputError

BEAM = Bounds(1, 1024)
PARTS = Bounds(1, 16_384)
LENGTH_PENALTY = Bounds(-100.0, 100.0)
MAX_HYPOTHESES = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """How translations are looked for.

    Attributes:
        beam_size: hypotheses; 1 is greedy.
        length_penalty: of beam search; see ``models.generation``.
        batch_size: parts of documents at a time.
        is_bf16: compute in bf16, as training did.
    """

    beam_size: Annotated[int, BEAM] = 5
    length_penalty: Annotated[float, LENGTH_PENALTY] = 1.0
    batch_size: Annotated[int, PARTS] = 32
    is_bf16: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)
        hypotheses = self.beam_size * self.batch_size
        if hypotheses > MAX_HYPOTHESES:
            raise InputError(
                f"a beam of {self.beam_size} over {self.batch_size} parts at a time are "
                f"{hypotheses:,} hypotheses, more than {MAX_HYPOTHESES:,}. Lower one of them."
            )
