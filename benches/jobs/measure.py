"""Takes the times of a contender, or prints the table of those that were taken.

measure.py RESULTS NAME BATCH ITEMS COMMAND...  runs a command that prints the lines `ready`, `added` and `processed`
measure.py RESULTS                              prints the table, and where the first contender is behind

Each row of RESULTS is JSON. CPU time is that of the command (client) and of the processes in POSTGRES_PID and HOSTLER_PID (server).
"""

import json
import os
import subprocess
import sys
import time

MARKS = ["ready", "added", "processed"]
TICKS = os.sysconf("SC_CLK_TCK")


def own_ticks(pid: int) -> int:
    """Returns the CPU time of a process and of its children that have ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            # The name, in parentheses, may contain spaces.
            return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:15]))
    except FileNotFoundError:
        return 0


def seconds(pid: int) -> float:
    """Returns the CPU time of a process and of all its children, in seconds."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
            pids = [pid, *map(int, children.read().split())]
    except FileNotFoundError:
        return 0.0
    return sum(map(own_ticks, pids)) / TICKS


def server_seconds() -> float:
    return sum(seconds(int(os.environ[name])) for name in ("POSTGRES_PID", "HOSTLER_PID") if os.environ.get(name))


def measure(results: str, name: str, batch: str, items: str, command: list[str]) -> None:
    """Runs a contender, and appends its figures to the results."""
    marks = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as contender:
        assert contender.stdout
        for line in contender.stdout:
            if line.strip() in MARKS:
                marks.append((line.strip(), time.monotonic(), seconds(contender.pid), server_seconds()))
    if contender.returncode != 0 or [mark[0] for mark in marks] != MARKS:
        sys.exit(f"{name} did not finish: exit code {contender.returncode}, marks {[mark[0] for mark in marks]}")
    row = {"name": name, "batch": int(batch), "items": int(items)}
    for (_, begin, client, server), (mark, end, client_end, server_end) in zip(marks, marks[1:]):
        row[mark] = {"rate": int(items) / (end - begin), "client": client_end - client, "server": server_end - server}
    with open(results, "a", encoding="utf-8") as file:
        print(json.dumps(row), file=file)


def behind(rows: list[dict]) -> list[str]:
    """Returns what other contenders do at a higher rate than the first one, at equal batch sizes."""
    first = {row["batch"]: row for row in rows if row["name"] == rows[0]["name"]}
    pairs = [(row, first[row["batch"]]) for row in rows if row["batch"] in first]
    return [
        f"{row['name']}, batches of {row['batch']}: {mark} {row[mark]['rate'] / own[mark]['rate']:.2f} times as fast"
        for row, own in pairs
        for mark in MARKS[1:]
        if row[mark]["rate"] > own[mark]["rate"]
    ]


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown. CPU time is in microseconds an item."""
    lines = [
        "| contender | batch | added/s | processed/s | CPU µs an item added: client, server | processed: client, server |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cpu = [
            f"{row[mark]['client'] / row['items'] * 1e6:,.0f}, {row[mark]['server'] / row['items'] * 1e6:,.0f}"
            for mark in MARKS[1:]
        ]
        rates = [f"{row[mark]['rate']:,.0f}" for mark in MARKS[1:]]
        lines.append(f"| {row['name']} | {row['batch']} | {' | '.join(rates + cpu)} |")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) > 2:
        results, name, batch, items, *command = sys.argv[1:]
        measure(results, name, batch, items, command)
        return
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    print(table(rows))
    for line in behind(rows):
        print(f"ahead of {rows[0]['name']}: {line}")


if __name__ == "__main__":
    main()
