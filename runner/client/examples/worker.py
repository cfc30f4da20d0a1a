#!/usr/bin/env python3
"""A worker of a Heddle queue, with nothing but the standard library.

    python3 worker.py http://127.0.0.1:8080 approvals [how many at once]

A token, where one is needed, stands in HEDDLE_TOKEN. Ctrl-C (or SIGTERM) lets what is under way end. While the server is
away, it goes on trying; after Ctrl-C, it makes new tries for at most 30 seconds more.
"""

import http.client
import json
import os
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

LEASE_SECONDS = 10
WAIT_SECONDS = 5  # short, so that a stop is noticed soon
PAUSE_SECONDS = 0.1  # the longest before the second try; then it doubles
PAUSE_SECONDS_MAX = 10
STOP_SECONDS = 30  # for how long new tries to report an outcome are made after a stop
REPORT_SECONDS = 60  # how long a try waits: a large output may take longer than a lease, and heartbeats go on meanwhile


class Refused(Exception):
    """The server said no; `status` is 409 for a token that is old."""

    def __init__(self, status, detail):
        super().__init__(detail)
        self.status = status


def pauses():
    """Seconds between tries, for as long as somebody asks. Chance takes up to half of each, so that the workers that have
    lost a server do not all come back to it at the same moment."""
    longest = PAUSE_SECONDS
    while True:
        yield longest * random.uniform(0.5, 1)
        longest = min(2 * longest, PAUSE_SECONDS_MAX)


def detail_of(error):
    """What an answer of the server says. A proxy whose server is away may answer with anything."""
    try:
        return json.loads(error.read())["detail"]
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return error.reason


class Heddle:
    def __init__(self, base, token=None):
        self.base = base.rstrip("/")
        self.headers = {"content-type": "application/json"}
        if token:
            self.headers["authorization"] = f"Bearer {token}"

    def post(self, path, body, timeout=30):
        request = urllib.request.Request(
            self.base + path, json.dumps(body).encode(), self.headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(error.code, detail_of(error)) from None
        except OSError:
            raise
        except (ValueError, http.client.HTTPException) as error:
            raise OSError(f"not an answer of Heddle: {error}") from None

    def claims(self, queue, worker, max):
        body = {"worker": worker, "max": max, "lease": f"{LEASE_SECONDS}s", "wait": f"{WAIT_SECONDS}s"}
        return self.post(f"/v1/queues/{queue}/claims", body, WAIT_SECONDS + 30)["items"]

    def on_claim(self, claim, action, timeout=REPORT_SECONDS, **body):
        return self.post(f"/v1/claims/{claim['id']}/{action}", {"token": claim["token"], **body}, timeout)


def work(params, context, stopped, report):
    """What this worker does: waits `sleep_ms`, fails if it is told to, and answers `value` otherwise."""
    report(progress=0.0, note="begun", log=[{"message": "working", "fields": {"params": params}}])
    if stopped.wait(params.get("sleep_ms", 0) / 1000):
        return None  # cancelled, or given to somebody else
    if "fail" in params:
        raise RuntimeError(params["fail"])
    return {"value": params.get("value"), "by": "python"}


def reported(report, stop):
    """Reports an outcome until the server has answered; says what became of it. If the claim has expired meanwhile, the
    server says so when it is there again, and somebody else does the work."""
    stopped_at = None
    for pause in pauses():
        try:
            report()
            return "done"
        except Refused as refused:
            if refused.status < 500 and refused.status != 429:
                return f"not accepted ({refused})"
            print(f"the server cannot take it now: {refused}", flush=True)
        except OSError as error:
            print(f"cannot reach the server: {error}", flush=True)
        if not stop.is_set():
            stop.wait(pause)
            continue
        stopped_at = stopped_at or time.monotonic()
        if time.monotonic() + pause > stopped_at + STOP_SECONDS:
            return "not reported"
        time.sleep(pause)


def do(heddle, claim, stop):
    """Works on one claim, and keeps its lease alive meanwhile."""
    done, stopped = threading.Event(), threading.Event()

    def beat():
        pause = LEASE_SECONDS / 3
        due = time.monotonic() + pause
        while not done.wait(max(0, due - time.monotonic())):
            due = time.monotonic() + pause
            try:
                # One that hangs must leave time for the next one before the lease ends.
                heddle.on_claim(claim, "heartbeat", timeout=pause)
            except Refused as refused:
                if refused.status == 409:
                    print(f"stopping {claim['task']}: {refused}", flush=True)
                    stopped.set()
                    return
            except OSError:
                pass  # the next one may get through

    def report_progress(**what):
        """`progress` from 0 to 1, a `note`, and lines for the log: `log=[{"message": ..., "level": "info"}]`."""
        try:
            heddle.on_claim(claim, "heartbeat", timeout=LEASE_SECONDS, **what)
        except (Refused, OSError):
            pass  # whether the claim still holds is for `beat` to find out

    threading.Thread(target=beat, daemon=True).start()
    try:
        try:
            output = work(claim["params"], claim["context"], stopped, report_progress)
        except Exception as error:
            reason = str(error)  # `error` is gone when this block ends
            report = lambda: heddle.on_claim(claim, "fail", error=reason)
        else:
            if stopped.is_set():
                return
            report = lambda: heddle.on_claim(claim, "complete", output=output)
        print(f"{reported(report, stop)}: {claim['group']}/{claim['task']} {claim['run']}", flush=True)
    finally:
        done.set()


def main():
    base, queue = sys.argv[1:3]
    at_once = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    heddle = Heddle(base, os.environ.get("HEDDLE_TOKEN"))
    worker = f"python-{os.getpid()}"
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    under_way = set()
    tries = pauses()
    with ThreadPoolExecutor(at_once) as threads:
        while not stop.is_set():
            under_way = {future for future in under_way if not future.done()}
            free = at_once - len(under_way)
            if free == 0:
                stop.wait(0.05)
                continue
            try:
                claims = heddle.claims(queue, worker, free)
            except (Refused, OSError) as error:
                print(f"cannot claim: {error}", flush=True)
                if isinstance(error, Refused) and error.status in (401, 403, 404, 422):
                    return 1
                stop.wait(next(tries))
                continue
            tries = pauses()
            under_way |= {threads.submit(do, heddle, claim, stop) for claim in claims}
    print("stopped", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
