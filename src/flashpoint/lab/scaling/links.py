"""How long messages take, by the speed of the links that were given."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """What a GPU can send in a second, one way.

    Attributes:
        node_bytes_per_s: to GPUs of its own node.
        network_bytes_per_s: to those of other nodes, by its own share of the network.
        gpus_per_node: GPUs of a node; ranks are numbered node by node.
    """

    node_bytes_per_s: float
    network_bytes_per_s: float
    gpus_per_node: int

    def ranks_per_node(self, num_ranks: int) -> int:
        """How many ranks of a group of neighbors share a node, at least.

        Example:
            >>> links = Links(node_bytes_per_s=1, network_bytes_per_s=1, gpus_per_node=8)
            >>> [links.ranks_per_node(count) for count in (2, 8, 64, 6)]
            [2, 8, 8, 2]
        """
        return math.gcd(num_ranks, self.gpus_per_node)

    def seconds(self, how: str, sent: float, num_ranks: int) -> float:
        """That it takes each rank of a group of neighbors to send so many bytes.

        Args:
            how: "ring": to the next rank, where one slow hop holds up all. "all_to_all": the same
                to everybody, inside and outside at once. "collective": an all-gather or an
                all-reduce, which uses the network of all GPUs of a node.
            sent: bytes of one rank.
            num_ranks: of the group.
        """
        near = self.ranks_per_node(num_ranks)
        inside, outside = self.node_bytes_per_s, self.network_bytes_per_s
        if num_ranks == near:
            return sent / inside
        if how == "ring":
            return sent / min(inside, outside)
        if how == "collective":
            return sent / min(inside, near * outside)
        far = sent * (num_ranks - near) / (num_ranks - 1)
        return max((sent - far) / inside, far / outside)
