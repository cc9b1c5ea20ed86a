#!/usr/bin/env python3
"""Adds up the delays of flights (JSON lines) per carrier, to check what the handler added up."""

import argparse
import json
import pathlib
import sys

KEYS = ("carrier", "flights", "dep_delay", "arr_delay", "arr_delay_missing")


def add_up(lines):
    """The totals by carrier, and the number of cancelled flights."""
    totals, cancelled = {}, 0
    for line in lines:
        flight = json.loads(line)
        if flight["dep_time"] is None:
            cancelled += 1
            continue
        carrier = flight["carrier"]
        total = totals.setdefault(carrier, {"carrier": carrier, **dict.fromkeys(KEYS[1:], 0)})
        total["flights"] += 1
        total["dep_delay"] += flight["dep_delay"]
        if flight["arr_delay"] is None:
            total["arr_delay_missing"] += 1
        else:
            total["arr_delay"] += flight["arr_delay"]
    return totals, cancelled


def read_totals(folder):
    """The totals by carrier that the handler left in the folder."""
    files = (json.loads(path.read_text()) for path in pathlib.Path(folder).glob("*.json"))
    return {total["carrier"]: {key: total[key] for key in KEYS} for total in files}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flights", type=argparse.FileType(encoding="utf-8"), help="JSON lines; - for standard input")
    parser.add_argument("--compare", metavar="DIR", help="compare with the totals in this folder; exit 1 if they differ")
    args = parser.parse_args()

    expected, cancelled = add_up(args.flights)
    if args.compare is None:
        for carrier in sorted(expected):
            print(json.dumps(expected[carrier]))
        return 0

    actual = read_totals(args.compare)
    different = [c for c in sorted(expected.keys() | actual.keys()) if expected.get(c) != actual.get(c)]
    for carrier in different:
        print(f"{carrier}: expected {json.dumps(expected.get(carrier))}\n    found    {json.dumps(actual.get(carrier))}")
    counted = sum(total["flights"] for total in expected.values())
    print(f"{len(expected)} carriers, {counted} flights, {cancelled} cancelled: {len(different)} carriers differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
