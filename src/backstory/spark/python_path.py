"""Where Python looks for modules in a session: not in jars, which have none."""

import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def leave_out_jars(spark: "SparkSession") -> None:
    """Take jars without modules from the path of this process and of Spark's Python workers.

    Spark puts what its resolver fetched there, for some packages bring modules. Each worker would read the
    directories of all of them, tens of thousands of names, before it imports anything: a second of every job.
    """
    from pyspark import SparkFiles

    context, folder = spark.sparkContext, Path(SparkFiles.getRootDirectory())
    jars = {each for each in context._python_includes or () if not has_modules(folder / each)}  # noqa: SLF001
    context._python_includes = [each for each in context._python_includes or () if each not in jars]  # noqa: SLF001
    paths = {str(folder / each) for each in jars}
    sys.path[:] = [each for each in sys.path if each not in paths]


def has_modules(path: Path) -> bool:
    """Whether Python can import something from a file; True for what is no jar."""
    if path.suffix != ".jar" or not zipfile.is_zipfile(path):
        return True
    with zipfile.ZipFile(path) as jar:
        return any(each.endswith((".py", ".pyc")) for each in jar.namelist())
