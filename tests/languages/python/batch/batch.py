"""A batch handler in Python: does with each message what its body says."""
import hostler


def answer(index: int, message: hostler.Message):
    if message.text == "done":
        if not hostler.done(index) or hostler.done(index) or hostler.lost(index):
            return Exception("one early answer counts")
        return hostler.Retry()
    if message.text == "never":
        return hostler.DeadLetter("as told")
    if message.text == "error":
        return Exception("the disk is full")
    if message.text == "reply":
        return message.body
    return None


@hostler.batch_handler
def handle_batch(messages):
    return [answer(index, message) for index, message in enumerate(messages)]
