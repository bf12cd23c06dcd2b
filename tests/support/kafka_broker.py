"""A real broker: Kafka as one process, which is its own controller (KRaft)."""

import base64
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import java
from maven import jars
from ports import free_ports
from serving import within

VERSION = "4.1.1"
OPTIONS = ("-Xmx256m", *java.SHORT.split())
SECONDS = 120
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{own}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{own}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/log
num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


@contextmanager
def kafka(folder: Path) -> Iterator[str]:
    """The address of a broker that stores its topics, with two partitions each, in a folder."""
    port, own = free_ports(2)
    settings, log = folder / "server.properties", folder / "broker.log"
    settings.write_text(SETTINGS.format(port=port, own=own, folder=folder))
    words = ["java", *OPTIONS, "-cp", f"{jars('kafka', f'org.apache.kafka:kafka_2.13:{VERSION}')}/*"]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    format_ = [*words, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", settings]
    subprocess.run(format_, check=True, capture_output=True)
    with log.open("w") as written:
        broker = subprocess.Popen([*words, "kafka.Kafka", settings], stdout=written, stderr=written)
        try:
            ready = within(SECONDS, lambda: listens(port) or broker.poll() is not None, 0.1)
            assert ready, log.read_text()
            assert broker.poll() is None, log.read_text()
            yield f"127.0.0.1:{port}"
        finally:
            broker.kill()
            broker.wait()


def listens(port: int) -> bool:
    """Whether a program listens on a port of this machine."""
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))
