"""A worker of the jobs of the type `notify`: worker.py NOTICES SERVER... Appends each notice to the file NOTICES."""

import itertools, json, os, sys, threading, time, urllib.error, urllib.request

notices, servers, worker = sys.argv[1], itertools.cycle(sys.argv[2:]), f"notify-{os.getpid()}"
# Assignments at work, and the time of the last heartbeat.
held, beaten = set(), 0


def call(path, **body):
    """Calls one server after the other until one answers. A settlement that is repeated counts once."""
    while True:
        request = urllib.request.Request(next(servers) + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            return json.load(urllib.request.urlopen(request, timeout=30))
        except (OSError, ValueError) as error:
            if 400 <= getattr(error, "code", 503) < 429:
                raise
            time.sleep(0.1)


def beat(seconds):
    global beaten
    while True:
        time.sleep(seconds)
        asked = time.monotonic()
        held.difference_update(call("/heartbeat", assignment_ids=list(held))["stale"])
        beaten = asked


def work(notice):
    with open(notices, "a") as file:
        file.write(json.dumps(notice) + "\n")
    return {"told": notice["employee"]}


while True:
    asked = time.monotonic()
    claimed = call("/claim", types=["notify"], worker_id=worker, max=20, wait_seconds=1)["assignments"]
    held, beaten, results = {one["assignment_id"] for one in claimed}, asked, []
    if claimed and threading.active_count() == 1:
        threading.Thread(target=beat, args=[claimed[0]["heartbeat_seconds"]], daemon=True).start()
    for one in claimed:
        # The service gives the item to another worker after three missed heartbeats.
        if one["assignment_id"] in held and time.monotonic() - beaten < 2 * one["heartbeat_seconds"]:
            results.append({"assignment_id": one["assignment_id"], "result": work(one["item"]["payload"])})
    call("/settle", results=results)
