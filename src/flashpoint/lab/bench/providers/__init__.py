"""Who computes attention: Flashpoint and the peers it is measured against.

Read in this order: ``provider`` (what one is), ``registry`` (all of them by name), then one file a
family: ``sdpa``, ``flex``, ``plain``; ``compiled`` is what the last two share.
"""
