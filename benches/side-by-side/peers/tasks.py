"""A Celery app with the same work as its only task. Celery itself parses the JSON body. A task is acked after it is done."""

import os

from celery import Celery
from work import compute

URL = os.environ["BENCH_QUEUE_URL"]

app = Celery("tasks", broker="sqs://" + os.environ["BENCH_ENDPOINT"].removeprefix("http://"))
app.conf.update(
    task_default_queue="bench",
    task_acks_late=True,
    task_ignore_result=True,
    worker_enable_remote_control=False,
    broker_transport_options={
        "region": "eu-west-1",
        "is_secure": False,
        "wait_time_seconds": 20,
        "predefined_queues": {"bench": {"url": URL, "access_key_id": "test", "secret_access_key": "test"}},
    },
)


@app.task
def handle(order):
    compute(order)
