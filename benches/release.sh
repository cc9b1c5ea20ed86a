#!/usr/bin/env bash
# Builds hostler for whoever wants the last tenths: optimised across crates, and by what a worker was seen to run how often (PGO). Builds
# it so that it counts what it runs, trains it in the comparison, and builds it again, all from this commit: about an hour on two cores.
# Prints where the binary lies, and beside it the bare loop, built across crates as well (`bare`).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=../tests/static.sh
source tests/static.sh
target=${CARGO_TARGET_DIR:-$PWD/target}
flags=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$CARGO_BUILD_TARGET")_RUSTFLAGS
static=${!flags}
export CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1

# build FOLDER PACKAGE [FLAG…]: in a folder of its own, as other flags make other dependencies.
build() {
  local folder=$1 package=$2
  shift 2
  env CARGO_TARGET_DIR="$target/$folder" "$flags=$static $*" cargo build --release --locked --package "$package" --bins >&2
  echo "$target/$folder/$CARGO_BUILD_TARGET/release/$package"
}

tools=$(rustc --print sysroot)/lib/rustlib/$CARGO_BUILD_TARGET/bin
[ -x "$tools/llvm-profdata" ] || rustup component add llvm-tools >&2

counted=$(mktemp -d)
trap 'rm -rf "$counted"' EXIT
counting=$(build pgo-train hostler -Cprofile-generate)
# A file for each process.
(unset CARGO_PROFILE_RELEASE_LTO CARGO_PROFILE_RELEASE_CODEGEN_UNITS
 HOSTLER_BIN=$counting LLVM_PROFILE_FILE=$counted/%p.profraw bash benches/side-by-side/run.sh --concurrency 1,10,64 --latency 0 \
   --warm-up 2 --seconds 3 --only hostler-component,hostler-plain,hostler-command,hostler-traces) >&2

# A host for each contender and concurrency, and what ran for a moment. A host that is killed leaves its file empty.
files=("$counted"/*.profraw)
[ ${#files[@]} -ge 12 ] && [ -z "$(find "$counted" -name '*.profraw' -empty)" ] ||
  { echo "not all hosts wrote down what they counted:" >&2 && ls -l "$counted" >&2 && exit 1; }
"$tools/llvm-profdata" merge --sparse --output "$target/hostler.profdata" "${files[@]}"
build pgo hostler "-Cprofile-use=$target/hostler.profdata" -Cllvm-args=-no-pgo-warn-mismatch
build pgo side-by-side
