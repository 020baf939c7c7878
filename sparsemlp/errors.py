"""Errors whose message is one line for the user, fit to be printed as it is."""


class InputError(ValueError):
    """A value that breaks a rule of this library.

    The message is one line that names the offending value, the rule, and the way out, so that a
    program can print it as it is and exit with code 2.
    """


class SaveError(OSError):
    """A write that the disk refused; everything that was saved before is as it was.

    The message is one line that names what, where, why, and how to go on.
    """


class NotFiniteError(ArithmeticError):
    """The loss or a parameter became NaN or infinite; one line says when and what is left."""


class WorkerError(RuntimeError):
    """A helping process that died or failed; the message is one line that says how."""
