"""Begins every script of the tests: clients of the server that the environment names, and what most scripts do."""
import json
import sys

import boto3
from botocore.exceptions import ClientError

sqs, sns, s3 = (boto3.client(service) for service in ("sqs", "sns", "s3"))


def create_queue(name, **attributes):
    """The URL of a new queue."""
    attributes = {key: str(value) for key, value in attributes.items()}
    return sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]


def url(name):
    """The URL of a queue that exists."""
    return sqs.get_queue_url(QueueName=name)["QueueUrl"]


def depth(url):
    """How many messages are visible, delayed and in flight."""
    names = ["ApproximateNumberOfMessages" + kind for kind in ("", "Delayed", "NotVisible")]
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return [int(counts[name]) for name in names]


def arn(url):
    """The ARN of a queue."""
    return attribute(url, "QueueArn")


def attribute(url, name):
    """One attribute of a queue, as the server says it."""
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name]


def receive(url, most=10, wait=0, **options):
    """Up to ten messages with all that the server says of them."""
    answer = sqs.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=most,
        WaitTimeSeconds=wait,
        MessageSystemAttributeNames=["All"],
        MessageAttributeNames=["All"],
        **options,
    )
    return answer.get("Messages", [])
