"""What writes deletion vectors, in Java: for each file it would take two dozen questions."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

from backstory.stores.iceberg.jvm import ICEBERG, script

# What hides rows of a file already goes into its new vector. Equality deletes do not: they go on to hide rows
# of the files that are older than they.
_VECTORS: Final = f"""
java.util.Map marked = new java.util.HashMap();
String[] lines = told.split("\\n");
for (int place = 0; place < lines.length; place++) {{
  String[] parts = lines[place].split("\\t", 3);
  marked.put(parts[2], parts);
}}
final java.util.Map previous = new java.util.HashMap();
final {ICEBERG}.io.FileIO io = table.io();
java.util.function.Function opened = new java.util.function.Function() {{
  public Object apply(Object each) {{ return io.newInputFile((({ICEBERG}.DeleteFile) each).location()); }}
}};
{ICEBERG}.data.BaseDeleteLoader loader = new {ICEBERG}.data.BaseDeleteLoader(opened);
{ICEBERG}.deletes.BaseDVFileWriter writer = new {ICEBERG}.deletes.BaseDVFileWriter(
  {ICEBERG}.io.OutputFileFactory.builderFor(table, 0, 0L).format({ICEBERG}.FileFormat.PUFFIN).build(),
  new java.util.function.Function() {{ public Object apply(Object each) {{ return previous.get(each); }} }});
// The compiler knows no static methods of interfaces.
java.lang.reflect.Method deserialize = {ICEBERG}.deletes.PositionDeleteIndex.class.getMethod(
  "deserialize", new Class[] {{ byte[].class, {ICEBERG}.DeleteFile.class }});
int found = 0;
{ICEBERG}.io.CloseableIterable tasks = table.newScan().planFiles();
try {{
  for (java.util.Iterator each = tasks.iterator(); each.hasNext() && found < marked.size();) {{
    {ICEBERG}.FileScanTask task = ({ICEBERG}.FileScanTask) each.next();
    {ICEBERG}.DataFile file = ({ICEBERG}.DataFile) (Object) task.file();
    String[] parts = (String[]) marked.get(file.location());
    if (parts == null) continue;
    found++;
    java.util.List older = new java.util.ArrayList();
    for (java.util.Iterator more = task.deletes().iterator(); more.hasNext();) {{
      {ICEBERG}.DeleteFile hiding = ({ICEBERG}.DeleteFile) more.next();
      if (hiding.content() == {ICEBERG}.FileContent.POSITION_DELETES) older.add(hiding);
    }}
    if (!older.isEmpty()) previous.put(file.location(), loader.loadPositionDeletes(older, file.location()));
    byte[] framed = java.util.Base64.getDecoder().decode(parts[1]);
    {ICEBERG}.DeleteFile about = {ICEBERG}.FileMetadata.deleteFileBuilder(task.spec()).ofPositionDeletes()
      .withFormat("puffin").withPath(file.location()).withFileSizeInBytes((long) framed.length)
      .withPartition(file.partition()).withRecordCount(Long.parseLong(parts[0]))
      .withReferencedDataFile(file.location()).withContentOffset(0L)
      .withContentSizeInBytes((long) framed.length).build();
    {ICEBERG}.deletes.PositionDeleteIndex index =
      ({ICEBERG}.deletes.PositionDeleteIndex) deserialize.invoke(null, new Object[] {{ framed, about }});
    writer.delete(file.location(), index, task.spec(), file.partition());
  }}
}} finally {{ tasks.close(); }}
if (found < marked.size()) return null;
writer.close();
return new Object[] {{
  writer.result().deleteFiles().toArray(), writer.result().rewrittenDeleteFiles().toArray()
}};
"""


def hidden_by_vectors(jvm: Any, table: Any, framed: Mapping[str, tuple[int, bytes]]) -> Any:
    """New delete files and those that they take the place of; None if one of the data files is gone.

    `framed` are how many positions are hidden in each file, and these as a deletion vector.
    """
    lines = (f"{count}\t{b64encode(content).decode()}\t{file}" for file, (count, content) in framed.items())
    types = {"table": f"{ICEBERG}.Table", "told": "java.lang.String"}
    return script(jvm, _VECTORS, "java.lang.Object", **types)(table, "\n".join(lines))
