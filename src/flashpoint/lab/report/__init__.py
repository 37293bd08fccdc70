"""Stored runs as a page: reads files only, never trains, never imports torch.

``html`` escapes by construction, ``page`` puts sections together, every other module makes one
section: a function from data to ``Html``.
"""
