"""A topic of changes, and the stream that keeps their history. As a program it reports its progress.

It is run as `python kafka_stream.py WAREHOUSE CONFIG BROKER TOPIC CHECKPOINT INTO`, and tests kill it.
"""

import random
import sys
import time
from datetime import timedelta

from maven import jars
from remembering import ZERO

from backstory.spark.versions import is_before_4

CHANGE = "id BIGINT, name STRING, city STRING, at TIMESTAMP, seq BIGINT, op STRING"
FEED = {
    "key": "id",
    "sequence_by": ["at", "seq"],
    "apply_as_deletes": "op = 'D'",
    "drop": ["op"],
}
MOST = 12  # messages in a batch
PAUSE = 0.3  # seconds between a commit and its record in the checkpoint, when a program may be killed
# Before 4.1.3, no stream restarts if its program was killed amid a batch (SPARK-57438).
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.1",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
# The connector has the version of its Spark; the other jars do not depend on it.
CONNECTOR_3_5 = (
    "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.12:3.5.7",
    *CONNECTOR[2:],
)


def classes():
    """The class path of the connector, which is fetched once."""
    if is_before_4():
        return f"{jars('kafka-connector-3.5', *CONNECTOR_3_5, alone=True)}/*"
    return f"{jars('kafka-connector', *CONNECTOR, alone=True)}/*"


def class_path():
    """The variable that puts the connector after Spark's jars.

    Before them, the archive of classes is not used.
    """
    return "SPARK_DIST_CLASSPATH", classes()


def changes(count, records, seed):
    """Changes of some records, including late ones and deletes.

    Each change has its own place in the order.
    """
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        at = ZERO + timedelta(hours=max(0, number - chance.choice([0, 0, 0, 40])))
        op = chance.choice("UUUUUD")
        values = (None, None) if op == "D" else (f"n{chance.randrange(4)}", f"c{chance.randrange(3)}")
        rows.append((chance.randrange(records), *values, at, number, op))
    return rows


def send(spark, broker, topic, rows):
    """Send messages with these changes. A string is sent unchanged."""
    texts = [(str(row[0]), row) for row in rows if isinstance(row, str)]
    if texts:
        frame = spark.createDataFrame(texts, "key STRING, value STRING")
    else:
        frame = spark.createDataFrame(rows, CHANGE).selectExpr(
            "CAST(id AS STRING) AS key", "to_json(struct(*)) AS value"
        )
    places = {"kafka.bootstrap.servers": broker, "topic": topic}
    frame.coalesce(1).write.format("kafka").options(**places).save()


def start(warehouse, broker, topic, checkpoint, into, report=lambda *_: None, most=MOST):
    """A query that keeps the history of a topic. `report` is called for each batch."""
    from pyspark.sql.functions import col, from_json

    places = {"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
    messages = warehouse.spark.readStream.format("kafka").options(**places)
    value = from_json(col("value").cast("string"), CHANGE)
    rows = messages.option("maxOffsetsPerTrigger", most).load().select(value.alias("c")).select("c.*")
    write = warehouse.apply_batch(into=into, **FEED)

    def write_batch(frame, number):
        report("begins", number)
        write(frame, number)
        report("written", number)

    writer = rows.writeStream.foreachBatch(write_batch).option("checkpointLocation", str(checkpoint))
    return writer.start()


def finish(query):
    """End a query once it has all messages."""
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def main(folder, config, broker, topic, checkpoint, into):
    import backstory

    def say(word, number):
        sys.stdout.write(f"{word} {number}\n")
        sys.stdout.flush()
        if word == "written":
            time.sleep(PAUSE)

    with backstory.open(folder, config=config) as warehouse:
        finish(start(warehouse, broker, topic, checkpoint, into, say))


if __name__ == "__main__":
    main(*sys.argv[1:])
