#!/usr/bin/env bash
# Checks the licences, sources and versions of all dependencies against deny.toml, and installs cargo-deny for it the first time. Known
# vulnerabilities are looked up too with --advisories, which asks the RustSec database on GitHub.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
root=$HOME/.cache/hostler/deny-$version
if ! [ -x "$root/bin/cargo-deny" ]; then
  # Without the caller's target and flags (tests/static.sh), and in a folder of its own, which goes again.
  (unset CARGO_BUILD_TARGET "${!CARGO_TARGET_@}" && cargo install --debug cargo-deny --version "$version" --locked --root "$root")
fi
checks=(bans licenses sources)
[ "${1:-}" != --advisories ] || checks+=(advisories)
"$root/bin/cargo-deny" --locked check --hide-inclusion-graph "${checks[@]}"
