"""The one error class for what a user asked for and cannot have."""


class InputError(ValueError):
    """A value that breaks a rule of this library.

    The message is one line that names the offending value, the rule, and the way out, so that a
    program can print it as it is and exit with code 2.
    """
