"""Calls of a producer to the job service. Each goes to one server after the other until one answers."""

import itertools
import json
import time
import urllib.error
import urllib.parse
import urllib.request

# Longest time in seconds that no server answers.
PATIENCE = 60


class Refused(Exception):
    """The service refuses the request. `status` and `problem`: its answer."""

    def __init__(self, status, problem):
        super().__init__(f"{status}: {problem.get('detail') or problem}")
        self.status, self.problem = status, problem


class Service:
    def __init__(self, servers):
        self.servers = itertools.cycle(servers)

    def call(self, path, body=None):
        """Returns the answer to a POST, or to a GET if there is no body."""
        data = None if body is None else json.dumps(body).encode()
        begun = time.monotonic()
        while True:
            request = urllib.request.Request(next(self.servers) + path, data, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code < 500 and error.code != 429:
                    raise Refused(error.code, json.load(error)) from None
                fault = error
            except (OSError, ValueError) as error:
                fault = error
            if time.monotonic() - begun > PATIENCE:
                raise fault
            time.sleep(0.1)

    def status(self, job):
        return self.call(f"/job/{job}/status")

    def items(self, **query):
        """Returns all items that a query selects, in the order of their creation."""
        found, cursor = [], {}
        while cursor is not None:
            page = self.call("/job_item?" + urllib.parse.urlencode({"limit": 1000, **query, **cursor}))
            found += page["items"]
            cursor = {"cursor": page["next"]} if page["next"] else None
        return found
