#!/usr/bin/env bash
# Ten minutes of soak, once for each state of what it tests: soak.sh [MINUTES]. What has passed is remembered beside the test servers,
# by the contents of the sources.
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:-10}
passed=${HOSTLER_SOAKED:-$HOME/.cache/hostler/soaked}
contents=$(git ls-files -z src benches/soak Cargo.toml Cargo.lock build.rs | sort -z | xargs -0 sha256sum | sha256sum)
stamp=$passed/${contents%% *}-$minutes
if [ -e "$stamp" ]; then
  echo "these sources have been through a soak of $minutes min: $(cat "$stamp")"
  exit 0
fi

report=$(mktemp -d)
trap 'rm -rf "$report"' EXIT
cargo bench --bench soak --locked -- --minutes "$minutes" --out "$report"
mkdir -p "$passed"
date -u +%FT%TZ >"$stamp"
