"""Balances the books of day.sh: day.py MESSAGES LOG QUEUES. LOG has a line for each settlement, QUEUES the server's own counts."""

import json
import sys
from collections import Counter

sent, log, queues = int(sys.argv[1]), sys.argv[2], sys.argv[3]

# Attempts of each message up to now, and its end.
attempts, ends, faults = [0] * sent, [None] * sent, Counter()
begun = False
for line in map(json.loads, open(log)):
    if line["message"] != "settled":
        # Warnings before are of the machine.
        begun = begun or line["message"] == "consuming"
        faults[line["message"]] += begun and line["level"] in ("WARN", "ERROR")
        continue
    number = int(line["message_id"])
    attempts[number] += 1
    faults["settled after its end"] += ends[number] is not None
    faults["another attempt than the next"] += line["attempt"] != attempts[number]
    if line["disposition"] != "release":
        ends[number] = line["disposition"]

SUCCEEDS_AT = {0: 2, 1: 2, 2: 4, 3: 4}
for number, (count, end) in enumerate(zip(attempts, ends)):
    expected = (5, "dead-letter") if number % 100 == 4 else (SUCCEEDS_AT.get(number % 100, 1), "ack")
    faults[f"{count} attempts and {end} for {expected[0]} and {expected[1]}"] += (count, end) != expected

counted = {name: int(count) for name, count in (line.split() for line in open(queues))}
dead = counted.pop("applications-dlq")
ended = Counter(ends)
print(f"handled    {ended['ack']}, dead-lettered {ended['dead-letter']}, in {sum(attempts)} attempts")
print(f"server     {dead} in the dead-letter queue, {sum(counted.values())} in all others")
faults["messages between the two counts of dead letters"] += abs(dead - ended["dead-letter"])
faults["messages that are left on the server"] += sum(counted.values())
faults["messages without an end"] += sent - ended["ack"] - ended["dead-letter"]
for fault, times in (+faults).items():
    print(f"FAULT      {fault}: {times}")
sys.exit(bool(+faults))
