"""What users see when something they passed cannot be served.

Every message says what was given, the rule with the actual numbers, and what to do. The command
line prints these errors as one line; any other exception is a bug and keeps its traceback.
"""


class FlashpointError(Exception):
    """Base of every error that Flashpoint raises on purpose; catch it to catch them all."""


class InputError(FlashpointError, ValueError):
    """An argument breaks a rule of the call: shape, dtype, device, range or an unknown name.

    Example:
        >>> raise InputError("alpha=nan must be a finite number.")
        Traceback (most recent call last):
        flashpoint.errors.InputError: alpha=nan must be a finite number.
    """


class UnsupportedError(FlashpointError, NotImplementedError):
    """The request is valid, but not served here: by this implementation, device or install."""
