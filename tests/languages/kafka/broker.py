"""A small strict Kafka: one broker, in memory, with the rules of transactions that a bridge rests on.

It speaks Kafka's protocol (the versions that librdkafka still speaks and whose encoding is plain) over TCP to the real
client library. It is no Kafka: it is what of Kafka the tests need, kept strictly: sequence numbers, epochs that fence
former producers, partitions that have to be added before they are written to, control records, the last stable offset,
and lists of aborted transactions for readers with read_committed. librdkafka's own mock cluster takes transactions but
shows aborted records to such readers and fences nobody, so nothing about them can be tested there.

Of transactions: KIP-98, https://cwiki.apache.org/confluence/display/KAFKA/KIP-98; of the messages:
https://kafka.apache.org/protocol.
"""

import asyncio
import struct
import threading

NONE, UNKNOWN_TOPIC, NOT_COORDINATOR, OUT_OF_ORDER, DUPLICATE = 0, 3, 16, 45, 46
INVALID_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID, UNSUPPORTED = 47, 48, 49, 35
TOPIC_EXISTS, OFFSET_OUT_OF_RANGE, TOO_LARGE = 36, 1, 10
MAX_BATCH = 1024 * 1024

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR, VERSIONS = 0, 1, 2, 3, 10, 18
CREATE_TOPICS, INIT_PRODUCER, ADD_PARTITIONS, END_TXN = 19, 22, 24, 26
SPOKEN = {
    PRODUCE: (0, 3),
    FETCH: (0, 4),
    LIST_OFFSETS: (0, 2),
    METADATA: (0, 4),
    FIND_COORDINATOR: (0, 2),
    VERSIONS: (0, 0),
    CREATE_TOPICS: (0, 4),
    INIT_PRODUCER: (0, 1),
    ADD_PARTITIONS: (0, 0),
    25: (0, 0),
    END_TXN: (0, 1),
    28: (0, 0),
}

CRC = []
for value in range(256):
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    CRC.append(value)


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value = CRC[(value ^ byte) & 255] ^ value >> 8
    return value ^ 0xFFFFFFFF


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        value = struct.unpack_from(">" + form, self.data, self.at)[0]
        self.at += struct.calcsize(">" + form)
        return value

    def bytes(self, length):
        self.at += length
        return self.data[self.at - length : self.at]

    def text(self):
        length = self.take("h")
        return None if length < 0 else self.bytes(length).decode()

    def blob(self):
        length = self.take("i")
        return None if length < 0 else self.bytes(length)

    def array(self, one):
        return [one() for _ in range(max(self.take("i"), 0))]


def text(value):
    if value is None:
        return struct.pack(">h", -1)
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def blob(value):
    return struct.pack(">i", len(value)) + value


def array(items):
    return struct.pack(">i", len(items)) + b"".join(items)


def varint(number):
    number = number << 1 ^ number >> 63
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def marker(producer, epoch, committed):
    """The control batch that ends a transaction in a partition."""
    key, value = struct.pack(">hh", 0, int(committed)), struct.pack(">hi", 0, 0)
    record = b"\0" + varint(0) + varint(0) + varint(len(key)) + key + varint(len(value)) + value + varint(0)
    record = varint(len(record)) + record
    rest = struct.pack(">hiqqqhii", 0x30, 0, 0, 0, producer, epoch, -1, 1) + record
    return struct.pack(">qiibI", 0, len(rest) + 9, 0, 2, crc32c(rest)) + rest


class Partition:
    def __init__(self):
        self.batches = []  # (first offset, last offset, bytes)
        self.end = 0
        self.sequences = {}  # producer: (epoch, next sequence)
        self.open = {}  # producer: first offset of its transaction
        self.aborted = []  # (producer, first offset, offset of the marker)

    @property
    def stable(self):
        return min(self.open.values(), default=self.end)

    def append(self, data, last_delta):
        self.batches.append((self.end, self.end + last_delta, struct.pack(">q", self.end) + data[8:]))
        self.end += last_delta + 1

    def finish(self, producer, epoch, committed):
        first = self.open.pop(producer, None)
        if first is None:
            return
        if not committed:
            self.aborted.append((producer, first, self.end))
        self.append(marker(producer, epoch, committed), 0)


class Transactional:
    def __init__(self, producer):
        self.producer, self.epoch, self.partitions = producer, 0, set()


class Broker:
    """Serves on a port of its own, in a thread of its own."""

    def __init__(self, partitions=4):
        self.partitions = partitions
        self.topics, self.named, self.producers = {}, {}, 1000
        # What the tests do to it: a commit that is held before or after it counts; how many were aborted.
        self.hold, self.held, self.release = None, threading.Event(), threading.Event()
        self.aborted = self.committed = 0
        self.connections = set()
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()

        def serve():
            asyncio.set_event_loop(self.loop)
            self.server = self.loop.run_until_complete(asyncio.start_server(self.connection, "127.0.0.1", 0))
            self.port = self.server.sockets[0].getsockname()[1]
            ready.set()
            self.loop.run_forever()

        threading.Thread(target=serve, daemon=True).start()
        ready.wait()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def cut(self):
        """Closes all connections, as a broker that restarts does."""
        self.loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in self.connections])

    def hold_next_commit(self, when):
        self.held.clear()
        self.release.clear()
        self.hold = when

    async def connection(self, reader, writer):
        self.connections.add(writer)
        try:
            while True:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                answer = await self.answer(Reader(await reader.readexactly(size)))
                if answer is None:
                    return
                writer.write(blob(answer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections.discard(writer)
            writer.close()

    async def answer(self, request):
        api, version, correlation = request.take("h"), request.take("h"), request.take("i")
        request.text()
        head = struct.pack(">i", correlation)
        if api == VERSIONS:
            error = NONE if version == 0 else UNSUPPORTED
            spoken = [struct.pack(">hhh", name, *between) for name, between in SPOKEN.items()]
            return head + struct.pack(">h", error) + array(spoken)
        assert api in SPOKEN and SPOKEN[api][0] <= version <= SPOKEN[api][1], (api, version)
        body = await getattr(self, HANDLERS[api])(request, version)
        return None if body is None else head + body

    async def metadata(self, request, version):
        assert version == 4, version
        count = request.take("i")
        names = list(self.topics) if count < 0 else [request.text() for _ in range(count)]
        topics = []
        for name in names:
            partitions = self.topics.get(name)
            each = [
                struct.pack(">hii", NONE, index, 1) + array([struct.pack(">i", 1)]) * 2
                for index in range(len(partitions or []))
            ]
            error = UNKNOWN_TOPIC if partitions is None else NONE
            topics.append(struct.pack(">h", error) + text(name) + b"\0" + array(each))
        broker = struct.pack(">i", 1) + text("127.0.0.1") + struct.pack(">i", self.port) + text(None)
        return struct.pack(">i", 0) + array([broker]) + text("test") + struct.pack(">i", 1) + array(topics)

    async def create_topics(self, request, version):
        def topic():
            name, partitions, _ = request.text(), request.take("i"), request.take("h")
            request.array(lambda: (request.take("i"), request.array(lambda: request.take("i"))))
            request.array(lambda: (request.text(), request.text()))
            if name in self.topics:
                return text(name) + struct.pack(">h", TOPIC_EXISTS) + text(None)
            count = self.partitions if partitions < 0 else partitions
            self.topics[name] = [Partition() for _ in range(count)]
            return text(name) + struct.pack(">h", NONE) + text(None)

        return struct.pack(">i", 0) + array(request.array(topic))

    async def find_coordinator(self, request, version):
        return struct.pack(">ih", 0, NONE) + text(None) + struct.pack(">i", 1) + text("127.0.0.1") + struct.pack(">i", self.port)

    async def init_producer(self, request, version):
        name = request.text()
        if name is None:
            self.producers += 1
            return struct.pack(">ihqh", 0, NONE, self.producers, 0)
        known = self.named.get(name)
        if known is None:
            self.producers += 1
            known = self.named[name] = Transactional(self.producers)
        else:
            # The former one of this name is fenced from here on, and what it had open is aborted.
            known.epoch += 1
            self.finish(known, committed=False)
        return struct.pack(">ihqh", 0, NONE, known.producer, known.epoch)

    def check(self, name, producer, epoch):
        known = self.named.get(name)
        if known is None or known.producer != producer:
            return None, INVALID_PRODUCER_ID
        return (known, NONE) if known.epoch == epoch else (None, INVALID_EPOCH)

    def finish(self, known, committed):
        if known.partitions:
            self.committed, self.aborted = self.committed + committed, self.aborted + (not committed)
        for partition in known.partitions:
            partition.finish(known.producer, known.epoch, committed)
        known.partitions = set()

    async def add_partitions(self, request, version):
        known, error = self.check(request.text(), request.take("q"), request.take("h"))

        def topic():
            name = request.text()

            def one():
                index = request.take("i")
                if error == NONE:
                    known.partitions.add(self.topics[name][index])
                return struct.pack(">ih", index, error)

            return text(name) + array(request.array(one))

        return struct.pack(">i", 0) + array(request.array(topic))

    async def end_txn(self, request, version):
        known, error = self.check(request.text(), request.take("q"), request.take("h"))
        committed = bool(request.take("b"))
        hold = self.hold if committed and error == NONE else None
        if hold == "before":
            # It has not arrived: the caller waits, and is killed meanwhile.
            await self.wait_for_release()
            return None
        if error == NONE:
            self.finish(known, committed)
        if hold == "after":
            await self.wait_for_release()
            return None
        return struct.pack(">ih", 0, error)

    async def wait_for_release(self):
        self.hold = None
        self.held.set()
        await self.loop.run_in_executor(None, self.release.wait)

    async def produce(self, request, version):
        name, acks, _ = request.text(), request.take("h"), request.take("i")
        assert version == 3 and acks == -1, (version, acks)

        def topic():
            topic_name = request.text()

            def one():
                index, data = request.take("i"), request.blob()
                error, first = self.append(name, topic_name, index, data)
                return struct.pack(">ihqq", index, error, first, -1)

            return text(topic_name) + array(request.array(one))

        return array(request.array(topic)) + struct.pack(">i", 0)

    def append(self, name, topic, index, data):
        if topic not in self.topics:
            return UNKNOWN_TOPIC, -1
        if len(data) > MAX_BATCH:
            return TOO_LARGE, -1
        partition = self.topics[topic][index]
        length, _, magic, crc, attributes, last_delta = struct.unpack_from(">iibIhi", data, 8)
        producer, epoch, sequence = struct.unpack_from(">qhi", data, 43)
        assert magic == 2 and length == len(data) - 12 and crc == crc32c(data[21:]), "a broken batch"
        if attributes & 0x10:
            known, error = self.check(name, producer, epoch)
            if error:
                return error, -1
            if partition not in known.partitions:
                return INVALID_TXN_STATE, -1
            partition.open.setdefault(producer, partition.end)
        if producer >= 0:
            last_epoch, expected = partition.sequences.get(producer, (epoch, 0))
            if epoch > last_epoch:
                expected = 0
            if sequence < expected:
                return DUPLICATE, -1
            if sequence > expected:
                return OUT_OF_ORDER, -1
            partition.sequences[producer] = (epoch, sequence + last_delta + 1)
        first = partition.end
        partition.append(data, last_delta)
        return NONE, first

    async def list_offsets(self, request, version):
        assert version == 2, version
        request.take("i")
        committed_only = request.take("b")

        def topic():
            name = request.text()

            def one():
                index, moment = request.take("i"), request.take("q")
                partition = self.topics[name][index]
                newest = partition.stable if committed_only else partition.end
                return struct.pack(">ihqq", index, NONE, -1, 0 if moment == -2 else newest)

            return text(name) + array(request.array(one))

        return struct.pack(">i", 0) + array(request.array(topic))

    async def fetch(self, request, version):
        assert version == 4, version
        _, wait, _, _, committed_only = (request.take(form) for form in "iiiib")
        asked = request.array(
            lambda: (request.text(), request.array(lambda: (request.take("i"), request.take("q"), request.take("i"))))
        )
        until = self.loop.time() + wait / 1000
        while True:
            found, topics = False, []
            for name, wanted in asked:
                each = []
                for index, offset, _ in wanted:
                    partition = self.topics[name][index]
                    end = partition.stable if committed_only else partition.end
                    data = b"".join(batch for first, last, batch in partition.batches if last >= offset and last < end)
                    found = found or bool(data)
                    aborted = [
                        struct.pack(">qq", producer, first)
                        for producer, first, ended in partition.aborted
                        if ended >= offset and first < end
                    ]
                    error = OFFSET_OUT_OF_RANGE if offset > partition.end else NONE
                    head = struct.pack(">ihqq", index, error, partition.end, partition.stable)
                    each.append(head + (array(aborted) if committed_only else struct.pack(">i", -1)) + blob(data))
                topics.append(text(name) + array(each))
            if found or self.loop.time() >= until:
                return struct.pack(">i", 0) + array(topics)
            await asyncio.sleep(0.01)


HANDLERS = {
    PRODUCE: "produce",
    FETCH: "fetch",
    LIST_OFFSETS: "list_offsets",
    METADATA: "metadata",
    FIND_COORDINATOR: "find_coordinator",
    CREATE_TOPICS: "create_topics",
    INIT_PRODUCER: "init_producer",
    ADD_PARTITIONS: "add_partitions",
    END_TXN: "end_txn",
}
