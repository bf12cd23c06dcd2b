"""A REST catalog: Iceberg's own server, with which its project tests clients.

It is made for tests, with one small jar and its dependencies. Another server (Nessie's, in one jar of 200 MB)
would have its own rules about conflicting commits.
"""

import os
import re
import subprocess
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from ports import free_ports

from backstory.spark.jars import SQLITE_JDBC

ICEBERG, JETTY = "1.11.0", "12.1.10"
KEPT = Path("~/.cache/backstory/rest-catalog").expanduser()
ARTIFACTS = (
    *(
        f"org/apache/iceberg/{name}/{ICEBERG}/{name}-{ICEBERG}{kind}.jar"
        for name, kind in (
            ("iceberg-open-api", "-test-fixtures"),
            ("iceberg-core", "-tests"),
            ("iceberg-core", ""),
            ("iceberg-api", ""),
            ("iceberg-common", ""),
            ("iceberg-bundled-guava", ""),
        )
    ),
    *(
        f"org/eclipse/jetty/{folder}{name}/{JETTY}/{name}-{JETTY}.jar"
        for folder, name in (
            ("", "jetty-server"),
            ("", "jetty-http"),
            ("", "jetty-io"),
            ("", "jetty-util"),
            ("", "jetty-session"),
            ("", "jetty-security"),
            ("ee10/", "jetty-ee10-servlet"),
            ("compression/", "jetty-compression-server"),
            ("compression/", "jetty-compression-common"),
            ("compression/", "jetty-compression-gzip"),
        )
    ),
    "jakarta/servlet/jakarta.servlet-api/6.0.0/jakarta.servlet-api-6.0.0.jar",
    "org/apache/httpcomponents/core5/httpcore5/5.3.6/httpcore5-5.3.6.jar",
    "com/github/ben-manes/caffeine/caffeine/2.9.3/caffeine-2.9.3.jar",
    f"org/xerial/sqlite-jdbc/{SQLITE_JDBC}/sqlite-jdbc-{SQLITE_JDBC}.jar",
)
# The jars from Spark, so that no other Iceberg and no other Jetty is among them.
OF_SPARK = ("hadoop-client-*", "jackson-*", "avro-1*", "slf4j-api*", "log4j-*", "RoaringBitmap*")


def jars() -> list[Path]:
    """The server's jars, some 27 MB in total, fetched once."""
    KEPT.mkdir(parents=True, exist_ok=True)
    return [_kept(artifact) for artifact in ARTIFACTS]


def _central() -> str:
    """The repository in which Spark's resolver looks for jars."""
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    with zipfile.ZipFile(ivy) as classes:
        resolver = classes.read("org/apache/ivy/plugins/resolver/IBiblioResolver.class")
    (address,) = set(re.findall(rb"https://[\w./-]+/maven2/", resolver))
    return address.decode()


def _kept(artifact: str) -> Path:
    jar = KEPT / artifact.rpartition("/")[2]
    if not zipfile.is_zipfile(jar):
        part = jar.with_suffix(f".{os.getpid()}")
        with urllib.request.urlopen(_central() + artifact, timeout=120) as answer:
            part.write_bytes(answer.read())
        part.rename(jar)
    return jar


@contextmanager
def serving_rest(folder: Path) -> Iterator[dict[str, str]]:
    """The settings of a catalog that a separate server serves from this folder."""
    (port,) = free_ports()
    own = Path(pyspark.__file__).parent / "jars"
    path = [*jars(), *(jar for name in OF_SPARK for jar in sorted(own.glob(f"{name}.jar")))]
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += ["-cp", ":".join(map(str, path)), "org.apache.iceberg.rest.RESTCatalogServer"]
    warehouse = folder / "warehouse"
    # A writer waits for another one. It would fail with the server's default database in memory.
    uri = f"jdbc:sqlite:{folder}/rest.db?busy_timeout=60000"
    variables = {"CATALOG_WAREHOUSE": str(warehouse), "CATALOG_REST_PORT": str(port), "CATALOG_URI": uri}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=log)
    try:
        _await(server, f"http://127.0.0.1:{port}/v1/config", folder / "server.log")
        yield {"type": "rest", "uri": f"http://127.0.0.1:{port}", "warehouse": str(warehouse)}
    finally:
        server.kill()
        server.wait()


def _await(server: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    for _ in range(3000):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())
