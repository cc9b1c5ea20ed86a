#!/usr/bin/env bash
# Compares hostler with its peers on SQS: builds and installs everything needed, and measures. Arguments are passed to the comparison:
#   --quick                       measures each contender for a few seconds, to check that all of them work
#   --only bare,hostler-component sets the contenders
#   --concurrency 1,10,64         sets the numbers of concurrent messages
#   --latency 0,10                sets the minimum durations of every call in milliseconds
#   --seconds 4                   sets the duration of the measurement
#   --warm-up 10                  sets the seconds from the first delete to the measurement
#   --rounds 1                    sets the number of rounds; the measurement with the median CPU time counts
#   --out FOLDER                  writes results.json, table.md and side-by-side.svg
#   --docs FOLDER                 writes the same results into FOLDER/performance-data.md and FOLDER/images
#   --check                       fails if hostler misses a target
#   --loud                        shows the output of the contenders
# run.sh --turns compares a few contenders closely. All run at the same time and take turns of --seconds (0.5) each, for --rounds (100)
# rounds. Results are relative to the first contender. Default: hostler without telemetry twice, and with telemetry, in six minutes.
# Other arguments: --only, --concurrency (64), --quick, --loud, and --check, which fails if hostler with telemetry settles less than 95 %.
# run.sh --growth measures how hostler's cost grows with slots, bodies and consumers, without peers. Takes about ten minutes after the
# builds. Other arguments: --quick, --seconds, --warm-up, --rounds (3), --out (growth.json, growth.md), --docs, --loud, and
# --only slots,bodies,consumers.
# run.sh --rabbitmq compares consumers of a RabbitMQ server, which it starts: bare loops over lapin, hostler and Celery. Takes about
# ten minutes after the builds. Other arguments: --quick, --concurrency (10,64), --rounds (5), --seconds (2), --warm-up (1), --backlog,
# --docs, --check, --loud, and --only bare-multiple,bare-each,hostler-plain,hostler-component,celery.
# run.sh --nats compares consumers of a NATS server in the same way: bare loops over async-nats, hostler and nats-py. Other arguments: as
# of --rabbitmq, and --only bare-ack,bare-confirmed,hostler-plain,hostler-component,hostler-command,nats-py.
# HOSTLER_BIN and HOSTLER_BARE name other builds of hostler and of the bare loop. Default: the plain release builds.
# HOSTLER_BENCH_PEERS names the folder of the peers.
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
# Other builds of both programs, for example with other optimisations: see benches/release.sh.
hostler=${HOSTLER_BIN:-$release/hostler}
bare=${HOSTLER_BARE:-$release/side-by-side}

# handler PACKAGE TARGET NAME: builds a handler and compiles it for this machine.
handler() {
  [ -d "$(rustc --print target-libdir --target "$2")" ] || rustup target add "$2"
  CARGO_TARGET_DIR=$target/side-by-side cargo build --release --locked --manifest-path "$here/handlers/Cargo.toml" \
    --package "$1" --target "$2"
  "$hostler" compile --output "$target/side-by-side/$3.cwasm" "$target/side-by-side/$2/release/$1.wasm"
}
handler component wasm32-wasip2 component
handler component wasm32-unknown-unknown plain
handler command wasm32-wasip1 command

# Installs the peers, unless the comparison includes none of them.
peers=()
case " $* " in
  *" --growth "* | *" --turns "* | *" --only "*) compared="$*" ;;
  *" --rabbitmq "*) compared=celery ;;
  *" --nats "*) compared=nats-py ;;
  *) compared=boto3 ;;
esac
case " $* $compared " in
  *" --rabbitmq "*celery*) peers=(--peers "$("$here/peers.sh" celery)") ;;
  *" --nats "*nats-py*) peers=(--peers "$("$here/peers.sh" nats)") ;;
  *" --nats "*) ;;
  *sqs-consumer* | *boto3* | *celery*) peers=(--peers "$("$here/peers.sh")") ;;
esac

compare=("$release/side-by-side" --hostler "$hostler" --bare "$bare" --handlers "$target/side-by-side" --package "$here"
  ${peers[@]+"${peers[@]}"})
case " $* " in
  *" --rabbitmq "*)
    # shellcheck source=../rabbitmq.sh
    source benches/rabbitmq.sh
    trap end_rabbitmq EXIT
    start_rabbitmq
    # The flag gets its value: the server's URL.
    arguments=(--server "$rabbitmq_version")
    for argument in "$@"; do
      arguments+=("$argument")
      [ "$argument" != --rabbitmq ] || arguments+=("$amqp")
    done
    "${compare[@]}" "${arguments[@]}" ;;
  *" --nats "*)
    # shellcheck source=../nats.sh
    source benches/nats.sh
    trap end_nats EXIT
    start_nats -js
    # The flag gets its value: the server's URL.
    arguments=(--server "$("$nats" --version | sed 's/.*v//')" --bare-nats "$release/examples/bare")
    for argument in "$@"; do
      arguments+=("$argument")
      [ "$argument" != --nats ] || arguments+=("$nats_url")
    done
    "${compare[@]}" "${arguments[@]}" ;;
  *) exec "${compare[@]}" "$@" ;;
esac
