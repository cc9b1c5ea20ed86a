#!/usr/bin/env bash
# hostler side by side with its peers: builds and installs what that takes, and measures. Arguments go to the comparison:
#   --quick                       a few seconds for each contender, to see that all of it works
#   --only bare,hostler-component which contenders
#   --concurrency 1,10,64         messages at a time
#   --latency 0,10                milliseconds that every call takes at least
#   --seconds 4                   how long is counted
#   --warm-up 10                  seconds from the first delete until it counts
#   --rounds 1                    how often, in turns; of each contender the one with the middle CPU time counts
#   --out FOLDER                  writes results.json, table.md and side-by-side.svg
#   --docs FOLDER                 puts the same into FOLDER/performance.md and FOLDER/images
#   --check                       fails if hostler misses a target
#   --loud                        shows what the contenders say
# run.sh --turns compares a few closely: all run all the while, and take turns, of --seconds (0.5) each, for so many --rounds (100);
# what they take is told as parts of what the first takes. By default hostler without telemetry, twice, and with it: six minutes.
# It also knows --only, --concurrency (64), --quick, --loud, and --check, which fails if hostler with telemetry settles less than 95 %.
# run.sh --growth shows instead how what hostler takes grows with slots, bodies and consumers, without any peers: about ten
# minutes after the builds. It knows --quick, --seconds, --warm-up, --rounds (3), --out (growth.json, growth.md), --docs and
# --loud, and --only slots,bodies,consumers.
# HOSTLER_BIN and HOSTLER_BARE name other builds of hostler and of the bare loop; by default both are the plain release.
# HOSTLER_BENCH_PEERS says where the peers are installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cd "$root"
# shellcheck source=../../tests/static.sh
source tests/static.sh
target=${CARGO_TARGET_DIR:-$root/target}
mkdir -p "$target/side-by-side"
target=$(cd "$target" && pwd)
build_all
# Another build of both, optimised as one says: see benches/release.sh.
hostler=${HOSTLER_BIN:-$release/hostler}
bare=${HOSTLER_BARE:-$release/side-by-side}

# handler PACKAGE TARGET NAME: builds a handler, and compiles it for this machine.
handler() {
  [ -d "$(rustc --print target-libdir --target "$2")" ] || rustup target add "$2"
  CARGO_TARGET_DIR=$target/side-by-side cargo build --release --locked --manifest-path "$here/handlers/Cargo.toml" \
    --package "$1" --target "$2"
  "$hostler" compile --output "$target/side-by-side/$3.cwasm" "$target/side-by-side/$2/release/$1.wasm"
}
handler component wasm32-wasip2 component
handler component wasm32-unknown-unknown plain
handler command wasm32-wasip1 command

# The peers, unless none of them is compared.
peers=()
case " $* " in
  *" --growth "* | *" --turns "* | *" --only "*) compared="$*" ;;
  *) compared=boto3 ;;
esac
case "$compared" in
  *sqs-consumer* | *boto3* | *celery*) peers=(--peers "$("$here/peers.sh")") ;;
esac
exec "$release/side-by-side" --hostler "$hostler" --bare "$bare" \
  --handlers "$target/side-by-side" --package "$here" ${peers[@]+"${peers[@]}"} "$@"
