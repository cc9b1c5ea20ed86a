#!/usr/bin/env python3
"""Draws top.svg: runs a host with three consumers for two minutes, and takes a picture of `hostler top` beside it.

    HOSTLER=target/release/hostler python3 book/src/images/top.py > book/src/images/top.svg
"""
import fcntl, os, pty, random, re, select, struct, subprocess, sys, tempfile, termios, threading, time
from html import escape
from unicodedata import east_asian_width

COLUMNS, ROWS, SECONDS = 118, 30, int(os.environ.get("SECONDS_OF_TOP", "125"))
HOSTLER = os.path.abspath(os.environ.get("HOSTLER", "target/release/hostler"))
HANDLER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tests/guests/run-word.wat")
CONFIG = """
host.health_file = 'health.json'
telemetry.prometheus = '127.0.0.1:9464'
"""
CONSUMER = """
[consumers.{name}]
channel = '{name}'
handler = '{handler}'
concurrency = {slots}
processing_timeout = '2s'
retry = {{ requeues = 1, requeue_delay = '1s', delays = 0 }}
"""
# Slots, messages a second, milliseconds at least and at most, and the share of messages that do something else.
WORK = {"mails": (4, 19, (40, 250), 0.01, "l"), "orders": (16, 200, (10, 100), 0, ""), "thumbnails": (8, 38, (80, 490), 0.05, "x3")}


def feed(name, folder):
    """Sends messages at an even rate, a batch every half second."""
    _, rate, (least, most), share, odd = WORK[name]
    end, batch = time.monotonic() + SECONDS + 5, 0
    while time.monotonic() < end:
        words = (odd if random.random() < share else f"w{random.randint(least, most)}" for _ in range(rate // 2))
        subprocess.run([HOSTLER, "send", name, "--lines", "-"], cwd=folder, input="\n".join(words), text=True, stdout=subprocess.DEVNULL)
        time.sleep(max(0, 0.5 - time.monotonic() % 0.5))


class Screen:
    """As much of a terminal as ratatui needs: each cell is a character, its colour, and whether it is bold."""

    def __init__(self):
        self.cells = [[(" ", None, False)] * COLUMNS for _ in range(ROWS)]
        self.row = self.column = 0
        self.colour, self.bold = None, False

    def write(self, text):
        for sequence, final, char in re.findall(r"\x1b\[([?0-9;]*)([A-Za-z])|(.)", text, re.S):
            if final == "H":
                row, _, column = sequence.partition(";")
                self.row, self.column = int(row or 1) - 1, int(column or 1) - 1
            elif final == "J":
                self.cells = [[(" ", None, False)] * COLUMNS for _ in range(ROWS)]
            elif final == "m":
                self.style([int(code or 0) for code in sequence.split(";")])
            elif char >= " " and self.row < ROWS and self.column < COLUMNS:
                self.cells[self.row][self.column] = (char, self.colour, self.bold)
                self.column += 2 if east_asian_width(char) in "WF" else 1

    def style(self, codes):
        while codes:
            code = codes.pop(0)
            if code == 0:
                self.colour, self.bold = None, False
            elif code in (1, 22):
                self.bold = code == 1
            elif code == 39:
                self.colour = None
            elif code == 38 and codes[:1] == [5]:
                self.colour, codes = {1: "#cd0000", 2: "#00cd00", 6: "#00cdcd"}.get(codes[1]), codes[2:]
            elif 30 <= code <= 37:
                self.colour = {31: "#cd0000", 32: "#00cd00", 36: "#00cdcd"}.get(code)

    def svg(self):
        yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="940" height="{ROWS * 16 + 20}" viewBox="0 0 940 {ROWS * 16 + 20}" '
               'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13">')
        yield '<rect width="100%" height="100%" rx="6" fill="#1c1c1c"/>'
        for number, row in enumerate(self.cells):
            start = 0
            while start < COLUMNS:
                end = start
                while end < COLUMNS and row[end][1:] == row[start][1:]:
                    end += 1
                text, (_, colour, bold) = "".join(char for char, *_ in row[start:end]), row[start]
                if text.strip():
                    weight = ' font-weight="bold"' if bold else ""
                    skipped = len(text) - len(text.lstrip())
                    text, at = text.strip(), start + skipped
                    yield (f'<text x="{10 + at * 7.8:.1f}" y="{22 + number * 16}" fill="{colour or "#d0d0d0"}"{weight} '
                           f'textLength="{len(text) * 7.8:.1f}" xml:space="preserve">{escape(text, quote=False)}</text>')
                start = end
        yield "</svg>"


def picture(folder):
    """What `top` has drawn when it is stopped."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execve(HOSTLER, [HOSTLER, "top"], {**os.environ, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    raw, end = b"", time.monotonic() + SECONDS
    # A picture is whole once nothing follows.
    while select.select([terminal], [], [], 0.3)[0] or time.monotonic() < end:
        if select.select([terminal], [], [], 0)[0]:
            raw += os.read(terminal, 65536)
    os.kill(child, 9)
    os.waitpid(child, 0)
    screen = Screen()
    screen.write(raw.decode(errors="ignore"))
    return screen


def main():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "hostler.toml"), "w") as config:
            config.write(CONFIG)
            for name, (slots, *_) in WORK.items():
                config.write(CONSUMER.format(name=name, handler=HANDLER, slots=slots))
        log = open(os.path.join(folder, "log"), "w")
        host = subprocess.Popen([HOSTLER, "run"], cwd=folder, stderr=log)
        while not os.path.exists(os.path.join(folder, "health.json")):
            time.sleep(0.1)
        senders = [threading.Thread(target=feed, args=(name, folder), daemon=True) for name in WORK]
        for sender in senders:
            sender.start()
        screen = picture(folder)
        for sender in senders:
            sender.join()
        host.terminate()
        host.wait()
        print("\n".join(screen.svg()))


if __name__ == "__main__":
    main()
