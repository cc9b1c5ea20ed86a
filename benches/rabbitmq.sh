# Sourced by benches that need a RabbitMQ server of their own. tests/servers.sh installs it.
# shellcheck shell=bash

rabbitmq_version=3.10.8
rabbitmq=${HOSTLER_TEST_SERVERS:-$HOME/.cache/hostler/servers}/rabbitmq

# Starts a server, waits until it is ready, and sets `amqp`, its URL, `rabbitmq_server`, its process, and `rabbitmq_data`, its folder.
# `end_rabbitmq` ends it.
start_rabbitmq() {
  local port distribution names
  [ -e "$rabbitmq/pins" ] || { echo "RabbitMQ is not installed: run tests/servers.sh" >&2 && return 1; }
  rabbitmq_data=$(mktemp -d)
  read -r port distribution names < <(free_ports)
  amqp=amqp://guest:guest@127.0.0.1:$port
  printf '%s\n' "listeners.tcp.1 = 127.0.0.1:$port" "vm_memory_high_watermark.relative = 0.6" >"$rabbitmq_data/rabbitmq.conf"
  echo '[].' >"$rabbitmq_data/plugins"
  rabbitmq_env=(HOME="$rabbitmq_data" RABBITMQ_NODENAME="bench$port@localhost" RABBITMQ_DIST_PORT="$distribution"
    ERL_EPMD_PORT="$names" ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_MNESIA_BASE="$rabbitmq_data/data"
    RABBITMQ_LOG_BASE="$rabbitmq_data/log" RABBITMQ_PID_FILE="$rabbitmq_data/pid"
    RABBITMQ_CONFIG_FILE="$rabbitmq_data/rabbitmq.conf" RABBITMQ_ENABLED_PLUGINS_FILE="$rabbitmq_data/plugins"
    PATH="$rabbitmq/usr/lib/erlang/bin:/usr/sbin:/usr/bin:/sbin:/bin")
  # The server would start the name service beyond the reach of this shell. So both are in a process group of their own.
  # shellcheck disable=SC2016
  env -i "${rabbitmq_env[@]}" setsid sh -c 'epmd -port "$0" -address 127.0.0.1 & exec "$1"' \
    "$names" "$(rabbitmq_program rabbitmq-server)" >"$rabbitmq_data/output" 2>&1 &
  rabbitmq_group=$!
  # The port does not tell: a client that asks for a free one before the server listens may get this one, and reach itself.
  until grep -qs "Server startup complete" "$rabbitmq_data"/log/*.log; do
    kill -0 "$rabbitmq_group" || { tail "$rabbitmq_data/output" >&2 && return 1; }
    sleep 0.2
  done
  # The group's leader is a shell, which waits for the server.
  rabbitmq_server=$(<"$rabbitmq_data/pid")
}

# Ends the server, if it was started, and removes its folder.
end_rabbitmq() {
  if [ -n "${rabbitmq_group:-}" ]; then
    kill -KILL -- "-$rabbitmq_group" 2>/dev/null || true
    wait "$rabbitmq_group" 2>/dev/null || true
  fi
  rm -rf "${rabbitmq_data:-}"
}

rabbitmqctl() { env -i "${rabbitmq_env[@]}" "$(rabbitmq_program rabbitmqctl)" "$@"; }

rabbitmq_program() { echo "$rabbitmq/usr/lib/rabbitmq/lib/rabbitmq_server-$rabbitmq_version/sbin/$1"; }

# Three ports that are free now.
free_ports() {
  python3 -c 'import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(socket.getsockname()[1] for socket in sockets))'
}
