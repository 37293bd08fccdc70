"""The version, for all rooms; the package itself imports the rooms."""

__version__ = "0.1.0"
