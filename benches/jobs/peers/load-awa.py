"""awa as a contender of benches/jobs/peers-run.sh. Its core is in Rust. Jobs are claimed in batches, up to the batch's size."""

import asyncio
import os
from dataclasses import dataclass

from awa import AsyncClient

ITEMS = int(os.environ["ITEMS"])
BATCH = int(os.environ["BATCH"])
CONCURRENCY = int(os.environ["CONNECTIONS"])


@dataclass
class Load:
    """The payload."""

    n: int
    text: str


async def add(client: AsyncClient) -> None:
    firsts = iter(range(0, ITEMS, BATCH))

    async def connection() -> None:
        for first in firsts:
            numbers = range(first, min(ITEMS, first + BATCH))
            jobs = [Load(n, "a payload of some length, as they are") for n in numbers]
            if BATCH == 1:
                await client.insert(jobs[0], queue="load")
            else:
                await client.enqueue_many_copy(jobs, queue="load")

    await asyncio.gather(*(connection() for _ in range(CONCURRENCY)))


async def main() -> None:
    client = AsyncClient(os.environ["DATABASE"], max_connections=CONCURRENCY + 10)
    await client.migrate()
    await client.install_queue_storage()
    done, finished = 0, asyncio.Event()

    @client.task(Load, queue="load")
    async def load(job) -> None:
        nonlocal done
        done += 1
        if done == ITEMS:
            finished.set()

    print("ready", flush=True)
    await add(client)
    print("added", flush=True)
    # As many jobs at a time as CONCURRENCY batches have.
    workers = CONCURRENCY * BATCH
    await client.start([{"name": "load", "max_workers": workers, "claim_batch_size": BATCH}])
    await finished.wait()
    # The last completions are written before the workers have stopped.
    await client.shutdown()
    print("processed", flush=True)
    await client.close()


asyncio.run(main())
