"""What loops over the files of a table, in Java: an answer to Python for each of them takes too long.

Each script is asked once for many files, and tells of them as lines of text.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from backstory.model.remembered import RECORDED
from backstory.spark.versions import rewrites_by_options
from backstory.stores.iceberg.jvm import ICEBERG, script

# The option by which Iceberg's reader finds staged tasks.
TASKS_OPTION: Final = "scan-task-set-id"
_SCAN: Final = {"scan": f"{ICEBERG}.TableScan", "locations": "java.util.Set"}
_PLAN: Final = f"""
java.util.Map found = new java.util.HashMap();
{ICEBERG}.io.CloseableIterable tasks = scan.planFiles();
try {{
  for (java.util.Iterator each = tasks.iterator(); each.hasNext() && found.size() < locations.size();) {{
    {ICEBERG}.FileScanTask task = ({ICEBERG}.FileScanTask) each.next();
    String location = (({ICEBERG}.DataFile) task.file()).location();
    if (locations.contains(location)) found.put(location, task);
  }}
}} finally {{ tasks.close(); }}
return found;
"""
_COMMITS: Final = f"""
StringBuilder told = new StringBuilder();
java.util.Set ancestors = new java.util.HashSet();
java.util.List commits = new java.util.ArrayList();
{ICEBERG}.Snapshot each = table.currentSnapshot();
while (each != null) {{
  commits.add(each);
  ancestors.add(Long.valueOf(each.snapshotId()));
  each = each.parentId() == null ? null : table.snapshot(each.parentId().longValue());
}}
for (java.util.Iterator others = table.snapshots().iterator(); others.hasNext();) {{
  each = ({ICEBERG}.Snapshot) others.next();
  if (!ancestors.contains(Long.valueOf(each.snapshotId()))) commits.add(each);
}}
for (java.util.Iterator all = commits.iterator(); all.hasNext();) {{
  each = ({ICEBERG}.Snapshot) all.next();
  told.append(ancestors.contains(Long.valueOf(each.snapshotId()))).append('\\t')
    .append(each.snapshotId()).append('\\t').append(each.sequenceNumber()).append('\\t')
    .append(each.timestampMillis()).append('\\t').append(each.operation()).append('\\t')
    .append(each.parentId() == null ? "" : each.parentId().toString()).append('\\t');
  Object recorded = each.summary() == null ? null : each.summary().get("{RECORDED}");
  told.append(recorded == null ? "" : recorded).append('\\n');
}}
return told.toString();
"""
# A line for a file; `sign` is what became of it, and of a delete file `hidden` is the one that it is of.
_TELL: Final = f"""
  boolean rows = file.content() == {ICEBERG}.FileContent.DATA;
  {ICEBERG}.DeleteFile deletes = rows ? null : ({ICEBERG}.DeleteFile) (Object) file;
  told.append(sign).append('\\t').append(file.content()).append('\\t').append(file.format()).append('\\t')
    .append(file.recordCount()).append('\\t').append(file.fileSizeInBytes()).append('\\t')
    .append(rows || deletes.contentOffset() == null ? "0" : deletes.contentOffset().toString()).append('\\t')
    .append(rows || deletes.contentSizeInBytes() == null ? "0" : deletes.contentSizeInBytes().toString())
    .append('\\t').append(rows || deletes.referencedDataFile() == null ? "" : deletes.referencedDataFile())
    .append('\\t').append(file.firstRowId() == null ? "" : file.firstRowId().toString())
    .append('\\t').append(file.location()).append('\\n');
  if (rows) files.put(file.location(), file);
"""
_COMMIT: Final = f"""
StringBuilder told = new StringBuilder();
Iterable[] kinds = new Iterable[] {{
  snapshot.addedDataFiles(io), snapshot.removedDataFiles(io),
  snapshot.addedDeleteFiles(io), snapshot.removedDeleteFiles(io)
}};
for (int kind = 0; kind < 4; kind++) {{
  String sign = kind % 2 == 0 ? "+" : "-";
  for (java.util.Iterator each = kinds[kind].iterator(); each.hasNext();) {{
    {ICEBERG}.ContentFile file = ({ICEBERG}.ContentFile) each.next();
    {_TELL}
  }}
}}
return told.toString();
"""
_STANDING: Final = f"""
StringBuilder told = new StringBuilder();
{ICEBERG}.io.CloseableIterable tasks = scan.planFiles();
try {{
  for (java.util.Iterator each = tasks.iterator(); each.hasNext();) {{
    {ICEBERG}.FileScanTask task = ({ICEBERG}.FileScanTask) each.next();
    if (locations != null && !locations.contains((({ICEBERG}.DataFile) task.file()).location())) continue;
    String sign = "=";
    {ICEBERG}.ContentFile file = ({ICEBERG}.ContentFile) (Object) task.file();
    {{ {_TELL} }}
    for (java.util.Iterator more = task.deletes().iterator(); more.hasNext();) {{
      file = ({ICEBERG}.ContentFile) more.next();
      {_TELL}
    }}
  }}
}} finally {{ tasks.close(); }}
return told.toString();
"""
_BETWEEN: Final = f"""
StringBuilder told = new StringBuilder();
java.util.Map old = new java.util.HashMap();
{ICEBERG}.io.CloseableIterable tasks = before.planFiles();
try {{
  for (java.util.Iterator each = tasks.iterator(); each.hasNext();) {{
    {ICEBERG}.FileScanTask task = ({ICEBERG}.FileScanTask) each.next();
    old.put((({ICEBERG}.DataFile) task.file()).location(), task);
  }}
}} finally {{ tasks.close(); }}
tasks = after.planFiles();
try {{
  for (java.util.Iterator each = tasks.iterator(); each.hasNext();) {{
    {ICEBERG}.FileScanTask task = ({ICEBERG}.FileScanTask) each.next();
    {ICEBERG}.FileScanTask was =
      ({ICEBERG}.FileScanTask) old.remove((({ICEBERG}.DataFile) task.file()).location());
    java.util.Map gone = new java.util.HashMap();
    java.util.List lists = new java.util.ArrayList();
    if (was == null) lists.add(task.file());
    else for (java.util.Iterator more = was.deletes().iterator(); more.hasNext();) {{
      {ICEBERG}.DeleteFile hiding = ({ICEBERG}.DeleteFile) more.next();
      gone.put(hiding.location() + " " + hiding.contentOffset(), hiding);
    }}
    for (java.util.Iterator more = task.deletes().iterator(); more.hasNext();) {{
      {ICEBERG}.DeleteFile hiding = ({ICEBERG}.DeleteFile) more.next();
      if (gone.remove(hiding.location() + " " + hiding.contentOffset()) == null) lists.add(hiding);
    }}
    String sign = "+";
    for (java.util.Iterator more = lists.iterator(); more.hasNext();) {{
      {ICEBERG}.ContentFile file = ({ICEBERG}.ContentFile) more.next();
      {_TELL}
    }}
    sign = "-";
    for (java.util.Iterator more = gone.values().iterator(); more.hasNext();) {{
      {ICEBERG}.ContentFile file = ({ICEBERG}.ContentFile) more.next();
      {_TELL}
    }}
  }}
}} finally {{ tasks.close(); }}
for (java.util.Iterator each = old.values().iterator(); each.hasNext();) {{
  String sign = "-";
  {ICEBERG}.ContentFile file = ({ICEBERG}.ContentFile) (Object) (({ICEBERG}.FileScanTask) each.next()).file();
  {_TELL}
}}
return told.toString();
"""
# Spark asks a task for its pieces before it plans: one whose groups are chosen gives those, and no others.
_TASKS: Final = f"""
java.util.List tasks = new java.util.ArrayList();
{ICEBERG}.expressions.ResidualEvaluator all = {ICEBERG}.expressions.ResidualEvaluator.unpartitioned(
  {ICEBERG}.expressions.Expressions.alwaysTrue());
String schema = {ICEBERG}.SchemaParser.toJson(table.schema());
for (java.util.Iterator each = groups.keySet().iterator(); each.hasNext();) {{
  String location = (String) each.next();
  {ICEBERG}.DataFile file = ({ICEBERG}.DataFile) files.get(location);
  {ICEBERG}.PartitionSpec spec = ({ICEBERG}.PartitionSpec) table.specs().get(Integer.valueOf(file.specId()));
  {ICEBERG}.BaseFileScanTask task = new {ICEBERG}.BaseFileScanTask(
    file, new {ICEBERG}.DeleteFile[0], schema, {ICEBERG}.PartitionSpecParser.toJson(spec), all);
  java.util.Set wanted = (java.util.Set) groups.get(location);
  if (wanted == null || file.splitOffsets() == null) {{ tasks.add(task); continue; }}
  final java.util.List pieces = new java.util.ArrayList();
  for (java.util.Iterator more = task.split(1L).iterator(); more.hasNext();) {{
    {ICEBERG}.FileScanTask piece = ({ICEBERG}.FileScanTask) more.next();
    if (wanted.contains(String.valueOf(piece.start()))) pieces.add(piece);
  }}
  if (pieces.size() < wanted.size()) {{ tasks.add(task); continue; }}
  final Object whole = task;
  java.lang.reflect.InvocationHandler handler = new java.lang.reflect.InvocationHandler() {{
    public Object invoke(Object self, java.lang.reflect.Method asked, Object[] given) throws Throwable {{
      return asked.getName().equals("split") ? pieces : asked.invoke(whole, given);
    }}
  }};
  tasks.add(java.lang.reflect.Proxy.newProxyInstance(
    {ICEBERG}.FileScanTask.class.getClassLoader(), new Class[] {{ {ICEBERG}.FileScanTask.class }}, handler));
}}
return tasks;
"""
_STAGE: Final = f"""
{ICEBERG}.spark.ScanTaskSetManager.get().stageTasks(table, group, tasks);
return new Object[] {{
  new {ICEBERG}.spark.source.SparkTable(table), new {ICEBERG}.spark.source.SparkRewriteTable(table, group)
}};
"""
_STAGE_BY_OPTION: Final = f"""
{ICEBERG}.spark.ScanTaskSetManager.get().stageTasks(table, group, tasks);
return new Object[] {{ new {ICEBERG}.spark.source.SparkTable(table, false), null }};
"""
_FORGET: Final = f"""
return {ICEBERG}.spark.ScanTaskSetManager.get().removeTasks(table, group);
"""
# Whatever it is asked for, the answer is one: Guava's own constant is no function of Java's in Spark 3.5.
_CONSTANT: Final = """
return new java.util.function.Function() {
  public Object apply(Object any) { return "all"; }
};
"""


@dataclass(frozen=True, slots=True)
class FileLine:
    """A file of rows, or of what hides rows, and what became of it: `+`, `-`, or `=` where it stands."""

    sign: str
    content: str
    format: str
    count: int
    size: int
    offset: int
    length: int
    hidden: str
    location: str
    first_row: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotLine:
    """A commit; `parent` is None for the first, `recorded` is its recorded time, empty where it has none."""

    id: int
    version: int
    millis: int
    operation: str
    parent: int | None
    recorded: str = ""


def scan_tasks_of(jvm: Any, table: Any, locations: Iterable[str]) -> dict[str, Any]:
    """Iceberg's scan tasks of the data files at these locations; none for a file that is gone."""
    ask = script(jvm, _PLAN, "java.util.Map", **_SCAN)
    return dict(ask(table.newScan(), _set(jvm, locations)))


def commits_of(jvm: Any, table: Any) -> tuple[list[SnapshotLine], list[SnapshotLine]]:
    """The commits that made the table what it is, newest first, until one has expired; and all others."""
    told: str = script(jvm, _COMMITS, "java.lang.String", table=f"{ICEBERG}.Table")(table)
    ours: list[SnapshotLine] = []
    others: list[SnapshotLine] = []
    for line in told.split("\n")[:-1]:
        ancestor, id_, version, millis, operation, parent, recorded = line.split("\t")
        of = int(parent) if parent else None
        found = SnapshotLine(int(id_), int(version), int(millis), operation, of, recorded)
        (ours if ancestor == "true" else others).append(found)
    return ours, others


def files_of_commit(jvm: Any, table: Any, snapshot: int, files: Any) -> list[FileLine]:
    """The files that a commit added and removed, read from its own manifests; `files` gets those of rows."""
    types = {"snapshot": f"{ICEBERG}.Snapshot", "io": f"{ICEBERG}.io.FileIO", "files": "java.util.Map"}
    told = script(jvm, _COMMIT, "java.lang.String", **types)(table.snapshot(snapshot), table.io(), files)
    return _lines(told)


def files_between(jvm: Any, table: Any, before: int, after: int, files: Any) -> list[FileLine]:
    """The files that came and went from one snapshot to another, whatever commits lie between them."""
    scan = f"{ICEBERG}.TableScan"
    ask = script(jvm, _BETWEEN, "java.lang.String", before=scan, after=scan, files="java.util.Map")
    return _lines(ask(table.newScan().useSnapshot(before), table.newScan().useSnapshot(after), files))


def files_of_scan(jvm: Any, scan: Any, files: Any, locations: Iterable[str] | None = None) -> list[FileLine]:
    """The data files of a scan, or those at `locations`, each followed by what deletes rows of it."""
    ask = script(jvm, _STANDING, "java.lang.String", **_SCAN, files="java.util.Map")
    return _lines(ask(scan, None if locations is None else _set(jvm, locations), files))


def tasks_of(jvm: Any, table: Any, files: Any, groups: Mapping[str, Sequence[int] | None]) -> Any:
    """Scan tasks of files, of all their rows or of the groups that begin at some offsets, hidden rows too."""
    types = {"table": f"{ICEBERG}.Table", "files": "java.util.Map", "groups": "java.util.Map"}
    wanted = jvm.java.util.HashMap()
    for location, chosen in groups.items():
        wanted.put(location, None if chosen is None else _set(jvm, map(str, chosen)))
    return script(jvm, _TASKS, "java.util.List", **types)(table, files, wanted)


def stage_tasks(jvm: Any, table: Any, group: str, tasks: Any) -> tuple[Any, Any]:
    """Put scan tasks where Iceberg's reader finds them by a name, until they are forgotten.

    Gives the table as Spark has it, and the one by which Spark reads these tasks alone; None for the latter
    where the first reads them by the option `TASKS_OPTION`.
    """
    types = {"table": f"{ICEBERG}.Table", "group": "java.lang.String", "tasks": "java.util.List"}
    source = _STAGE_BY_OPTION if rewrites_by_options() else _STAGE
    ordinary, staged = script(jvm, source, "java.lang.Object", **types)(table, group, tasks)
    return ordinary, staged


def all_in_one(jvm: Any) -> Any:
    """A function by which all files of a kind are in one manifest."""
    return script(jvm, _CONSTANT, "java.util.function.Function")()


def forget_tasks(jvm: Any, table: Any, group: str) -> None:
    """The name is none any more."""
    types = {"table": f"{ICEBERG}.Table", "group": "java.lang.String"}
    script(jvm, _FORGET, "java.lang.Object", **types)(table, group)


def _set(jvm: Any, values: Iterable[object]) -> Any:
    found = jvm.java.util.HashSet()
    for value in values:
        found.add(value)
    return found


def _lines(told: str) -> list[FileLine]:
    found = []
    for line in told.split("\n")[:-1]:
        sign, content, format_, *numbers, hidden, row, location = line.split("\t")
        count, size, offset, length = map(int, numbers)
        first = int(row) if row else None
        found.append(FileLine(sign, content, format_, count, size, offset, length, hidden, location, first))
    return found
