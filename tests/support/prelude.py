"""First part of every script in the tests: clients of the server that the environment names, and common functions."""
import json
import sys

import boto3
from botocore.exceptions import ClientError

sqs, sns, s3 = (boto3.client(service) for service in ("sqs", "sns", "s3"))


def create_queue(name, **attributes):
    """Creates a queue. Returns its URL."""
    attributes = {key: str(value) for key, value in attributes.items()}
    return sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]


def url(name):
    """Returns the URL of an existing queue."""
    return sqs.get_queue_url(QueueName=name)["QueueUrl"]


def depth(url):
    """Returns the numbers of visible, delayed and in-flight messages."""
    names = ["ApproximateNumberOfMessages" + kind for kind in ("", "Delayed", "NotVisible")]
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return [int(counts[name]) for name in names]


def arn(url):
    """Returns the ARN of a queue."""
    return attribute(url, "QueueArn")


def attribute(url, name):
    """Returns one attribute of a queue, as the server reports it."""
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name]


def receive(url, most=10, wait=0, **options):
    """Receives up to ten messages with all their attributes."""
    answer = sqs.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=most,
        WaitTimeSeconds=wait,
        MessageSystemAttributeNames=["All"],
        MessageAttributeNames=["All"],
        **options,
    )
    return answer.get("Messages", [])
