"""Examples of docstrings as blocks of code: mkdocstrings knows the heading in the plural only."""

import griffe


class Examples(griffe.Extension):
    """Reads "Example:" as "Examples:"."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Change a docstring before it is parsed."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
