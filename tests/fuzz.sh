#!/usr/bin/env bash
# Fuzzes every target of fuzz/ for so many seconds: fuzz.sh [SECONDS [FOLDER]]. What was found on the way is kept in FOLDER for
# the next run, if one is named. Fails on a crash, a hang of 10 s, a leak, or more than 2 GiB of memory. TARGETS="config health"
# names those that run; all by default. Installs what it needs; once that is there and built, it needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-20}
keep=${2:-}
toolchain=${HOSTLER_FUZZ_TOOLCHAIN:-nightly}
cargo_fuzz=0.13.2
build=${HOSTLER_FUZZ_TARGET_DIR:-$HOME/.cache/hostler/fuzz}
root=${HOSTLER_TEST_TOOLCHAINS:-$HOME/.cache/hostler/toolchains}
read -ra targets <<<"${TARGETS:-$(basename -s .rs fuzz/fuzz_targets/*.rs | xargs)}"

command -v c++ >/dev/null || bash -c 'root=$1; source tests/install.sh; apt build-essential' _ "$root"
rustup run "$toolchain" rustc --version >/dev/null 2>&1 || rustup toolchain install "$toolchain" --profile minimal >&2
[ "$("$root/bin/cargo-fuzz" --version 2>/dev/null)" = "cargo-fuzz $cargo_fuzz" ] ||
  cargo install cargo-fuzz --version "$cargo_fuzz" --locked --root "$root" >&2

echo "building ${#targets[@]} targets: the first time takes as long as a release" >&2
export CARGO_TARGET_DIR=$build PATH=$root/bin:$PATH RUSTUP_TOOLCHAIN=$toolchain RUSTC_WRAPPER=$PWD/fuzz/rustc.sh
# A build takes as long as a run: just enough optimisation for the sanitizer's runs.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_DEBUG=line-tables-only CARGO_PROFILE_RELEASE_STRIP=none
cargo fuzz build --sanitizer address >"$build.log" 2>&1 || {
  tail -n 40 "$build.log" >&2
  exit 1
}

# The targets that read files write them first: into memory, where there is such a place.
TMPDIR=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
binaries=$build/$(rustc -vV | sed -n 's/^host: //p')/release
failures=$build/failures
mkdir -p "$failures"

failed=()
printf '%-10s %12s %9s %9s %9s %8s\n' target runs runs/s coverage features corpus
for target in "${targets[@]}"; do
  found=${keep:-$TMPDIR/corpus}/$target
  log=$build/$target.log
  mkdir -p "$found"
  options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1
    -artifact_prefix="$failures/$target-")
  [ ! -e "fuzz/dictionaries/$target.dict" ] || options+=(-dict="fuzz/dictionaries/$target.dict")
  "$binaries/$target" "${options[@]}" "$found" "fuzz/corpus/$target" >"$log" 2>&1 || failed+=("$target")
  awk -v target="$target" '
    / cov: / { for (i = 1; i < NF; i++) { if ($i == "cov:") cov = $(i + 1); if ($i == "ft:") ft = $(i + 1)
                                          if ($i == "corp:") corpus = $(i + 1) } }
    /^stat::number_of_executed_units:/ { runs = $2 }
    /^stat::average_exec_per_sec:/ { rate = $2 }
    END { sub("/.*", "", corpus); printf "%-10s %12s %9s %9s %9s %8s\n", target, runs, rate, cov, ft, corpus }' "$log"
done

[ ${#failed[@]} = 0 ] || {
  for target in "${failed[@]}"; do
    printf '\n*** %s FAILED ***\n' "$target"
    grep -vE '^(#|INFO|stat::|Done)' "$build/$target.log" | tail -n 40
    echo "again: $binaries/$target $failures/$target-…"
  done >&2
  exit 1
}
