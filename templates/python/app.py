import hostler


@hostler.handler
def greet(message: hostler.Message) -> str:
    try:
        name = message.json()["name"]
    except (ValueError, TypeError, KeyError):
        name = None
    if not isinstance(name, str):
        raise hostler.DeadLetter('the body is not a JSON object with a text "name"')
    return f"Hello, {name}!"
