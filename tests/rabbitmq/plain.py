"""A plain client of RabbitMQ, by pika. Arguments: what to do, the queue without its prefix, and more."""
import json
import os
import sys
from datetime import datetime, timezone
from decimal import Decimal

import pika
from pika.compat import long

HEADERS = {
    "text": "żółć 🦀",
    "blank": "",
    "int": -7,
    # pika writes these as 64 bits.
    "long": long(5),
    "large": long(2**40),
    "bool": True,
    "decimal": Decimal("-123.45"),
    "time": datetime(2026, 11, 26, tzinfo=timezone.utc),
    "none": None,
    "bytes": b"\x00\xff",
    "list": [1, "ż", None, False, long(5), Decimal("0.5"), b"\xff", [], {}],
    "table": {"a": {"b": "deep"}, "n": -1},
}
PROPERTIES = {
    "content_type": "text/x65",
    "content_encoding": "identity",
    "delivery_mode": 2,
    "priority": 5,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "order",
    "app_id": "shop",
    "cluster_id": "",
}


def told(headers, properties):
    """Returns headers and properties as JSON can show them, with the types of their values."""
    return {"headers": {name: repr(value) for name, value in headers.items()}, "properties": properties}


def publish(queue, body):
    """Publishes one message with all properties and headers of every type, and prints them."""
    properties = pika.BasicProperties(headers=HEADERS, **PROPERTIES)
    channel.confirm_delivery()
    channel.basic_publish("", queue, body.encode(), properties, mandatory=True)
    return told(HEADERS, PROPERTIES)


def take(queue):
    """Takes one message, which must be there, and prints it."""
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert method, f"{queue} is empty"
    told_properties = {name: getattr(properties, name) for name in PROPERTIES}
    return {"body": body.decode(), **told(properties.headers, told_properties)}


channel = pika.BlockingConnection(pika.URLParameters(os.environ["HOSTLER_QUEUE__RABBITMQ__URL"])).channel()
queue = os.environ["HOSTLER_QUEUE__RABBITMQ__PREFIX"] + sys.argv[2]
print(json.dumps({"publish": publish, "take": take}[sys.argv[1]](queue, *sys.argv[3:])))
