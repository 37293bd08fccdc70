"""Who computes attention: Flashpoint and the peers it is measured against.

Read in this order: ``provider`` (what one is, and what several need), ``registry`` (all of them by
name), then one file a family: ``sdpa``, ``fa4``, ``flex``, ``plain``.
"""
