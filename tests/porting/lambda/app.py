import json

import hostler


@hostler.handler
def invoice(message):
    order = message.json()
    if message.attributes.get("test") == "yes":
        return
    total = sum(line["cents"] * line["quantity"] for line in order["lines"])
    hostler.send("invoices", json.dumps({"order": order["id"], "cents": total}), {"customer": order["customer"]})
