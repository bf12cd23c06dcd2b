"""Caches for Java's names, and iterators that check for their end.

For each part of a class's name and each static method, py4j sends a request to Java at every use. For a part
that is not a class, Java searches all its archives. At the end of an iteration, Java raises an exception,
which pyspark compares with a dozen kinds. Together, these requests were a third of the calls in a small
delivery.
"""

from functools import cache
from typing import Any

from py4j.java_collections import JavaIterator
from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView
from py4j.protocol import ITERATOR_TYPE, register_output_converter


class _NameCache:
    """A mixin that caches each class, package or method when it is first looked up."""

    def __getattr__(self, name: str) -> Any:
        # The value of a field may change: it is not cached.
        member = _remember(super().__getattr__(name))  # type: ignore[misc]
        if isinstance(member, JavaMember | _NameCache):
            self.__dict__[name] = member
        return member


class _Iterator(JavaIterator):  # type: ignore[misc]
    """An iterator that calls `hasNext` before `next`."""

    def __next__(self) -> Any:
        if not self.hasNext():
            raise StopIteration
        return super().__next__()


_KINDS: dict[type, Any] = {
    kind: type(kind.__name__, (_NameCache, kind), {}) for kind in (JVMView, JavaPackage, JavaClass)
}


def remember_names(jvm: Any) -> Any:
    """The view of Java, which caches names from now on."""
    if type(jvm) is JVMView:
        _ask_before_the_end()
    return _remember(jvm)


def java_class(jvm: Any, name: str) -> Any:
    """A class by its full name, without a request for each part of the name.

    `jvm` is any Java object.
    """
    return _class_by_name(jvm._gateway_client, name)  # noqa: SLF001 - py4j names it nowhere else


@cache
def _class_by_name(client: Any, name: str) -> Any:
    return _KINDS[JavaClass](name, client)


@cache
def _ask_before_the_end() -> None:
    register_output_converter(ITERATOR_TYPE, _Iterator)


def _remember(member: Any) -> Any:
    kind = _KINDS.get(type(member))
    if kind is not None:
        member.__class__ = kind
    return member
