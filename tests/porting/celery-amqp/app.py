from pathlib import Path

import hostler


@hostler.handler
def run(message):
    args, kwargs, _ = message.json()
    confirm(*args, **kwargs)


def confirm(order, email=None):
    if email is None:
        raise hostler.DeadLetter(f"order {order} has no e-mail address")
    invoice = Path("/invoices") / f"{order}.txt"
    if not invoice.exists():
        raise hostler.Delay(300)
    hostler.send("mails", invoice.read_text(), {"to": email, "subject": f"Order {order}"})
