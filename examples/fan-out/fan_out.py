"""Splits an order into its lines: one message each, to the exchange `lines`, routed by the warehouse that has the goods."""
import json
from typing import Any

import hostler

EXCHANGE = "lines"


@hostler.handler
def split(message: hostler.Message) -> str:
    order, lines = read(message)
    for number, line in enumerate(lines, 1):
        if hostler.should_stop():
            raise hostler.Retry(f"stopped before line {number} of {len(lines)}")
        hostler.send(
            EXCHANGE,
            json.dumps({"order": order, "line": number, **line}),
            {"content-type": "application/json", "order": order, "line": f"{number}/{len(lines)}"},
            routing_key=line["warehouse"],
            # The lines of an order stay in order, and those that an earlier attempt has sent are dropped.
            group_id=order,
            dedupe_key=f"{message.id}-{number}",
        )
    return json.dumps({"order": order, "lines": len(lines)})


def read(message: hostler.Message) -> tuple[str, list[dict[str, Any]]]:
    """The order's id and its lines. All are checked before the first is sent."""
    try:
        body = message.json()
        order, lines = body["order"], body["lines"]
    except (ValueError, TypeError, KeyError):
        raise hostler.DeadLetter('the body is not a JSON object with "order" and "lines"') from None
    if not isinstance(order, str) or not 0 < len(order) <= 50:
        raise hostler.DeadLetter('"order" is not a text of 1 to 50 characters')
    if not isinstance(lines, list) or not lines:
        raise hostler.DeadLetter("the order has no lines")
    for number, line in enumerate(lines, 1):
        if not isinstance(line, dict) or not all(isinstance(line.get(name), str) for name in ("sku", "warehouse")):
            raise hostler.DeadLetter(f'line {number} lacks a text "sku" or "warehouse"')
        if type(line.get("quantity")) is not int or line["quantity"] < 1:
            raise hostler.DeadLetter(f'line {number}: "quantity" is not a whole number from 1 on')
    return order, lines
