#!/usr/bin/env bash
# Builds hostler for maximum performance: optimised across crates, and with profile-guided optimisation (PGO). First builds hostler with
# counters, then runs the comparison to record a profile, and then builds hostler again, all from this commit. Takes about an hour on two
# cores. Prints the paths of the binary and of the program with the bare loop (`bare`), which is also optimised across crates.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=../tests/static.sh
source tests/static.sh
target=${CARGO_TARGET_DIR:-$PWD/target}
flags=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$CARGO_BUILD_TARGET")_RUSTFLAGS
static=${!flags}
export CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1

# build FOLDER PACKAGE [FLAG…]: builds in a separate folder, because other flags need other builds of the dependencies.
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
# Each process writes a separate file.
(unset CARGO_PROFILE_RELEASE_LTO CARGO_PROFILE_RELEASE_CODEGEN_UNITS
 HOSTLER_BIN=$counting LLVM_PROFILE_FILE=$counted/%p.profraw bash benches/side-by-side/run.sh --concurrency 1,10,64 --latency 0 \
   --warm-up 2 --seconds 3 --only hostler-component,hostler-plain,hostler-command,hostler-traces) >&2

# One host per contender and concurrency, and short-lived processes. A host that is killed leaves an empty file.
files=("$counted"/*.profraw)
[ ${#files[@]} -ge 12 ] && [ -z "$(find "$counted" -name '*.profraw' -empty)" ] ||
  { echo "not all hosts wrote down what they counted:" >&2 && ls -l "$counted" >&2 && exit 1; }
"$tools/llvm-profdata" merge --sparse --output "$target/hostler.profdata" "${files[@]}"
build pgo hostler "-Cprofile-use=$target/hostler.profdata" -Cllvm-args=-no-pgo-warn-mismatch
build pgo side-by-side
