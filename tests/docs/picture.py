#!/usr/bin/env python3
"""Makes docs/overview.png anew: the overview page of a node with a demo and some work, as headless Chromium shows it.

    tests/docs/picture.py HEDDLE [FILE]      # HEDDLE is the program, such as target/release/heddle
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from shutil import which

from blocks import ROOT, Dev

BYTES = 150 * 1024
SIZE = "1280,860"

GROUPS = """
kind: group
name: orders
description: The orders of each hour
schedules: { hourly: { cron: "0 * * * *" } }
tasks:
  fetch: { script: hello, params: { name: orders } }
  check: { script: sleep, depends_on: [fetch], params: { seconds: 1 } }
  book: { script: hello, depends_on: [check], params: { name: books } }
---
kind: group
name: invoices
description: Fails now and then, and recovers
schedules: { quarterly: { every: 15m } }
tasks:
  send: { script: flaky, params: { failures: 1 } }
---
kind: group
name: thumbnails
description: One task run for each picture
tasks:
  scale: { script: fib, for_each: [18, 19, 20, 21, 22], params: { n: "{{ item }}" } }
---
kind: group
name: approvals
description: Waits for somebody
tasks:
  approve: { queue: approvals, params: { order: 4711 } }
"""


def main():
    heddle = str(Path(sys.argv[1]).resolve())
    picture = Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "docs/overview.png").resolve()
    browser = which("chromium") or which("google-chrome") or sys.exit("no Chromium here (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory(prefix="heddle-picture-") as name:
        directory = Path(name)
        dev = Dev(heddle, directory)
        try:

            def run(*arguments, accept=(0,)):
                environment = {**os.environ, "HEDDLE_URL": f"http://{dev.address}"}
                done = subprocess.run([heddle, *arguments], env=environment, capture_output=True, text=True)
                assert done.returncode in accept, f"{arguments}: {done.stderr}"

            (directory / "groups.yaml").write_text(GROUPS)
            run("apply", "-f", str(directory / "groups.yaml"))
            backfill = ["--from", "2012-01-01", "--to", "2015-12-31", "--max-active", "8", "--include-downstream"]
            run("backfill", "seattle-weather", *backfill, "--watch")
            for _ in range(3):
                for group in ("orders", "thumbnails", "invoices"):
                    run("run", "start", group, "--watch", accept=(0, 1))
                time.sleep(2)
            run("run", "restart", "latest:invoices", accept=(0, 1))
            run("run", "start", "seattle-weather", "--logical-time", "2020-07-01", "--watch", accept=(1,))
            run("run", "start", "approvals")
            run("run", "start", "orders")
            time.sleep(2)
            command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--lang=en-US"]
            command += [f"--user-data-dir={directory / 'browser'}", f"--window-size={SIZE}", "--force-device-scale-factor=1"]
            command += [f"--screenshot={picture}", "--timeout=10000", f"http://{dev.address}/"]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        finally:
            dev.stop()
    size = picture.stat().st_size
    print(f"{picture}: {size} bytes")
    return 0 if size < BYTES else f"{size} bytes are too many for a page that everybody loads: at most {BYTES}"


if __name__ == "__main__":
    sys.exit(main())
