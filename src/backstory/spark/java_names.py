"""Java asked once for each of its names, and never for what is behind the end of a list.

py4j asks for each part of a class's name and for each static method at every use, and Java looks through
all of its archives for a part that is no class. It ends a walk through what Java lists by an exception,
which pyspark compares with a dozen kinds. Together that was a third of what a small delivery asks of Java.
"""

from functools import cache
from typing import Any

from py4j.java_collections import JavaIterator
from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView
from py4j.protocol import ITERATOR_TYPE, register_output_converter


class _NameCache:
    """Looks for a name as its class does, and keeps the class, package or method that it stands for."""

    def __getattr__(self, name: str) -> Any:
        # A field may have another value tomorrow: it is no name, and is not kept.
        found = _remember(super().__getattr__(name))  # type: ignore[misc]
        if isinstance(found, JavaMember | _NameCache):
            self.__dict__[name] = found
        return found


class _View(_NameCache, JVMView):  # type: ignore[misc]
    pass


class _Package(_NameCache, JavaPackage):  # type: ignore[misc]
    pass


class _Class(_NameCache, JavaClass):  # type: ignore[misc]
    pass


class _Iterator(JavaIterator):  # type: ignore[misc]
    """Asks whether there is more before it asks for it."""

    def __next__(self) -> Any:
        if not self.hasNext():
            raise StopIteration
        return super().__next__()


_KINDS = {JVMView: _View, JavaPackage: _Package, JavaClass: _Class}


def remember_names(jvm: Any) -> Any:
    """The same view of Java, which from now on keeps what names stand for."""
    if type(jvm) is JVMView:
        _ask_before_the_end()
    return _remember(jvm)


def java_class(jvm: Any, name: str) -> Any:
    """A class to call by its whole name, without a question for each part of it.

    `jvm` is anything of Java's.
    """
    return _class_by_name(jvm._gateway_client, name)  # noqa: SLF001 - py4j names it nowhere else


@cache
def _class_by_name(client: Any, name: str) -> Any:
    return _Class(name, client)


@cache
def _ask_before_the_end() -> None:
    register_output_converter(ITERATOR_TYPE, _Iterator)


def _remember(found: Any) -> Any:
    kind = _KINDS.get(type(found))
    if kind is not None:
        found.__class__ = kind
    return found
