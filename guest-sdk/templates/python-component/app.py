"""{{name}}: a task script for Heddle.

`wit_world` is generated from wit/task.wit when the component is built.
"""

import json

from componentize_py_types import Err
from wit_world import WitWorld as Task
from wit_world.imports import context, log
from wit_world.imports.types import Failure_Fatal

PARAMS = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"name": {"type": "string", "description": "Who is greeted."}},
}


class WitWorld(Task):
    def run(self, params: str) -> str:
        name = json.loads(params).get("name", "world")
        if not name:
            # Failure_Retryable, Failure_RetryAfter((milliseconds, message)) and Failure_Skip likewise; any other
            # exception is a trap.
            raise Err(Failure_Fatal("name is empty"))
        greeting = f"Hello, {name}!"
        log.write(log.Level.INFO, greeting, json.dumps({"attempt": context.get().attempt}))
        return json.dumps({"greeting": greeting})

    def describe(self) -> str:
        return json.dumps({"description": "Greets somebody.", "params": PARAMS, "defaults": {"name": "world"}})
