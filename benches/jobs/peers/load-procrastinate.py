"""procrastinate as a contender of benches/jobs/peers-run.sh. Jobs are added in batches, and taken and ended one by one."""

import asyncio
import logging
import os

import procrastinate

# An app of the main module is no fault here: its worker is in the same process.
logging.getLogger("procrastinate").setLevel(logging.ERROR)

ITEMS = int(os.environ["ITEMS"])
BATCH = int(os.environ["BATCH"])
CONCURRENCY = int(os.environ["CONNECTIONS"])

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(
        conninfo=os.environ["DATABASE"], min_size=CONCURRENCY, max_size=CONCURRENCY + 2
    )
)


@app.task(name="load")
async def load(n: int, text: str) -> None:
    """Does nothing."""


async def add() -> None:
    firsts = iter(range(0, ITEMS, BATCH))

    async def connection() -> None:
        for first in firsts:
            numbers = range(first, min(ITEMS, first + BATCH))
            jobs = [{"n": n, "text": "a payload of some length, as they are"} for n in numbers]
            if BATCH == 1:
                await load.defer_async(**jobs[0])
            else:
                await load.batch_defer_async(*jobs)

    await asyncio.gather(*(connection() for _ in range(CONCURRENCY)))


async def main() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        print("ready", flush=True)
        await add()
        print("added", flush=True)
        await app.run_worker_async(concurrency=CONCURRENCY, wait=False, install_signal_handlers=False)
        print("processed", flush=True)
        done = await app.connector.execute_query_one_async(
            "SELECT count(*)::int AS n FROM procrastinate_jobs WHERE status = 'succeeded'"
        )
        if done["n"] != ITEMS:
            raise SystemExit(f"{done['n']} of {ITEMS} jobs succeeded")


asyncio.run(main())
