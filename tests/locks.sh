#!/usr/bin/env bash
# Packages with a lock file of their own have the versions that hostler itself is built with: locks.sh FOLDER...
set -euo pipefail
cd "$(dirname "$0")/.."

versions() { awk -F'"' '/^name = /{name=$2} /^version = /{print name, $2}' "$1" | sort -u; }
for folder; do
  # A crate of which it lacks a version that hostler has, and has another one.
  apart=$(join -j 1 \
    <(comm -13 <(versions Cargo.lock) <(versions "$folder/Cargo.lock") | sort -k 1,1) \
    <(comm -23 <(versions Cargo.lock) <(versions "$folder/Cargo.lock") | sort -k 1,1))
  [ -z "$apart" ] || {
    printf '%s/Cargo.lock differs from Cargo.lock; copy that one over it, and build:\n%s\n' "$folder" "$apart" >&2
    exit 1
  }
done
