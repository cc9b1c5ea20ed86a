"""Creates the tree of a payroll: produce.py EMPLOYEES CHECKS CALLBACK SERVER... Prints the id of its root.

The first employees come with the tree. The others are added once the first checks are sent, in batches. At the end, the root is
sealed. A call whose answer is lost is repeated: the dedupe keys keep it from adding anything twice.
"""

import sys
import time

from service import Refused, Service

employees, checks, callback = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
service = Service(sys.argv[4:])
BATCH = 10


def item(number):
    # One employee in ten shares the account of the one before.
    account = number - 1 if number % 10 == 9 else number
    sheet = {
        "employee": number,
        "account": f"account-{account:05}",
        "cents_per_hour": 2500 + 137 * number % 6000,
        "minutes": [60 * 140 + (613 * number + 97 * month) % 3000 for month in range(checks)],
    }
    return {"payload": sheet, "dedupe_key": f"employee-{number}"}


def items(first, last):
    return [item(number) for number in range(first, last + 1)]


notice = {"employee": "$payload.employee", "month": "$payload.month", "cents": "$payload.cents", "receipt": "$.receipt"}
first = min(employees, 2 * BATCH)
tree = {
    "type": "calculatePayroll",
    "dedupe_key": "payroll",
    "max_failures_per_item": 3,
    "callback": {"url": callback},
    "items": items(1, first),
    "children": [{
        "type": "sendCheck",
        "max_failures_per_item": 3,
        "final_stage": True,
        "children": [{"type": "notify", "max_failures_per_item": 3, "feed": {"payload": notice}}],
    }],
}
try:
    root = service.call("/job", tree)["id"]
except Refused as refused:
    if refused.status != 409:
        raise
    root = refused.problem["job_id"]

begun = time.monotonic()
while not service.status(root)["children"][0]["succeeded"]:
    if time.monotonic() - begun > 120:
        sys.exit("no check was sent within 120 s")
    time.sleep(0.1)
print(f"the first check is sent, and {employees - first} of {employees} employees are still to come", file=sys.stderr)
for number in range(first + 1, employees + 1, BATCH):
    service.call(f"/job/{root}/items", {"items": items(number, min(employees, number + BATCH - 1))})
    time.sleep(0.2)
service.call(f"/job/{root}/seal", {})
print(root)
