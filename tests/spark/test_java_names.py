"""The requests to Java, call by call."""

import pytest

from backstory.spark.java_names import java_class, remember_names
from backstory.stores.iceberg.jvm import texts_of


@pytest.fixture
def traced_java(spark, monkeypatch):
    """The session's Java, and the commands that were sent to it."""
    commands, client = [], type(spark._jvm._gateway_client)
    send = client.send_command

    def sending(self, command, *more, **named):
        commands.append(command)
        return send(self, command, *more, **named)

    monkeypatch.setattr(client, "send_command", sending)
    return remember_names(spark._jvm), commands


def questions(commands):
    """The commands that request a name."""
    return [command for command in commands if command.startswith("r\n")]


def test_java_names_are_requested_only_once(traced_java):
    """A class by its parts, one by its bare name, and a method are requested once."""
    jvm, commands = traced_java
    counts = []
    for _ in range(2):
        assert jvm.java.lang.Math.abs(-3) == 3
        assert java_class(jvm, "java.lang.Long").valueOf("7") == 7
        assert jvm.PythonUtils is not None
        counts.append(len(questions(commands)))
    assert counts[0] == counts[1]


def test_a_field_is_read_at_each_use(traced_java):
    """Its value may have changed."""
    jvm, commands = traced_java
    long = java_class(jvm, "java.lang.Long")
    assert long.MAX_VALUE == long.MAX_VALUE == 2**63 - 1
    assert "MAX_VALUE" not in vars(long)


def test_java_collections_are_read_without_an_exception(traced_java):
    """Lists, sets and maps are read to their end. pyspark would compare an exception with a dozen kinds."""
    jvm, commands = traced_java
    words = java_class(jvm, "java.util.ArrayList")()
    for word in ("a", "b"):
        words.add(word)
    assert list(words.iterator()) == ["a", "b"]
    assert set(java_class(jvm, "java.util.HashSet")(words)) == {"a", "b"}
    assert list(java_class(jvm, "java.util.Collections").emptyMap()) == []
    assert not any("TypeUtil" in command for command in commands)


def test_a_missing_class_is_an_error_at_its_use(traced_java):
    from py4j.protocol import Py4JError

    jvm, _ = traced_java
    with pytest.raises((Py4JError, TypeError)):
        jvm.java.lang.Nothing()


@pytest.mark.parametrize("texts", [{}, {"a": "1"}, {"a": "1", "b": "", "": "3\n"}, {"a\0b": "1\0", "c": "2"}])
def test_a_map_of_texts_is_read_in_few_requests(traced_java, texts):
    """The result equals py4j's, for any texts."""
    jvm, commands = traced_java
    java_map = jvm.java.util.HashMap()
    for name, value in texts.items():
        java_map.put(name, value)
    assert texts_of(java_map) == dict(java_map) == texts
    many = jvm.java.util.HashMap()
    for number in range(20):
        many.put(str(number), "x")
    commands.clear()
    assert len(texts_of(many)) == 20
    # Python may release objects at any time. These commands are not requests.
    assert len([each for each in commands if not each.startswith("m\nd\n")]) < 10
