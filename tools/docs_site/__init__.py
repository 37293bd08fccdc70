"""The documentation site: pages as GitHub shows them, made ready for mkdocs."""
