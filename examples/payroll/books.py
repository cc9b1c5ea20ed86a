"""Balances the books of a payroll: books.py FOLDER ROOT EMPLOYEES CHECKS SERVER... FOLDER has the files of bank.py and of worker.py.

Fails if a rule does not hold.
"""

import json
import os
import sys
from collections import Counter, defaultdict

from service import Service

folder, root, employees, checks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
service = Service(sys.argv[5:])


def lines(name):
    path = f"{folder}/{name}"
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


def levels(status):
    return [status] + [level for child in status["children"] for level in levels(child)]


def cents(items):
    return sum(item["payload"]["cents"] for item in items)


def by_state(items, state):
    return [item for item in items if item["state"] == state]


def of_employees(items):
    """Returns the number of checks of each employee."""
    return Counter(item["payload"]["employee"] for item in items)


def amount(number):
    return f"{number // 100:,}.{number % 100:02}"


def is_in_order(keys, attempts):
    """Returns whether the attempts at an account's checks have the order of the checks, and none was at work beside another."""
    places = [keys[attempt["key"]] for attempt in attempts]
    return places == sorted(places) and not any(attempt["beside"] for attempt in attempts)


status = service.status(root)
tree = levels(status)
items = [service.items(job_id=level["id"]) for level in tree]
sheets, drafts, _ = items
ledger, notices, callbacks = lines("ledger"), lines("notices"), lines("callbacks")

print(f"{'LEVEL':18} {'ADDED':>6} {'SUCCEEDED':>9} {'FAILED':>6} {'ATTEMPTS':>8}")
for depth, (level, own) in enumerate(zip(tree, items)):
    attempts = sum(len(item["failures"]) for item in own) + level["succeeded"]
    name = "  " * depth + level["type"]
    print(f"{name:18} {level['added']:>6} {level['succeeded']:>9} {level['failed']:>6} {attempts:>8}")

# The money: by the results of the first level, by the checks of the second, and by the bank.
sent, refused = by_state(drafts, "succeeded"), by_state(drafts, "failed")
paid = [attempt for attempt in ledger if attempt["outcome"] == "paid"]
calculated = sum(sheet["result"]["cents"] for sheet in by_state(sheets, "succeeded"))
booked = sum(payment["cents"] for payment in paid)
print()
for name, sum_of in [("calculated", calculated), ("sent", cents(sent)), ("refused", cents(refused)), ("paid by the bank", booked)]:
    print(f"{name:18} {amount(sum_of):>16}")

# The checks at the bank, by their keys and by their accounts.
payments = Counter(payment["key"] for payment in paid)
accounts, attempts = defaultdict(list), defaultdict(list)
for check in drafts:
    accounts[check["payload"]["account"]].append(check["id"])
for attempt in ledger:
    attempts[attempt["account"]].append(attempt)
places = {key: place for keys in accounts.values() for place, key in enumerate(keys)}
ordered = [account for account in accounts if is_in_order(places, attempts[account])]
outcomes = Counter(attempt["outcome"] for attempt in ledger)
told = Counter((notice["employee"], notice["month"], notice["receipt"]) for notice in notices)
expected = {(check["payload"]["employee"], check["payload"]["month"], check["result"]["receipt"]) for check in sent}
genuine = [callback for callback in callbacks if callback["genuine"]]
counts = ["type", "complete", "added", "succeeded", "failed", "pending"]
reported = [[[level[count] for count in counts] for level in levels(callback["status"])] for callback in genuine]

kinds = ", ".join(f"{outcomes[kind]} {kind}" for kind in ["paid", "busy", "refused", "repeated"])
print(f"\nattempts at the bank: {kinds}")
print(f"accounts: {len(accounts)}, with up to {max(map(len, accounts.values()), default=0)} checks each")
print(f"notices: {len(notices)}, of which {len(notices) - len(told)} were repeated\n")

sealed = all(level["sealed"] and level["complete"] and level["pending"] == 0 for level in tree)
rules = [
    ("the tree is complete at all three levels", status["tree_complete"] and sealed and len(tree) == 3),
    ("every employee is calculated", len(by_state(sheets, "succeeded")) == employees == tree[0]["added"]),
    ("every employee has all checks", of_employees(drafts) == Counter({number: checks for number in range(1, employees + 1)})),
    ("only the checks of one employee are refused", list(of_employees(refused).values()) == [checks]),
    ("calculated = sent + refused", calculated == cents(sent) + cents(refused)),
    ("the bank paid as much as was sent", booked == cents(sent)),
    ("every check that was sent is paid once, and no other", payments == Counter(check["id"] for check in sent)),
    ("every receipt is of one check", len({check["result"]["receipt"] for check in sent}) == len(sent)),
    ("every account got its checks one after another, in order", len(ordered) == len(accounts) > 1),
    ("every check that was sent has its notice", set(told) == expected and tree[2]["succeeded"] == len(sent)),
    ("the callback came once, with a good signature", len(callbacks) == len(genuine) == 1),
    ("the callback has the counts of the tree", reported == [[[level[count] for count in counts] for level in tree]]),
]
for rule, holds in rules:
    print(f"{'ok   ' if holds else 'WRONG'} {rule}")
if not all(holds for _, holds in rules):
    sys.exit("THE BOOKS DO NOT BALANCE")
print("the books balance")
