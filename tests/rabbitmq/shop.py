"""A Celery app. Arguments: what to do, and the queue without its prefix.

`send` declares the queue as a quorum queue and sends tasks. `later` sends one that the server delays. `work` is a worker.
"""
import json
import os
import sys

from celery import Celery
from kombu import Exchange, Queue
from kombu.transport import native_delayed_delivery as delays

verb, name = sys.argv[1:]
queue = os.environ["HOSTLER_QUEUE__RABBITMQ__PREFIX"] + name
app = Celery("shop", broker=os.environ["HOSTLER_QUEUE__RABBITMQ__URL"])
exchange = {
    "send": Exchange(queue, type="direct"),
    "later": Exchange(f"{queue}.topic", type="topic"),
    # The queue is hostler's.
    "work": Exchange(""),
}[verb]
app.conf.task_queues = [
    Queue(queue, exchange, queue, queue_arguments={"x-queue-type": "quorum"}, no_declare=verb == "work")
]
app.conf.task_default_queue = queue


@app.task(name="shop.add")
def add(x, y):
    """Adds, and shows what it was given."""
    with open("added", "a") as file:
        file.write(f"{add.request.id}: {x} + {y} = {x + y}\n")


if verb == "send":
    print(json.dumps([add.delay(2, 3).id, add.apply_async((4,), {"y": 5}, countdown=3600).id]))
elif verb == "later":
    # A worker would prepare this.
    with app.connection_for_write() as connection:
        app.amqp.queues[queue].bind(connection.channel()).declare()
        delays.declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        delays.bind_queue_to_native_delayed_delivery_exchange(connection, app.amqp.queues[queue])
    print(json.dumps(add.apply_async((6, 7), countdown=2).id))
else:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["worker", "--pool=solo", "--loglevel=INFO", *quiet])
