"""The one exception of this package that a user is meant to see."""


class InputError(ValueError):
    """What was given cannot be used; the message says what was wrong and what to do.

    >>> raise InputError("prompt 0 is empty: give it at least one token.")
    Traceback (most recent call last):
    ...
    layerdiv_tl.errors.InputError: prompt 0 is empty: give it at least one token.
    """
