#!/usr/bin/env python3
"""The bridge to Kafka (runner/client/examples/kafka_bridge.py), as people run it, against a node and a strict broker.

    python3 test_bridge.py http://127.0.0.1:8080

It is killed before a commit counts and after it, its feed is cut in the middle of a line, Kafka closes its connections,
and another bridge takes its name. Throughout, readers with read_committed find each event of the feed once, and those of a
user in the feed's order. The node is to have nothing else to do. `tests/languages/main.rs` starts this.
"""

import atexit
import collections
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

sys.path.insert(0, str(Path(__file__).parent))
from broker import Broker  # noqa: E402

BRIDGE = Path(__file__).parents[3] / "runner/client/examples/kafka_bridge.py"
PATIENCE = 60
TOPIC = "heddle.events"


def within(what, look, seconds=PATIENCE):
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, f"within {seconds} s there was no {what}"
        time.sleep(0.05)
    return found


class Heddle:
    def __init__(self, base):
        self.base = base
        self.headers = {"content-type": "application/json"}
        if token := os.environ.get("HEDDLE_TOKEN"):
            self.headers["authorization"] = f"Bearer {token}"

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, self.headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return json.loads(text) if text and answer.headers["content-type"] == "application/json" else text

    def feed(self):
        return [line for line in self.call("GET", "/v1/events").splitlines() if line]


class Wire:
    """Between the bridge and the node: lets pass what it may, and closes in the middle of a line."""

    def __init__(self, base):
        address = urllib.parse.urlsplit(base)
        self.target = (address.hostname, address.port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.base = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.budget, self.cuts, self.refusing, self.opened = None, 0, False, 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            if self.refusing:
                near.close()
                continue
            far = socket.create_connection(self.target)
            for source, sink, counted in ((near, far, False), (far, near, True)):
                threading.Thread(target=self.pump, args=(source, sink, counted), daemon=True).start()
            self.opened += 1

    def pump(self, source, sink, counted):
        try:
            while data := source.recv(4096):
                if counted and self.budget is not None:
                    data, self.budget = data[: self.budget], self.budget - len(data)
                    sink.sendall(data)
                    if self.budget <= 0:
                        self.budget, self.cuts = None, self.cuts + 1
                        break
                else:
                    sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Bridge:
    """The program; it ends with this one."""

    def __init__(self, heddle, brokers, *more, **environment):
        self.said = []
        self.process = subprocess.Popen(
            [sys.executable, str(BRIDGE), heddle, brokers, *more],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        atexit.register(self.process.kill)
        self.reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def end(self):
        code = self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        return code, "".join(self.said)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Work:
    """Makes events of which one can tell what is missing: users are given things, and complete them."""

    def __init__(self, heddle):
        self.heddle, self.offers = heddle, 0
        self.users = [f"kafka-{number}" for number in range(8)]
        heddle.call("PUT", "/v1/audiences/gid_kafka/members", {"members": self.users})

    def do(self, offers):
        for _ in range(offers):
            self.offers += 1
            spec = {"audience": "gid_kafka", "kind": "once", "dispatch_times": "each", "params": {"text": "ä\n" * 20}}
            self.heddle.call("PUT", f"/v1/offers/kafka-{self.offers}", spec)
            for user in self.users:
                given = within("assignment", lambda: self.next(user))
                body = {"assignment_id": given["assignment_id"], "status": "completed", "result": {"by": user}}
                self.heddle.call("POST", f"/v1/dispatch/{user}/complete", body)

    def next(self, user):
        return self.heddle.call("POST", f"/v1/dispatch/{user}/next", {"wait": "5s"}) or None


def records(broker, topic, isolation="read_committed"):
    """All that a reader finds, by partition."""
    if topic not in broker.topics:
        return {}
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,  # how long the end takes to be the end
        }
    )
    count = len(broker.topics[topic])
    consumer.assign([TopicPartition(topic, index, 0) for index in range(count)])
    found, ended = collections.defaultdict(list), set()
    try:
        while len(ended) < count:
            record = consumer.poll(PATIENCE)
            assert record is not None, "the broker gives no answer"
            if record.error():
                ended.add(record.partition())
            else:
                found[record.partition()].append(record)
    finally:
        consumer.close()
    return found


def check(heddle, broker, expected):
    """So many events stand in the feed, and what stands in Kafka is the same."""

    def whole():
        # A transaction of another test on this server may hold the feed up.
        lines = heddle.feed()
        return lines if len(lines) >= expected else None

    feed = within("whole feed", whole)
    assert len(feed) == expected, feed
    cursors = {json.loads(line)["cursor"]: index for index, line in enumerate(feed)}
    assert len(cursors) == len(feed)

    def arrived():
        found = records(broker, TOPIC)
        return found if sum(map(len, found.values())) >= len(feed) else None

    found = within("event of each line", arrived)
    values = [record.value() for partition in found.values() for record in partition]
    assert len(values) == len(set(values)) == len(feed), (len(values), len(set(values)), len(feed))
    assert set(values) == set(feed)
    users = collections.defaultdict(set)
    for number, partition in found.items():
        positions = collections.defaultdict(list)
        for record in partition:
            event = json.loads(record.value())
            assert record.key().decode() == event.get("uid", event.get("run")), record.key()
            positions[record.key()].append(cursors[event["cursor"]])
            users[record.key()].add(number)
        for key, order in positions.items():
            assert order == sorted(order), (key, order)
    assert all(len(numbers) == 1 for numbers in users.values())
    (kept,) = records(broker, f"{TOPIC}.cursor").values()
    assert kept[-1].value().decode() == json.loads(feed[-1])["cursor"]


def main():
    heddle = Heddle(sys.argv[1].rstrip("/"))
    broker, work, wire = Broker(), Work(heddle), Wire(heddle.base)
    work.do(3)

    # It makes its topics, begins with what there is, and goes on with what comes.
    bridge = Bridge(wire.base, broker.address)
    check(heddle, broker, 48)
    work.do(1)
    check(heddle, broker, 64)

    # Killed before its commit counts: what it had written is undone, and comes again.
    broker.hold_next_commit("before")
    work.do(2)
    assert broker.held.wait(PATIENCE)
    bridge.kill()
    broker.release.set()
    assert broker.aborted == 0
    bridge = Bridge(wire.base, broker.address)
    check(heddle, broker, 96)
    assert broker.aborted == 1
    seen = sum(map(len, records(broker, TOPIC, "read_uncommitted").values()))
    assert seen > 96, "the killed transaction held nothing: the test shows nothing"

    # Killed after its commit counted, before it heard of it: nothing comes twice.
    broker.hold_next_commit("after")
    work.do(2)
    assert broker.held.wait(PATIENCE)
    bridge.kill()
    broker.release.set()
    opened = wire.opened
    bridge = Bridge(wire.base, broker.address)
    check(heddle, broker, 128)
    assert broker.aborted == 1
    # All of that was in Kafka before this bridge began. There is nothing to cut before it reads the feed.
    within("connection to the feed", lambda: wire.opened > opened)

    # The feed is cut in the middle of a line, and Heddle cannot be reached for a moment.
    wire.budget, wire.refusing = 1_000, True
    work.do(2)
    within("cut", lambda: wire.cuts == 1)
    within("word of it", lambda: any("asking again" in line for line in bridge.said))
    wire.refusing = False
    check(heddle, broker, 160)

    # Kafka closes its connections, in the middle of work.
    broker.cut()
    work.do(1)
    broker.cut()
    work.do(1)
    check(heddle, broker, 192)

    # Another one of its name: the former ends by itself and says why, the new one goes on.
    former, bridge = bridge, Bridge(wire.base, broker.address)
    within("beginning", lambda: any("going on behind" in line for line in bridge.said))
    work.do(2)
    code, said = former.end()
    assert code == 3 and "another bridge with the name 'heddle'" in said, (code, said)
    check(heddle, broker, 224)

    # Asked to end, it ends; started again, it goes on.
    bridge.process.terminate()
    code, said = bridge.end()
    assert code == 0 and said.endswith("stopped\n"), (code, said)
    work.do(1)
    bridge = Bridge(wire.base, broker.address)
    check(heddle, broker, 240)

    # It ends as well while Kafka leaves it without an answer; what was under way then comes again.
    broker.hold_next_commit("before")
    work.do(1)
    assert broker.held.wait(PATIENCE)
    bridge.process.terminate()
    code, said = bridge.end()
    assert code == 0 and said.endswith("stopped\n"), (code, said)
    broker.release.set()
    bridge = Bridge(wire.base, broker.address)
    check(heddle, broker, 256)
    bridge.process.terminate()
    assert bridge.end()[0] == 0

    # What somebody has to mend is said, and ends it.
    code, said = Bridge(heddle.base, broker.address, "--name", "other", "--kinds", "run.begun").end()
    assert code == 1 and "Heddle answers 422" in said and "run.begun" in said, (code, said)
    code, said = Bridge(heddle.base + "/v2", broker.address, "--name", "other").end()
    assert code == 1 and "Heddle answers 404" in said, (code, said)
    print(f"the bridge copied {len(heddle.feed())} events; {broker.committed} transactions, {broker.aborted} undone")


if __name__ == "__main__":
    main()
