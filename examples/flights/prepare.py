#!/usr/bin/env python3
"""Turns the flights (flights.csv or its zip) into JSON lines, a flight each: numbers as numbers, NA as null."""

import argparse
import csv
import io
import itertools
import json
import sys
import zipfile

TEXTS = {"carrier", "tailnum", "origin", "dest", "time_hour"}
SAMPLE_STEP = 336  # of 336,776 rows
SAMPLE_SIZE = 1000


def open_csv(path):
    if not path.endswith(".zip"):
        return open(path, encoding="utf-8", newline="")
    archive = zipfile.ZipFile(path)
    return io.TextIOWrapper(archive.open("flights.csv"), encoding="utf-8", newline="")


def value(field, text):
    if text == "NA":
        return None
    return text if field in TEXTS else int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="flights.csv or flights.csv.zip")
    parser.add_argument("-o", "--output", help="file to write; standard output without it")
    parser.add_argument("--sample", action="store_true", help=f"every {SAMPLE_STEP}th row only, {SAMPLE_SIZE} in all")
    args = parser.parse_args()

    output = open(args.output, "w", encoding="utf-8", newline="\n") if args.output else sys.stdout
    with open_csv(args.source) as source, output:
        rows = csv.DictReader(source)
        if args.sample:
            rows = itertools.islice(rows, 0, SAMPLE_STEP * SAMPLE_SIZE, SAMPLE_STEP)
        for row in rows:
            flight = {field: value(field, text) for field, text in row.items()}
            output.write(json.dumps(flight, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
