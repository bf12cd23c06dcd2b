"""Launch Spark's Java: in a session of its own, with settings that nobody else on the machine can read."""

import codecs
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from backstory.spark.forks import hold_to_this_process
from backstory.spark.versions import own_defaults, submit_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
OWNER_ALONE = 0o077


def java() -> Any:
    """The view of this process's Java; None where it has none."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001 - pyspark keeps it there
    return None if gateway is None else gateway.jvm


def launch(chosen: Mapping[str, str], *, alone: bool) -> Any:
    """Start the JVM in a session of its own: a signal to this process's group must not end it.

    It ends with this process, whose end it sees on its standard input. The properties go there in a
    file, since everybody may read a command line. With `alone` what Java writes belongs to its user
    alone.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:  # noqa: SLF001 - pyspark starts its JVM in this way itself
        with _pass_by_file(chosen), _names_in_utf8():
            wanted = {"start_new_session": True, "umask": OWNER_ALONE if alone else -1}
            gateway = launch_gateway(None, wanted)  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001
        hold_to_this_process(java())
    return java()


def java_of(spark: "SparkSession") -> "subprocess.Popen[bytes] | None":
    """The process of the session's Java; None if this process did not start it."""
    return getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001


def spells(jvm: Any, path: str) -> bool:
    """Whether Java writes the name of a file in the bytes in which this process does."""
    encoding = codecs.lookup(str(jvm.java.lang.System.getProperty("sun.jnu.encoding"))).name
    try:
        path.encode(encoding)
    except UnicodeEncodeError:  # in ASCII this process has bytes that are no letters
        return False
    return path.isascii() or encoding == codecs.lookup(sys.getfilesystemencoding()).name


@contextmanager
def _names_in_utf8() -> Iterator[None]:
    """Java that is started meanwhile writes names of files in UTF-8, if this process does.

    It goes by the locale, in which cron and many containers know ASCII alone; Python has UTF-8 there, too.
    """
    before = os.environ.get("LC_ALL")
    in_utf8 = codecs.lookup(sys.getfilesystemencoding()).name == "utf-8"
    if in_utf8:
        os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        if in_utf8:
            os.environ.pop("LC_ALL")
            if before is not None:
                os.environ["LC_ALL"] = before


@contextmanager
def properties_file(chosen: Mapping[str, str]) -> Iterator[Path]:
    """The properties in a private file, as spark-submit reads them."""
    with tempfile.TemporaryDirectory(prefix="backstory-spark-") as folder:
        path = Path(folder, "properties")
        lines = (f"{_escaped(name)}={_escaped(chosen[name])}\n" for name in chosen)
        path.write_text("".join([own_defaults(os.environ), *lines]), "utf-8")
        path.chmod(0o600)
        yield path


@contextmanager
def _pass_by_file(chosen: Mapping[str, str]) -> Iterator[None]:
    """Have spark-submit, which is started meanwhile, read the properties from a private file."""
    own = os.environ.get(ARGUMENTS)
    with properties_file(chosen) as path:
        arguments = " ".join([*submit_options(), "--properties-file", quote(str(path))])
        os.environ[ARGUMENTS] = f"{arguments} {own or 'pyspark-shell'}"
        try:
            yield
        finally:
            os.environ.pop(ARGUMENTS)
            if own is not None:
                os.environ[ARGUMENTS] = own


def _escaped(text: str) -> str:
    """The text as Java's properties spell it, whatever it holds."""
    units = text.encode("utf-16-be", "surrogatepass")  # bytes that are no letters are for Java to refuse
    numbers = [int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2)]
    plain = (chr(number) for number in numbers)
    return "".join(
        letter if letter.isascii() and letter.isalnum() else f"\\u{ord(letter):04x}" for letter in plain
    )


@contextmanager
def quiet(*, verbose: bool) -> Iterator[Path | None]:
    """While the JVM starts, the outputs that it inherits are a log file; standard output never is."""
    saved = os.dup(1), os.dup(2)
    path = None
    try:
        sys.stdout.flush()
        if verbose:
            os.dup2(2, 1)
        else:
            log, name = tempfile.mkstemp(".log", f"backstory-spark-{os.getpid()}-")
            path = Path(name)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
        yield path
    finally:
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in saved:
            os.close(descriptor)
