"""What makes pages that read well in the repository read well in the book, too.

* A block's marks (`sh test`, see tests/docs/blocks.py) are for the tests: the book shows the language alone.
* Links that lead out of docs/ go to the repository; what they name has to exist.
* Anchors are those that the repository's pages have, so that a link fits both.
* A state diagram, which the repository's pages draw, becomes a table: from, to, when.
"""

import re
import unicodedata
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARKED = re.compile(r"^(```[\w+-]+) +[\w=./ -]+$", re.MULTILINE)
OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")
DIAGRAM = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^\s*(\S+) --> ([^:\s]+)(?:: (.*))?$")


def table(diagram):
    rows = ["| from | to | when |", "|---|---|---|"]
    for line in diagram.group(1).splitlines():
        step = STEP.match(line)
        if step is None:
            raise ValueError(f"no step of a state diagram: {line}")
        from_, to, when = step.groups()
        if to != "[*]":
            rows.append(f"| {'' if from_ == '[*]' else from_} | {to} | {when or ''} |")
    return "\n".join(rows)


def slug(title, separator):
    kept = (c for c in title.strip().lower() if c in " -_" or unicodedata.category(c)[0] in "LN")
    return "".join(kept).replace(" ", separator)


def on_config(config):
    config["mdx_configs"]["toc"]["slugify"] = slug
    return config


def on_page_markdown(markdown, page, config, files):
    def outside(link):
        path, anchor = link.groups()
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_path} links to {path}")
        return f"]({config['extra']['repository']}/blob/main/{path}{anchor or ''})"

    markdown = DIAGRAM.sub(table, markdown)
    markdown = MARKED.sub(r"\1", markdown)
    return OUTSIDE.sub(outside, markdown)
