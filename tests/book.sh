#!/usr/bin/env bash
# Builds the book into book/build, and fails if a link of its site leads nowhere. Installs mdBook for it the first time. Its commands, its
# reference and the links between its sources are tested by tests/book.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.5.4
root=$HOME/.cache/hostler/mdbook-$version
if ! [ -x "$root/bin/mdbook" ]; then
  # Without the caller's target and flags (tests/static.sh).
  (unset CARGO_BUILD_TARGET "${!CARGO_TARGET_@}" &&
    cargo install --debug mdbook --version "$version" --locked --no-default-features --root "$root")
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
rm -rf book/build
"$root/bin/mdbook" build book 2>&1 | tee "$log"
if grep -qE '\b(WARN|ERROR)\b' "$log"; then
  echo "mdBook warns of the book" >&2
  exit 1
fi
python3 tests/book/site.py book/build
