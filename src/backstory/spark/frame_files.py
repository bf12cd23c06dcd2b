"""The files that a frame reads, and its columns with only one value, found in its plan before it runs.

A frame that reads files has the same rows each time, as long as the files do not change.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from backstory.spark.connect import Py4JJavaError, is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The steps of a plan that produce the same rows each time, if their expressions do.
REPEATABLE: Final = frozenset(["Project", "Filter", "Union", "Range", "LocalRelation"])
FILES: Final = "LogicalRelation"
LISTED: Final = "org.apache.spark.sql.execution.datasources.InMemoryFileIndex"
# Parsing other formats again takes longer than storing their rows.
QUICK: Final = frozenset(["Parquet", "ORC"])
# Spark assumes that users' functions are deterministic. The time and the results of subqueries may change.
CHANGING: Final = ("CURRENT_LIKE", "PLAN_EXPRESSION", "PYTHON_UDF", "SCALA_UDF")
# The status of each file is requested twice.
MOST_FILES: Final = 256
REQUESTS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class FrameFiles:
    """The files of a frame: path, size and modification time, as they were before the first read."""

    paths: Sequence[Any]
    configuration: Any
    stamps: Sequence[tuple[str, int, int]]

    def changed_file(self) -> str | None:
        """The path of a file that has changed or is missing, or None if no file has changed."""
        now = _stamps(self.paths, self.configuration)
        if now is None:
            return self.stamps[0][0]
        return next((old[0] for old, new in zip(self.stamps, now, strict=True) if old != new), None)


def frame_files(frame: "DataFrame") -> FrameFiles | None:
    """The Parquet or ORC files that a frame reads.

    Returns None if the frame may have other rows when it is computed again. Also returns None if the frame
    reads very many files, or files in another format.
    """
    if is_connect(frame.sparkSession):
        return None
    execution: Any = frame._jdf.queryExecution()  # noqa: SLF001 - Python has no name for it
    jvm: Any = frame.sparkSession._jvm  # noqa: SLF001
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    analyzed, optimized = execution.analyzed(), execution.optimizedPlan()
    if any(analyzed.containsPattern(getattr(patterns, name)()) for name in CHANGING):
        return None
    if not optimized.deterministic():
        return None
    paths: list[Any] = []
    if not _gather_paths(optimized, paths):
        return None
    configuration = frame.sparkSession._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    stamps = _stamps(paths, configuration)
    return None if stamps is None else FrameFiles(paths, configuration, stamps)


def constant_columns(frame: "DataFrame") -> set[str]:
    """The columns of a frame that, according to its plan, have the same value in all rows."""
    plan: Any = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
    if plan.nodeName() != "Project":
        return set()
    columns = plan.projectList()
    named = (columns.apply(place) for place in range(columns.size()))
    aliases = (column for column in named if column.getClass().getSimpleName() == "Alias")
    return {str(alias.name()) for alias in aliases if alias.child().foldable()}


def _gather_paths(plan: Any, paths: list[Any]) -> bool:
    """Add the paths of all files that a plan reads. Returns whether the plan has the same rows each time."""
    name = plan.nodeName()
    if name == FILES:
        relation = plan.relation()
        index = relation.location() if hasattr(relation, "location") else None
        if index is None or index.getClass().getName() != LISTED:
            return False
        if str(relation.fileFormat().toString()) not in QUICK:
            return False
        files = index.allFiles()
        if len(paths) + files.size() > MOST_FILES:
            return False
        paths.extend(files.apply(place).getPath() for place in range(files.size()))
        return True
    children = plan.children()
    return name in REPEATABLE and all(
        _gather_paths(children.apply(place), paths) for place in range(children.size())
    )


def _stamps(paths: Sequence[Any], configuration: Any) -> list[tuple[str, int, int]] | None:
    """The path, size and modification time of each file, or None if a file is missing."""

    def stamp(path: Any) -> tuple[str, int, int]:
        status = path.getFileSystem(configuration).getFileStatus(path)
        return str(path.toString()), int(status.getLen()), int(status.getModificationTime())

    try:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            return [*pool.map(stamp, paths)]
    except Py4JJavaError:
        return None
