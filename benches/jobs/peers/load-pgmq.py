"""pgmq as a contender of benches/jobs/peers-run.sh. Messages are archived after they were read, so that they are kept as items are."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from pgmq import PGMQueue
from pgmq.install import get_embedded_install_sql, install_pgmq_sql

ITEMS = int(os.environ["ITEMS"])
BATCH = int(os.environ["BATCH"])
CONCURRENCY = int(os.environ["CONNECTIONS"])
DATABASE = os.environ["DATABASE"]

lock = Lock()
firsts = iter(range(0, ITEMS, BATCH))
done = 0


def add(queue: PGMQueue) -> None:
    while True:
        with lock:
            first = next(firsts, None)
        if first is None:
            return
        numbers = range(first, min(ITEMS, first + BATCH))
        messages = [{"n": n, "text": "a payload of some length, as they are"} for n in numbers]
        if BATCH == 1:
            queue.send("load", messages[0])
        else:
            queue.send_batch("load", messages)


def process(queue: PGMQueue) -> None:
    global done
    while done < ITEMS:
        messages = queue.read_batch("load", vt=60, batch_size=BATCH) or []
        ids = [message.msg_id for message in messages]
        if BATCH == 1 and ids:
            queue.archive("load", ids[0])
        elif ids:
            queue.archive_batch("load", ids)
        with lock:
            done += len(ids)


def side_by_side(work) -> None:
    with ThreadPoolExecutor(CONCURRENCY) as threads:
        for thread in [threads.submit(work, queue) for _ in range(CONCURRENCY)]:
            thread.result()


install_pgmq_sql(get_embedded_install_sql(), dsn=DATABASE)
queue = PGMQueue(conn_string=DATABASE, pool_size=CONCURRENCY, init_extension=False)
queue.create_queue("load")
print("ready", flush=True)
side_by_side(add)
print("added", flush=True)
side_by_side(process)
print("processed", flush=True)
queue.close()
