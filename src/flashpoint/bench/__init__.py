"""Measurements of the operator beside its peers: time, memory and error, as plain data.

Read in this order: ``cases`` (what is measured), ``suites`` (named sets and their limits),
``providers`` (who computes it), ``timing``, ``memory`` and ``accuracy`` (how), ``runner`` (all of
it for a plan), ``result``, ``check`` and ``table`` (what comes out).
"""
