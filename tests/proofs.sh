#!/usr/bin/env bash
# What takes too long for every change, and is run before a release or after work on what it proves: proofs.sh [NAME…], all of them by
# default, hours in all. book/src/reliability.md says what each shows. proofs.sh --quick [NAME…] runs a form of each that takes
# under a minute once hostler is built, which shows that it still works; .ci/run does.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=static.sh
source tests/static.sh

quick=
if [ "${1:-}" = --quick ]; then quick=1 && shift; fi
names=("$@")
[ $# -gt 0 ] || names=(faults jobs-faults jobs-api fuzzing damaged soak instructions sandbox languages embedded head-of-queue cluster rabbitmq-4
  retry retry-kills neighbour overshoot side-by-side telemetry year day jobs jobs-peers image)

proof() {
  case $1 in
    # Planted faults, each found by the simulation.
    faults) bash tests/mutants.sh ${quick:+--quick} ;;
    # Planted faults in the transactions of the job service, each found by scripted schedules or by runs beside a model; minutes.
    jobs-faults) [ "$quick" ] || cargo test --release --workspace --locked --test seeds -- faults_planted_in_the_schema --ignored --nocapture ;;
    # The API of the job service against its own OpenAPI document, by schemathesis, which it installs; a quarter of an hour.
    jobs-api)
      if [ -z "$quick" ]; then
        [ -n "${HOSTLER_BIN:-}" ] || cargo build --release --workspace --locked --bin hostler
        bash tests/jobs-api.sh
      fi ;;
    # Every parser of what comes from outside, under the address sanitizer, which needs a build of its own: no shorter form.
    fuzzing) [ "$quick" ] || bash tests/fuzz.sh 200 ;;
    # 200 truncations and 200 flips of the handler that each template builds, all of the flips compiled: more than an hour. The tests do
    # the same with a part of them compiled.
    damaged) [ "$quick" ] || HOSTLER_DAMAGED=whole cargo test --release --workspace --locked --test all -- _projects_work --nocapture ;;
    # A host over each driver, with bursts, faults and restarts, and an account of every message; minutes.
    soak) bash tests/soak.sh "$([ "$quick" ] && echo 1 || echo 60)" ;;
    # Instructions of the hot paths, compared with benches/instructions.tsv.
    instructions) bash benches/instructions.sh ${quick:+--quick} ;;
    # A fresh sandbox stays cheap, and a hundred thousand of them take no memory.
    sandbox) if [ "$quick" ]; then MESSAGES=2000 bench sandbox; else bench sandbox; fi ;;
    # The same for JavaScript and Python. The tests build and run both, so it has no shorter form.
    languages) [ "$quick" ] || bash benches/languages.sh ;;
    # Throughput of the embedded queue.
    embedded) if [ "$quick" ]; then MESSAGES=2000 BACKLOG=20000 ROUNDS=1 bench embedded; else bench embedded; fi ;;
    # Messages that can never be processed hold up no others on RabbitMQ, beside a consumer that requeues them. The tests do the same
    # without that consumer, so it has no shorter form.
    head-of-queue) [ "$quick" ] || bench head_of_queue ;;
    # The leader of a RabbitMQ cluster is killed while a host drains a backlog, which pauses for less than 15 s. It needs a quiet
    # machine; the tests run it without that bound.
    cluster) [ "$quick" ] || HOSTLER_PAUSE=15 cargo test --release --workspace --locked --test all -- a_cluster_loses --nocapture ;;
    # The tests of RabbitMQ's driver on RabbitMQ 4, which CI's Debian does not have. It needs root, and downloads a system.
    rabbitmq-4) [ "$quick" ] || bash tests/rabbitmq-4.sh cargo test --release --workspace --locked --test all -- conformance::drivers::rabbitmq rabbitmq:: ;;
    # The rates of the retry service. Ten million messages take 20 GB, and a quarter of an hour.
    retry) [ "$quick" ] || bash benches/retry.sh ;;
    # Instances of the retry service are killed a hundred times while 200,000 messages pass. The tests do the same with fewer.
    retry-kills) [ "$quick" ] || HOSTLER_MESSAGES=200000 HOSTLER_KILLS=100 cargo test --release --workspace --locked --test all -- killed_instances_lose --nocapture ;;
    # A neighbour of each hostile guest keeps four fifths of its throughput. It needs a quiet machine, and has no shorter form.
    neighbour) [ "$quick" ] || HOSTLER_KEPT=0.8 cargo test --release --workspace --locked --test all -- neighbour_keeps_its_throughput --nocapture ;;
    # A guest that writes to 512 MiB at once is stopped within 50 ms and a tick. It needs a quiet machine; the tests run it without a bound.
    overshoot) [ "$quick" ] || HOSTLER_OVERSHOOT=60 cargo test --release --workspace --locked --test all -- overshoot --nocapture ;;
    # hostler beside a bare loop and its peers, on SQS, RabbitMQ and NATS; the part of the throughput that telemetry leaves.
    side-by-side)
      if [ "$quick" ]; then
        bash benches/side-by-side/run.sh --quick --only bare,hostler-component,hostler-plain --concurrency 10 --latency 0
        bash benches/side-by-side/run.sh --rabbitmq --quick --only bare-multiple,hostler-plain --concurrency 10
        bash benches/side-by-side/run.sh --nats --quick --only bare-ack,hostler-plain --concurrency 10
      else
        bash benches/side-by-side/run.sh --check
        bash benches/side-by-side/run.sh --rabbitmq --check
        bash benches/side-by-side/run.sh --nats --check
      fi ;;
    telemetry) bash benches/side-by-side/run.sh --turns "$([ "$quick" ] && echo --quick || echo --check)" ;;
    # The flights of a year, end to end; or the sample's.
    year) bash examples/flights/full.sh ${quick:+examples/flights/sample.jsonl} ;;
    # A day of job applications from RabbitMQ, with failures that escalate, in less than six minutes.
    day) bash benches/day.sh ${quick:+--quick} ;;
    # The job service over HTTP beside PostgreSQL: its rates, a tree of a million items, serialize keys, a pinned snapshot, and an hour
    # in which no table bloats. It needs a quiet machine.
    jobs) bash benches/jobs.sh ${quick:+--quick} ;;
    # Other job queues on PostgreSQL with the same items.
    jobs-peers) bash benches/jobs/peers-run.sh ${quick:+--quick} ;;
    # The whole Dockerfile, when what it depends on has changed since it was last seen to build.
    image)
      if [ -z "$quick" ] || [ "$(bash tests/image-key.sh)" != "$(cat tests/image.built 2>/dev/null)" ]; then
        bash tests/engine.sh bash tests/image.sh --from-scratch || [ $? = 77 ]
      fi ;;
    *) echo "no proof has the name $1" >&2 && exit 2 ;;
  esac
}

bench() { cargo bench --workspace --bench "$1" --locked; }

for name in "${names[@]}"; do
  begin=$SECONDS
  printf '\n-- %s\n' "$name"
  proof "$name"
  printf -- '-- %s: %s s\n' "$name" $((SECONDS - begin))
done
