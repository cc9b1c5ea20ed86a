"""Balances the books: books.py LOG VIEWS PLOT. LOG is that of endpoint.py. Writes the plot of the backlog, an SVG, to PLOT.

Fails if a view did not reach both webhooks.
"""

import sys
from collections import Counter, defaultdict

log, views, plot = sys.argv[1], int(sys.argv[2]), sys.argv[3]
WEBHOOKS = ["archive", "counter"]

# Attempts and deliveries of each view, and the times of the first deliveries.
attempts, deliveries, times = defaultdict(Counter), defaultdict(Counter), defaultdict(list)
first = None
for line in open(log):
    seconds, webhook, view, status = line.split()
    first = float(seconds) if first is None else first
    attempts[webhook][int(view)] += 1
    if status == "204":
        deliveries[webhook][int(view)] += 1
        if deliveries[webhook][int(view)] == 1:
            times[webhook].append(float(seconds) - first)

print(f"{'WEBHOOK':8} {'VIEWS':>6} {'DELIVERED':>10} {'TWICE':>6} {'ATTEMPTS':>9} {'PER VIEW':>9} {'AT MOST':>8}")
for webhook in WEBHOOKS:
    total, twice = sum(attempts[webhook].values()), sum(count > 1 for count in deliveries[webhook].values())
    most = max(attempts[webhook].values(), default=0)
    print(f"{webhook:8} {views:>6} {len(deliveries[webhook]):>10} {twice:>6} {total:>9} {total / views:>9.1f} {most:>8}")

print("\nviews by their attempts")
counts = {webhook: Counter(attempts[webhook].values()) for webhook in WEBHOOKS}
for number in sorted(set().union(*counts.values())):
    print(f"{number:>8} " + "  ".join(f"{webhook} {counts[webhook][number]:>5}" for webhook in WEBHOOKS))

length = max(times["archive"] + times["counter"], default=0) + 1


def backlog(webhook, seconds):
    """Returns the number of views that the webhook did not have at a time."""
    return views - sum(time <= seconds for time in times[webhook])


COLUMNS, BARS = 60, " ▁▂▃▄▅▆▇█"
print(f"\nviews that wait for their webhook, over {length:.0f} s")
for webhook in WEBHOOKS:
    heights = [backlog(webhook, length * column / COLUMNS) * 8 / views for column in range(COLUMNS + 1)]
    print(f"{webhook:8} {''.join(BARS[min(8, int(height + 0.999))] for height in heights)}")

LEFT, RIGHT, TOP, BOTTOM = 60, 976, 40, 300
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .page { fill: #ffffff; } .rule { stroke: #e1e4e8; }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
  .s0 { stroke: #1f6feb; } .s1 { stroke: #bc4c00; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .page { fill: #0d1117; } .rule { stroke: #2b3138; }
    .s0 { stroke: #58a6ff; } .s1 { stroke: #f0883e; }
  }
"""


def x(seconds):
    return LEFT + (RIGHT - LEFT) * seconds / length


def y(count):
    return BOTTOM - (BOTTOM - TOP) * count / views


with open(plot, "w") as svg:
    title = "Views that wait for their webhook"
    svg.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 340" role="img" aria-label="{title}">\n')
    svg.write(f'<style>{STYLE}</style>\n<rect width="1000" height="340" class="page"/>\n')
    for part in range(5):
        count = views * part / 4
        svg.write(f'<path class="rule" d="M{LEFT} {y(count):.1f}H{RIGHT}"/>\n')
        svg.write(f'<text x="{LEFT - 8}" y="{y(count) + 4:.1f}" text-anchor="end">{count:.0f}</text>\n')
        svg.write(f'<text x="{x(length * part / 4):.1f}" y="{BOTTOM + 18}" text-anchor="middle">{length * part / 4:.0f} s</text>\n')
    for place, webhook in enumerate(WEBHOOKS):
        steps = "".join(f"H{x(time):.1f}V{y(views - count - 1):.1f}" for count, time in enumerate(sorted(times[webhook])))
        svg.write(f'<path class="line s{place}" d="M{LEFT} {TOP}{steps}"/>\n')
        svg.write(f'<path class="line s{place}" d="M{LEFT + place * 120} 20h18"/>\n')
        svg.write(f'<text x="{LEFT + place * 120 + 26}" y="24">{webhook}</text>\n')
    svg.write("</svg>\n")
print(f"\nplot: {plot}")

missing = {webhook: views - len(deliveries[webhook]) for webhook in WEBHOOKS}
if any(missing.values()):
    sys.exit(f"NOT DELIVERED: {missing}")
print("every view was delivered to both webhooks")
