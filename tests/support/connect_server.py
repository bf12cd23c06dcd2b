"""A server of Spark Connect, as pyspark includes it, with Iceberg catalogs."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import java
import pyspark
from ports import free_ports

from backstory.spark.jars import jar_properties
from backstory.stores.iceberg.jvm import EXTENSIONS, SPARK_CATALOG

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def serving_connect(
    folder: Path, catalogs: Mapping[str, Mapping[str, str]], memory: str = "900m"
) -> Iterator[str]:
    """The address of a server with these catalogs, each given by the settings below its name."""
    (port,) = free_ports()
    settings = {
        **jar_properties({}),
        **java.PLANS,
        **java.UNADAPTED,
        "spark.connect.grpc.binding.port": str(port),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.extensions": EXTENSIONS,
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
    }
    for name, own in catalogs.items():
        settings[f"spark.sql.catalog.{name}"] = SPARK_CATALOG
        settings |= {f"spark.sql.catalog.{name}.{key}": value for key, value in own.items()}
    home = Path(pyspark.__file__).parent
    command = [home / "bin" / "spark-submit", "--class", SERVER, "--master", "local[2]"]
    command += ["--driver-memory", memory]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)}
    env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": java.OPTIONS}
    with (folder / "connect.log").open("wb") as log:
        server = subprocess.Popen([*command, "spark-internal"], cwd=folder, env=env, stdout=log, stderr=log)
    try:
        _await(server, port, folder / "connect.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _await(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    for _ in range(1800):
        assert server.poll() is None, log.read_text()[-4000:]
        try:
            with socket.create_connection(("127.0.0.1", port), 5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text()[-4000:])
