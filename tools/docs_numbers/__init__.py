"""Numbers of the documents: tables between markers, made of files that are stored.

``<!-- numbers: NAME -->`` and ``<!-- end -->`` stand on lines of their own around Markdown that a
function of this package makes. ``make docs-numbers`` writes it anew; ``--check`` only compares.
"""
