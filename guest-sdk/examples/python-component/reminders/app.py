"""Tells which customers have invoices that are overdue, how much they owe, and which reminder is due to them.

The day is that of the run's logical time, not today. So a backfill tells what was overdue then.
"""

import json
from bisect import bisect_right
from datetime import date
from decimal import Decimal, InvalidOperation

from componentize_py_types import Err
from wit_world import WitWorld as Task
from wit_world.imports import context, log
from wit_world.imports.types import Failure_Fatal

PARAMS = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["invoices"],
    "properties": {
        "invoices": {
            "type": "array",
            "description": "The invoices that are not paid.",
            "items": {
                "type": "object",
                "required": ["number", "customer", "amount", "due"],
                "properties": {
                    "number": {"type": "string"},
                    "customer": {"type": "string"},
                    # As a number, it would be a binary fraction: not exact.
                    "amount": {"type": "string", "description": "The amount as text, such as 19.90."},
                    "due": {"type": "string", "description": "The day until which it is to be paid, such as 2013-06-30."},
                },
            },
        },
        "levels": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "After how many days the first reminder is due, the second, and so on.",
        },
    },
}


class WitWorld(Task):
    def run(self, params: str) -> str:
        given = json.loads(params)
        today = date.fromisoformat(context.get().logical_time[:10])
        levels = sorted(given["levels"])
        customers = {}
        for invoice in given["invoices"]:
            try:
                due, amount = date.fromisoformat(invoice["due"]), Decimal(invoice["amount"])
            except (ValueError, InvalidOperation) as wrong:
                raise Err(Failure_Fatal(f"invoice {invoice['number']} has no valid day or amount")) from wrong
            level = bisect_right(levels, (today - due).days)
            if level == 0:
                continue
            name = invoice["customer"]
            customer = customers.setdefault(name, {"customer": name, "level": 0, "amount": Decimal(0), "invoices": []})
            customer["level"] = max(customer["level"], level)
            customer["amount"] += amount
            customer["invoices"].append(invoice["number"])
        reminders = sorted(customers.values(), key=lambda one: (-one["level"], -one["amount"], one["customer"]))
        log.write(log.Level.INFO, f"customers to remind: {len(reminders)}", json.dumps({"day": str(today)}))
        # Amounts are text again.
        return json.dumps({"day": str(today), "reminders": reminders}, default=str)

    def describe(self) -> str:
        description = "Tells which customers are to be reminded of their invoices."
        return json.dumps({"description": description, "params": PARAMS, "defaults": {"levels": [7, 21, 42]}})
