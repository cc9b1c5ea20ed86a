"""A typical nats-py loop: pulls a batch of BENCH_CONCURRENCY messages, handles each, and acks each."""

import asyncio
import os

import nats
from work import work

BATCH = int(os.environ["BENCH_CONCURRENCY"])


async def consume():
    client = await nats.connect(os.environ["BENCH_URL"])
    messages = await client.jetstream().pull_subscribe_bind(
        consumer=os.environ["BENCH_CONSUMER"], stream=os.environ["BENCH_STREAM"]
    )
    while True:
        for message in await messages.fetch(BATCH):
            work(message.data)
            await message.ack()


asyncio.run(consume())
