#!/usr/bin/env bash
# Fails if a Rust file of the workspace is compiled by nothing: a test in it would never run. Run it after build_all, which leaves lists of
# what went into each crate.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=static.sh
source tests/static.sh

# Handlers and guests are packages of their own, built by the tests that run them; build scripts are listed elsewhere.
foreign='^(tests/(guests|languages|hostile/guest|tcp/guest|porting)|benches/side-by-side/handlers)/|(^|/)build\.rs$'
# .ci/run touches all sources before it builds: older lists are of another tree.
compiled=$(find "$release/deps" "$release/examples" -name '*.d' -newer build.rs -exec cat {} + |
  grep -oE "[^ :]+\.rs" | sed -E "s#^$PWD/##; s#[^/]+/\.\./##g" | sort -u)
missing=$(git ls-files 'src/*.rs' 'crates/*.rs' 'tests/*.rs' 'benches/*.rs' | grep -vE "$foreign" | sort -u | comm -23 - <(echo "$compiled"))
if [ -n "$missing" ]; then
  printf 'compiled by nothing, so that no test in them runs:\n%s\n' "$missing" >&2
  exit 1
fi
