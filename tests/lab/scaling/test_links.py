"""Messages inside a node go by its links; outside, each kind uses the network in its own way."""

import pytest
from lab.scaling.simple import LINKS


@pytest.mark.parametrize("how", ["ring", "collective", "all_to_all"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_group_within_a_node_sends_at_the_speed_of_its_links(how, ranks):
    assert LINKS.seconds(how, 100e9, ranks) == 1.0


def test_one_slow_hop_holds_up_a_ring():
    assert LINKS.seconds("ring", 100e9, 16) == 10.0


def test_collectives_use_the_network_of_all_gpus_of_a_node():
    assert LINKS.seconds("collective", 80e9, 16) == 1.0
    assert LINKS.seconds("collective", 100e9, 20) == pytest.approx(2.5)  # 4 ranks share a node


def test_all_to_all_waits_for_what_leaves_the_node():
    assert LINKS.seconds("all_to_all", 15e9, 16) == pytest.approx(8 / 10)
