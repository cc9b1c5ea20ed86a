#!/usr/bin/env bash
# Makes the profile that build.sh optimises by: hostler, built so that it counts what it runs, consumes the comparison's queue for
# some seconds at each concurrency, without and with telemetry. To be run when the dependencies or Rust change, or much of the hot
# path. It takes half an hour, and more on a busy machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
architecture=$(uname -m)

tools=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin
[ -x "$tools/llvm-profdata" ] || rustup component add llvm-tools

counted=$(mktemp -d)
trap 'rm -rf "$counted"' EXIT
# What counts is built apart, or cargo would build all dependencies again each time.
HOSTLER_BIN=$(CARGO_TARGET_DIR=$target/pgo bash "$here/build.sh" --train)
export HOSTLER_BIN
# A file for each process.
export LLVM_PROFILE_FILE=$counted/%p.profraw
bash "$here/../side-by-side/run.sh" --concurrency 1,10,64 --latency 0 --warm-up 2 --seconds 3 \
  --only hostler-component,hostler-plain,hostler-command,hostler-traces

# A host for each contender and concurrency, and what ran for a moment. Who is killed leaves its file as empty as it began.
files=("$counted"/*.profraw)
[ ${#files[@]} -ge 12 ] && [ -z "$(find "$counted" -empty)" ] ||
  { echo "not all hosts wrote down what they counted:" >&2 && ls -l "$counted" >&2 && exit 1; }
# Without what never ran, or it would be many times as large.
"$tools/llvm-profdata" merge --sparse --output "$here/$architecture.profdata" "${files[@]}"
bash "$here/of.sh" > "$here/$architecture.profdata.of"
