#!/usr/bin/env python3
"""A bridge from Heddle's feed of events to Kafka: each event once, in order for each run and each user.

    pip install confluent-kafka==2.16.1
    python3 kafka_bridge.py http://127.0.0.1:8080 localhost:9092

It follows `GET /v1/events` and writes what comes in transactions of Kafka. The cursor of the last event goes into the
same transaction, as a record of the topic `<topic>.cursor`: either both are there or neither is. After `kill -9`, or
wherever it is started again, it reads that record and goes on behind it. Readers with `isolation.level=read_committed`
see each event once.

The key of a record is the event's `uid`, or its `run`: what concerns one user, or one run, is in one partition and keeps
its order. A token, where one is needed, stands in HEDDLE_TOKEN. SIGTERM (or Ctrl-C) ends it between two transactions.

It ends with 0 when it was asked to, with 1 when somebody has to mend something (what, stands on stderr), and with 3 when
another bridge of the same name has taken its place.
"""

import argparse
import http.client
import json
import os
import queue
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

# A transaction takes what has come within this time, up to so many events or bytes.
LINGER_SECONDS = 0.2
BATCH_EVENTS = 1_000
BATCH_BYTES = 1024 * 1024
# What is read ahead: so many pieces of so many bytes.
CHUNK_BYTES = 64 * 1024
CHUNKS_AHEAD = 32
# An event longer than this cannot be; a feed that sends one is something else.
LINE_BYTES = 32 * 1024 * 1024
# A feed that was silent for so long is asked anew: its connection may be dead without this end knowing.
SILENCE_SECONDS = 60
# A connection that held for so long worked, whether anything came or not.
STEADY_SECONDS = 5
# Waits between tries double from the first to the last; each is cut by chance, so that many bridges do not come together.
FIRST_WAIT, LAST_WAIT = 0.2, 30.0
KAFKA_SECONDS = 10
# For so long it does not hear that it is to end.
COMMIT_SECONDS = 5


class Wrong(Exception):
    """Somebody has to mend something: trying again gives nothing."""


class Replaced(Exception):
    """Another bridge of this name is at work."""


def say(text):
    print(text, file=sys.stderr, flush=True)


class Patience:
    """Waits that grow until something has worked."""

    def __init__(self, stop):
        self.stop = stop
        self.seconds = FIRST_WAIT

    def worked(self):
        self.seconds = FIRST_WAIT

    def wait(self, at_least=0.0):
        self.stop.wait(max(at_least, self.seconds * random.uniform(0.5, 1.0)))
        self.seconds = min(self.seconds * 2, LAST_WAIT)


class Feed(threading.Thread):
    """One connection to the feed, read ahead within bounds. It ends with its connection."""

    def __init__(self, address, headers):
        super().__init__(daemon=True)
        self.request = urllib.request.Request(address, headers=headers)
        self.chunks = queue.Queue(CHUNKS_AHEAD)
        self.closed = threading.Event()
        self.start()

    def put(self, what):
        while not self.closed.is_set():
            try:
                return self.chunks.put(what, timeout=0.5)
            except queue.Full:
                pass

    def run(self):
        try:
            with urllib.request.urlopen(self.request, timeout=SILENCE_SECONDS) as answer:
                while not self.closed.is_set():
                    chunk = answer.read1(CHUNK_BYTES)
                    if not chunk:
                        break
                    self.put(chunk)
            self.put(None)
        except TimeoutError:
            self.put(None)
        except (OSError, http.client.HTTPException) as error:
            self.put(error)

    def take(self, seconds):
        """The next piece; nothing if none came in time; `None` at the end of the connection."""
        try:
            what = self.chunks.get(timeout=seconds)
        except queue.Empty:
            return b""
        if isinstance(what, Exception):
            raise what
        return what


class Kafka:
    """Where events go, and the cursor with them."""

    def __init__(self, options, config, stop):
        self.topic = options.topic
        self.cursor_topic = f"{options.topic}.cursor"
        self.name = options.name
        self.config = {
            "bootstrap.servers": options.brokers,
            "error_cb": self.trouble,
            "log_level": 2,  # what the library logs of each broken connection, `trouble` says once in a while
            "enable.metrics.push": False,  # the broker is told nothing that it did not need, and the log stays short
            **config,
        }
        self.stop = stop
        self.patience = Patience(stop)
        self.refused = None
        self.last_trouble = -10.0
        self.clients = []

    def trouble(self, error):
        # The library tells of every broken connection, and mends it by itself; once in five seconds is enough to read.
        if time.monotonic() - self.last_trouble > 5:
            self.last_trouble = time.monotonic()
            say(f"Kafka: {error.str()}")

    def until_done(self, what, work):
        """Does something that may be tried again for as long as Kafka is away."""
        while True:
            self.go_on()
            try:
                done = work()
                self.patience.worked()
                return done
            except KafkaException as exception:
                error = exception.args[0]
                for client in self.clients:
                    client.poll(0)  # calls `trouble`
                self.fail_if_final(error, what)
                if not (error.retriable() or error.code() in PASSING):
                    raise Wrong(f"{what}: {error.str()}") from None
                say(f"{what}: {error.str()}; trying again")
                self.patience.wait()

    def go_on(self):
        """Ends what is tried again and again when it is to end: what is not committed comes again the next time."""
        if self.stop.is_set():
            raise KeyboardInterrupt

    def fail_if_final(self, error, what):
        if error.code() in REPLACED:
            raise Replaced(f"another bridge with the name {self.name!r} has begun; this one ends")
        if error.fatal():
            raise Wrong(f"{what}: {error.str()}")

    def open(self):
        """Makes the topics if they are missing, takes the name, and answers where to go on."""
        admin = AdminClient(self.config)
        self.clients.append(admin)
        topics = self.until_done("looking for topics", lambda: admin.list_topics(timeout=KAFKA_SECONDS)).topics
        if self.topic not in topics:
            self.make(admin, NewTopic(self.topic))
        if self.cursor_topic not in topics:
            self.make(admin, NewTopic(self.cursor_topic, 1, config={"cleanup.policy": "compact"}))
        self.producer = Producer(
            {
                "partitioner": "murmur2_random",  # the partitions that Java's clients give to the same keys
                "compression.type": "lz4",
                "linger.ms": 5,
                **self.config,
                "transactional.id": f"heddle-bridge-{self.name}",
            }
        )
        self.clients.append(self.producer)
        # From here on a former bridge of this name writes nothing more, and what it had not committed is gone: so the
        # cursor that is read next is the last one for good.
        self.until_done("beginning transactions", lambda: self.producer.init_transactions(KAFKA_SECONDS))
        return self.until_done("reading the cursor", self.last_cursor)

    def make(self, admin, topic):
        def create():
            for future in admin.create_topics([topic], request_timeout=KAFKA_SECONDS).values():
                try:
                    future.result()
                except KafkaException as exception:
                    if exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise

        self.until_done(f"making the topic {topic.topic}", create)
        say(f"made the topic {topic.topic}")

    def last_cursor(self):
        """The last committed record of this name. It stands near the end, so the end is read first."""
        consumer = Consumer(
            {
                **self.config,
                "group.id": f"heddle-bridge-{self.name}",  # never joined: the library wants one
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )
        try:
            partition = TopicPartition(self.cursor_topic, 0)
            low, high = consumer.get_watermark_offsets(partition, timeout=KAFKA_SECONDS)
            back = 100
            while True:
                partition.offset = max(low, high - back)
                found = self.last_in(consumer, partition)
                if found is not None or partition.offset == low:
                    return found
                back *= 10
        finally:
            consumer.close()

    def last_in(self, consumer, partition):
        found = None
        consumer.assign([partition])
        until = time.monotonic() + KAFKA_SECONDS
        while True:
            record = consumer.poll(1)
            if record is None:
                if time.monotonic() > until:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the cursor's topic gives no answer"))
                continue
            until = time.monotonic() + KAFKA_SECONDS
            if record.error():
                if record.error().code() == KafkaError._PARTITION_EOF:
                    return found
                raise KafkaException(record.error())
            if record.key() == self.name.encode():
                found = record.value().decode()

    def delivered(self, error, _record):
        # Those that were only purged by the abort are not the cause.
        if error is not None and self.refused is None and error.code() != KafkaError._PURGE_QUEUE:
            self.refused = error

    def produce(self, topic, key, value):
        while True:
            try:
                return self.producer.produce(topic, value, key, on_delivery=self.delivered)
            except BufferError:
                self.go_on()
                self.producer.poll(0.1)

    def write(self, batch, cursor):
        """Events and cursor, both or neither. What an error undoes is written again."""
        while True:
            try:
                self.refused = None
                self.producer.begin_transaction()
                for key, line in batch:
                    self.produce(self.topic, key, line)
                self.produce(self.cursor_topic, self.name.encode(), cursor.encode())
                self.commit()
                return self.patience.worked()
            except KafkaException as exception:
                error = exception.args[0]
                self.fail_if_final(error, "writing")
                cause = self.refused or error
                if error.code() == KafkaError.MSG_SIZE_TOO_LARGE or cause.code() in FOR_SOMEBODY:
                    raise Wrong(f"Kafka does not take what is written: {cause.str()}") from None
                say(f"writing: {cause.str()}; trying again")
                self.until_done("undoing a transaction", lambda: self.producer.abort_transaction(KAFKA_SECONDS))
                self.patience.wait()

    def commit(self):
        while True:
            try:
                # A repeat after a timeout asks for the same commit: it is not made twice.
                return self.producer.commit_transaction(COMMIT_SECONDS)
            except KafkaException as exception:
                error = exception.args[0]
                if not error.retriable() or error.txn_requires_abort():
                    raise
                self.go_on()
                say(f"committing: {error.str()}; asking again")


REPLACED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
PASSING = (
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._WAIT_COORD,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # one that was just made
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
)
FOR_SOMEBODY = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
)


class Bridge:
    def __init__(self, options, config):
        self.stop = threading.Event()
        self.options = options
        self.kafka = Kafka(options, config, self.stop)
        self.headers = {"accept": "application/x-ndjson"}
        if token := os.environ.get("HEDDLE_TOKEN"):
            self.headers["authorization"] = f"Bearer {token}"

    def address(self, after):
        query = {"follow": "true"}
        if after:
            query["after"] = after
        if self.options.kinds:
            query["kinds"] = self.options.kinds
        return f"{self.options.heddle.rstrip('/')}/v1/events?{urllib.parse.urlencode(query)}"

    def run(self):
        after = self.kafka.open() or self.options.after
        say(f"going on behind {after}" if after else "beginning with the oldest event that is kept")
        patience = Patience(self.stop)
        while not self.stop.is_set():
            feed = Feed(self.address(after), self.headers)
            since, pause = time.monotonic(), 0.0
            try:
                for after in self.copied(feed, after):
                    patience.worked()
                # The node stops, or was silent: another one, or the same, goes on.
            except urllib.error.HTTPError as error:
                pause = self.refusal(error)
            except (OSError, http.client.HTTPException) as error:
                say(f"the feed broke off: {error or type(error).__name__}; asking again")
            finally:
                feed.closed.set()
            if time.monotonic() - since > STEADY_SECONDS:
                patience.worked()
            if not self.stop.is_set():
                patience.wait(pause)

    def refusal(self, error):
        """How long to wait before the next try, if there is to be one."""
        detail = error.read(10_000).decode(errors="replace")
        try:
            detail = json.loads(detail)["detail"]
        except (ValueError, KeyError, TypeError):
            pass
        if error.code < 500 and error.code not in (408, 429):
            raise Wrong(f"Heddle answers {error.code}: {detail}")
        say(f"Heddle answers {error.code}: {detail}; asking again")
        after = error.headers.get("retry-after", "")
        return min(float(after), 300.0) if after.isdigit() else 0.0

    def copied(self, feed, after):
        """Copies what comes until the connection ends; gives the cursor of each transaction."""
        rest, batch, size, since = bytearray(), [], 0, 0.0
        while not self.stop.is_set():
            left = since + LINGER_SECONDS - time.monotonic() if batch else 0.5
            ended, broken = False, None
            try:
                chunk = feed.take(left) if left > 0 else b""
                ended = chunk is None
            except Exception as error:
                # What came before is whole, and is written first.
                broken, chunk = error, b""
            rest += chunk or b""
            if len(rest) > LINE_BYTES:
                raise Wrong(f"the feed sent a line of more than {LINE_BYTES} bytes: is {self.options.heddle} Heddle?")
            start = 0
            while (end := rest.find(b"\n", start)) >= 0:
                line = bytes(rest[start:end])
                start = end + 1
                if not batch:
                    since = time.monotonic()
                key, after = self.read(line)
                batch.append((key, line))
                size += len(line)
                if len(batch) >= BATCH_EVENTS or size >= BATCH_BYTES:
                    self.kafka.write(batch, after)
                    batch, size = [], 0
                    yield after
            del rest[:start]  # half a line at the end of a connection is dropped: it comes again
            if batch and (ended or broken or time.monotonic() >= since + LINGER_SECONDS):
                self.kafka.write(batch, after)
                batch, size = [], 0
                yield after
            if broken:
                raise broken
            if ended:
                return

    def read(self, line):
        try:
            event = json.loads(line)
            return (event.get("uid") or event.get("run") or "").encode(), event["cursor"]
        except (ValueError, KeyError, AttributeError):
            raise Wrong(f"no event: {line[:200]!r}: is {self.options.heddle} Heddle?") from None


def config_of(path):
    """Settings of librdkafka, `name=value` a line, such as security.protocol and sasl.mechanisms."""
    config = {}
    if path:
        with open(path, encoding="utf-8") as file:
            for line in map(str.strip, file):
                if line and not line.startswith("#"):
                    name, _, value = line.partition("=")
                    config[name.strip()] = value.strip()
    return config


def main():
    parser = argparse.ArgumentParser(description="Copies Heddle's feed of events to Kafka, each event once.")
    parser.add_argument("heddle", help="address of Heddle, such as http://127.0.0.1:8080")
    parser.add_argument("brokers", help="Kafka's bootstrap servers, such as localhost:9092")
    parser.add_argument("--topic", default="heddle.events", help="where events go (default %(default)s)")
    parser.add_argument("--name", default="heddle", help="of this bridge; one per feed and topic (default %(default)s)")
    parser.add_argument("--kinds", help="only these kinds of events, such as run.*,assignment.completed")
    parser.add_argument("--after", help="the cursor to begin behind if there is none in Kafka yet")
    parser.add_argument("--kafka-config", help="a file of further settings of librdkafka, name=value a line")
    options = parser.parse_args()
    try:
        bridge = Bridge(options, config_of(options.kafka_config))
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda *_: bridge.stop.set())
        bridge.run()
    except KeyboardInterrupt:
        pass
    except Replaced as error:
        say(str(error))
        return 3
    except (Wrong, KafkaException, OSError) as error:
        say(f"error: {error}")
        return 1
    say("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
