"""Who sees whom where a rank has some of the queries and keys."""

from typing import Any

import torch
from torch import Tensor

from flashpoint.distributed.call import ShardedCall
from flashpoint.distributed.division import count_seen
from flashpoint.layers.visibility import Visibility


class ShardVisibility(Visibility):
    """That of this rank's queries; keys and their numbers are those of the whole sequence."""

    seen: Tensor
    call: ShardedCall

    @classmethod
    def of_call(cls, call: ShardedCall, q: Tensor) -> "ShardVisibility":
        """That of a call over all ranks."""
        causal = call.terms.right == 0
        made = cls(q.shape[2], call.keys.total, q.device, None, causal, call.key_lengths)
        made.seen = count_seen(call, call.queries.ranges[call.rank], q.device)
        made.call = call
        return made

    def positions(self) -> Tensor:
        """Where this rank's queries stand among all."""
        runs = self.call.queries.ranges[self.call.rank]
        return torch.cat([torch.arange(*run, device=self.device) for run in runs])

    def total(self, valid: Tensor) -> Tensor:
        """How many are valid, on all ranks."""
        transport = self.call.transport
        mine = valid.sum().view(1)
        found = transport.all_gather([mine], [[(1,)]] * transport.size, "counts")
        return torch.cat([count for (count,) in found]).sum()

    def counts(self, rows: slice | None = None) -> Any:
        """How many keys of the whole sequence a query of these rows sees: [#B, 1, rows, 1]."""
        return self.seen[:, :, rows or slice(None)]
