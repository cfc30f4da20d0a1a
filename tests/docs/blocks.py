#!/usr/bin/env python3
"""What README.md and docs/*.md show is run, or says that it is an example.

    tests/docs/blocks.py check                     # marks, links and anchors; needs nothing
    tests/docs/blocks.py run HEDDLE [PAGE...]      # what is marked, by this binary, against its own `heddle dev`

Each block of code says behind its language what it is:

| mark | the block |
|---|---|
| `test` | is run by bash, and has to succeed. Blocks of a page run in order, in one directory, and keep their variables |
| `file=NAME` | is written to that file of the directory, for the blocks behind it |
| `answer` | JSON that the block before it has to print last: each field that stands here, as it stands here; `"..."` is anything |
| `example` | is not run. JSON in it has to be JSON, unless it is cut (`...`, `…`) |

Pictures (`text`, `mermaid`) need no mark. `127.0.0.1:8080` and `localhost:8080` stand for the node of the test.

`run` also asks the program whether it knows each `heddle ...` that a page shows, in a block or in a sentence: the command and
its options. And docs/cli.md has to name every command that the program has.
"""

import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unicodedata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```([\w+-]*) ?(.*)$")
MARK = re.compile(r"^(test|answer|example|file=[\w./-]+)$")
PICTURES = ("text", "mermaid")
BLOCK_SECONDS = 120
START_SECONDS = 180


class Block:
    def __init__(self, page, line, language, mark):
        self.page, self.line, self.language, self.mark, self.lines = page, line, language, mark, []

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def others():
    return [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "guest-sdk/README.md"]


def blocks(page):
    found, block = [], None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if block is not None:
            if line == "```":
                found.append(block)
                block = None
            else:
                block.lines.append(line)
        elif fence:
            block = Block(page, number, *fence.groups())
    assert block is None, f"{block}: a block without an end"
    return found


def headings(page):
    """The anchors of a page, as GitHub makes them; the book's are the same for all that these pages hold."""
    found, fenced = set(), False
    for line in page.read_text().splitlines():
        fenced ^= line.startswith("```")
        if not fenced and line.startswith("#"):
            title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).replace("`", "").lower()
            kept = (c for c in title if c in " -_" or unicodedata.category(c)[0] in "LN")
            slug = "".join(kept).replace(" ", "-")
            number, name = 0, slug
            while name in found:
                number += 1
                name = f"{slug}-{number}"
            found.add(name)
    return found


def wrong_links(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists():
            yield f"{page.relative_to(ROOT)}: {target} leads nowhere"
        elif anchor and anchor not in headings(to):
            yield f"{page.relative_to(ROOT)}: {to.name} has no heading #{anchor}"


def check():
    wrong = []
    for page in pages():
        for block in blocks(page):
            if not block.language:
                wrong.append(f"{block}: a block without a language (`text` for pictures)")
            elif block.language in PICTURES:
                if block.mark:
                    wrong.append(f"{block}: a picture needs no mark")
            elif not MARK.match(block.mark):
                wrong.append(f"{block}: says neither test, file=, answer nor example: `{block.language} {block.mark}`")
            elif (block.mark == "test") != (block.language == "sh") and block.mark == "test":
                wrong.append(f"{block}: only sh is run")
            elif block.language == "json" and not re.search(r"\.\.\.|…", block.text):
                try:
                    json.loads(block.text)
                except ValueError as error:
                    wrong.append(f"{block}: {error}")
    for page in [*pages(), *others()]:
        wrong.extend(wrong_links(page))
    for line in wrong:
        print(line)
    counts = [block.mark.partition("=")[0] or "picture" for page in pages() for block in blocks(page)]
    print(", ".join(f"{counts.count(kind)} {kind}" for kind in sorted(set(counts))))
    return 1 if wrong else 0


def differs(wanted, found, pointer=""):
    """Where what was found is not what stands in the page."""
    if wanted == "...":
        return None
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            if key not in found:
                return f"{pointer}/{key} is missing"
            if inner := differs(value, found[key], f"{pointer}/{key}"):
                return inner
        return None
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        inner = (differs(one, other, f"{pointer}/{at}") for at, (one, other) in enumerate(zip(wanted, found)))
        return next(filter(None, inner), None)
    return None if wanted == found else f"{pointer or '/'} is {found!r}, not {wanted!r}"


def last_json(printed):
    """The last JSON value that was printed, be it in one line or in many."""
    # curl ends no line: the last value may stand behind another one.
    for start in (match.start() for match in re.finditer(r"[\[{]", printed)):
        try:
            return json.loads(printed[start:])
        except ValueError:
            pass
    raise ValueError("no JSON was printed last")


def shown_commands(page):
    """Where a page shows `heddle ...`, and the words."""
    text = page.read_text()
    found = set()
    for block in blocks(page):
        if block.language == "sh":
            # Options may go on in the next line; a comment ends a command.
            joined = re.sub(r"\$\([^)]*\)", "WORD", block.text.replace("\\\n", " "))
            for line in joined.splitlines():
                found.update(re.findall(r"(?:^|[|(;&]\s*|\S+=\S+ )heddle ([^|;)&#]*)", line.split(" # ")[0]))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found.update(" ".join(match.split()) for match in re.findall(r"`heddle ([^`]+)`", prose))
    return sorted(found)


@functools.cache
def help_of(heddle, *path):
    done = subprocess.run([heddle, *path, "--help"], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def unknown(heddle, shown):
    """What of a command the program does not know, if anything; `...` and names in capitals are left out."""
    words = shown.split()
    path = []
    for word in words:
        if not re.fullmatch(r"[a-z][a-z-]*", word.split("|")[0]):
            break
        path.append(word.split("|")[0])
    # Behind the command stand names, which may look like commands: the longest beginning that is one counts.
    while path:
        said = help_of(heddle, *path)
        usage = re.search(r"^Usage: heddle (.*)$", said, re.MULTILINE)
        if usage and usage.group(1).split("[")[0].split("<")[0].split() == path:
            break
        path.pop()
    else:
        return None if words[0].startswith("-") or words[0] in ("...", "COMMAND") else f"no command `{words[0]}`"
    rest = words[len(path) :]
    if rest and "<COMMAND>" in usage.group(1) and re.fullmatch(r"[a-z][a-z|-]*", rest[0]):
        return f"`heddle {' '.join(path)}` has no `{rest[0]}`"
    for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]*|-[a-z])\b", " ".join(rest)):
        if not re.search(rf"(?<![\w-]){option}\b", said):
            return f"`heddle {' '.join(path)}` has no `{option}`"
    return None


def wrong_commands(heddle):
    for page in [*pages(), *others()]:
        for shown in shown_commands(page):
            if problem := unknown(heddle, shown):
                yield f"{page.relative_to(ROOT)}: `heddle {shown.strip()}`: {problem}"
    every = help_of(heddle).split("Commands:")[1].split("Options:")[0]
    named = (ROOT / "docs/cli.md").read_text()
    for command in re.findall(r"^  ([a-z]+) ", every, re.MULTILINE):
        if command != "help" and not re.search(rf"`[^`]*\b{command}\b[^`]*`", named):
            yield f"docs/cli.md does not name the command `{command}`"


class Dev:
    """`heddle dev` with its demo, on a port of its own."""

    def __init__(self, heddle, directory):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.log = directory / "dev.log"
        # What the tests have compiled, if they have run: the name of a file says for which build it is.
        kept = Path(tempfile.gettempdir()).glob("heddle-tests-artefacts-*")
        if kept := sorted((path for path in kept if not path.suffix), key=os.path.getmtime):
            shutil.copytree(kept[-1], directory / "data" / "artefacts")
        command = [heddle, "dev", "--listen", self.address, "--data-dir", directory / "data"]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, stdin=subprocess.DEVNULL)
        until = time.monotonic() + START_SECONDS
        for line in self.process.stdout:
            if "ready at" in line:
                return
            assert time.monotonic() < until, "dev is not ready"
        raise SystemExit(f"dev ended:\n{self.log.read_text()}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def run_page(page, dev, directory, environment):
    workspace = directory / page.stem
    workspace.mkdir()
    (workspace / "state").touch()
    printed, count = "", 0
    here = re.compile(r"(127\.0\.0\.1|localhost):8080")
    for block in blocks(page):
        text = here.sub(dev.address, block.text)
        if block.mark.startswith("file="):
            (workspace / block.mark[len("file=") :]).write_text(text)
        elif block.mark == "answer":
            try:
                problem = differs(json.loads(text), last_json(printed))
            except ValueError as error:
                problem = str(error)
            if problem:
                return f"{block}: {problem}; it printed\n{printed}", count
            count += 1
        elif block.mark == "test":
            # Each block begins with the variables that the one before it left.
            script = f". ./state\nset -eu -o pipefail -a\n{text}\nexport -p > ./state\n"
            began = time.monotonic()
            try:
                done = subprocess.run(
                    ["bash", "-c", script],
                    cwd=workspace,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=BLOCK_SECONDS,
                )
            except subprocess.TimeoutExpired as error:
                return f"{block}: not done after {BLOCK_SECONDS} s; it printed\n{error.stdout}", count
            printed = done.stdout
            if done.returncode != 0:
                return f"{block}: ended with {done.returncode}; it printed\n{printed}", count
            count += 1
            if "-v" in sys.argv:
                print(f"--- {block} ({time.monotonic() - began:.1f} s)\n{printed}")
    return None, count


def run(heddle, wanted):
    missing = [name for name in ("bash", "curl", "jq") if subprocess.run(["which", name], capture_output=True).returncode]
    assert not missing, f"the blocks need {missing}"
    # A page is named by its path or without: `docs/cli.md`, `cli`.
    wanted = {Path(name).stem for name in wanted}
    unknown = wanted - {page.stem for page in pages()}
    assert not unknown, f"there are no such pages: {', '.join(sorted(unknown))}"
    failed = total = 0
    with tempfile.TemporaryDirectory(prefix="heddle-blocks-") as name:
        directory = Path(name)
        programs = directory / "bin"
        programs.mkdir()
        (programs / "heddle").symlink_to(Path(heddle).resolve())
        if not wanted:
            # By this name: the program says in its help what it was called.
            for line in wrong_commands(str(programs / "heddle")):
                failed += 1
                print(line)
        dev = Dev(programs / "heddle", directory)
        try:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
            environment |= {
                "HEDDLE_URL": f"http://{dev.address}",
                "PATH": f"{programs}:{os.environ['PATH']}",
                "HOME": name,
                "REPOSITORY": str(ROOT),
            }
            for page in pages():
                if wanted and page.stem not in wanted:
                    continue
                began = time.monotonic()
                problem, count = run_page(page, dev, directory, environment)
                total += count
                if problem:
                    failed += 1
                    print(problem)
                elif count:
                    print(f"{page.relative_to(ROOT)}: {count} blocks, {time.monotonic() - began:.1f} s", flush=True)
        finally:
            dev.stop()
    print(f"{total} blocks run, {failed} faults")
    return 1 if failed else 0


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "-v"]
    if arguments[:1] == ["check"]:
        return check()
    if arguments[:1] == ["run"] and len(arguments) > 1:
        return run(arguments[1], arguments[2:])
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
