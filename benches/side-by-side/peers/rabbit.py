"""The Celery app of tasks.py on RabbitMQ. The queue exists already, and has a prefetch of BENCH_CONCURRENCY messages in all."""

import os

from celery import Celery
from kombu import Queue
from work import compute

PROCESSES = os.cpu_count()

app = Celery("tasks", broker=os.environ["BENCH_URL"])
app.conf.update(
    task_queues=[Queue("celery", queue_arguments={"x-queue-type": "quorum"}, no_declare=True)],
    task_acks_late=True,
    task_ignore_result=True,
    worker_enable_remote_control=False,
    worker_concurrency=PROCESSES,
    worker_prefetch_multiplier=max(1, int(os.environ["BENCH_CONCURRENCY"]) // PROCESSES),
)


@app.task(name="tasks.handle")
def handle(order):
    compute(order)
