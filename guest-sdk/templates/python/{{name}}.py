"""Counts the words of a text, and remembers the longest one."""

# The script {{name}}: one file, uploaded as it is. `heddle script push {{name}} {{name}}.py`

from dataclasses import dataclass, field


@dataclass
class Params:
    # What `run` takes: checked before each run, and the form that people fill in.
    text: str = field(default="a short example", metadata={"description": "What is counted."})
    url: str | None = field(default=None, metadata={"description": "Or where the text is; the task needs `allow_hosts` for it."})


def run(params: Params, ctx):
    text = params.text
    if params.url:
        response = ctx.fetch(params.url)
        if response.status >= 500:
            # May go better next time: the task's retry policy decides.
            raise Retry(f"{params.url} answered {response.status}", "30s")
        if not response.ok:
            # Will never go better: not retried.
            raise Fatal(f"{params.url} answered {response.status}")
        text = response.text
    words = text.split()
    if not words:
        raise Skip("there are no words")
    print("counted", len(words), "words for", ctx.logical_time)
    ctx.progress(1, f"{len(words)} words")

    longest = max(words, key=len)
    # The group's own memory, written when this attempt succeeds and only then.
    known = ctx.state.get("longest", "")
    record = len(longest) > len(known)
    if record:
        ctx.state.set("longest", longest)
    return {"words": len(words), "longest": longest, "record": record}
