"""A typical boto3 loop: receives ten messages, handles each, and deletes each. One thread per concurrent message."""

import os
import threading

import boto3
from botocore.config import Config
from work import work

CONCURRENCY = int(os.environ["BENCH_CONCURRENCY"])
URL = os.environ["BENCH_QUEUE_URL"]

sqs = boto3.client(
    "sqs", endpoint_url=os.environ["BENCH_ENDPOINT"], config=Config(max_pool_connections=CONCURRENCY)
)


def consume():
    while True:
        answer = sqs.receive_message(QueueUrl=URL, MaxNumberOfMessages=10, WaitTimeSeconds=20)
        for message in answer.get("Messages", []):
            work(message["Body"])
            sqs.delete_message(QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"])


for _ in range(CONCURRENCY):
    threading.Thread(target=consume).start()
