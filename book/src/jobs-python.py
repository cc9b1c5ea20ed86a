#!/usr/bin/env python3
"""A worker of jobs over plain HTTP: claims items of a type, extends them while it works, and settles each.

JOBS_URL and JOBS_TOKEN name the service and the worker's token; the first argument is the type.
"""
import json, os, sys, threading, urllib.request, uuid

URL = os.environ.get("JOBS_URL", "http://127.0.0.1:8081")
HEADERS = {"Content-Type": "application/json"}
if "JOBS_TOKEN" in os.environ:
    HEADERS["Authorization"] = "Bearer " + os.environ["JOBS_TOKEN"]
WORKER = f"python-{uuid.uuid4()}"


def call(path, body, timeout=30):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), HEADERS)
    return json.load(urllib.request.urlopen(request, timeout=timeout))


def work(payload):
    return {"length": len(json.dumps(payload))}


def extend(assignment, seconds, done):
    missed = 0
    while not done.wait(seconds):
        try:
            stale, missed = call("/heartbeat", {"assignment_ids": [assignment]}, seconds / 2)["stale"], 0
        except OSError:
            stale, missed = [], missed + 1
        if stale or missed == 2:
            os._exit(1)  # another worker may soon have the item: stop at once


while True:
    for given in call("/claim", {"types": [sys.argv[1]], "worker_id": WORKER, "max": 1, "wait_seconds": 20})["assignments"]:
        assignment, done = given["assignment_id"], threading.Event()
        threading.Thread(target=extend, args=(assignment, given["heartbeat_seconds"], done), daemon=True).start()
        try:
            settle = {"results": [{"assignment_id": assignment, "result": work(given["item"]["payload"])}]}
        except Exception as error:
            settle = {"failures": [{"assignment_id": assignment, "error": {"error": str(error)}}]}
        done.set()
        call("/settle", settle)
