"""The errors of calls to Java. A plain installation has no py4j, so no call there raises these errors."""

try:
    from py4j.protocol import Py4JError, Py4JJavaError
except ImportError:

    class Py4JError(Exception):  # type: ignore[no-redef]
        """The error of a call of Java."""

    class Py4JJavaError(Py4JError):  # type: ignore[no-redef, misc]
        """The error of a call in which Java raised an exception."""


__all__ = ["Py4JError", "Py4JJavaError"]
