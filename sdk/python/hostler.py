"""SDK for hostler handlers in Python. In a component that componentize-py builds, implements hostler's contract. Elsewhere, such as in a
test, defines the names, and a call of a decorated function checks what the function returns.

Put the decorators on functions of the module that you build:

    @hostler.handler
    def greet(message: hostler.Message) -> str:
        return "Hello, " + message.json()["name"]

The function returns None (ack), or str or bytes (reply). It can also return or raise an outcome: Ack, Retry, Delay or DeadLetter. Any
other exception is an error, and so is a returned value of any other type. The message then goes to the consumer's retry policy, with the reason "Type: text". The traceback goes to
stderr.

For batches, put @hostler.batch_handler on a function of a list of Messages that returns a list with the answer for each.
"""
from __future__ import annotations

# Python itself imports these modules at their first use. A finished component can import nothing more, so they are imported here.
import _strptime  # noqa: F401
import encodings.cp1252  # noqa: F401
import encodings.idna  # noqa: F401
import encodings.utf_8_sig  # noqa: F401
import functools
import inspect
import json
import math
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Optional, TypeVar, Union, cast

try:
    import wit_world
except ImportError:  # not in a component
    Err = Ok = exports = batch = context = producer = jobs = types = None
else:
    from componentize_py_types import Err, Ok
    from wit_world import exports
    from wit_world.imports import context, producer

    try:
        from wit_world.imports import jobs
    except ImportError:  # a world that imports the other interfaces only
        jobs = None

    try:
        from wit_world.imports import batch
    except ImportError:  # a world without batches
        batch = None

    try:
        from wit_world.imports import types
        types.Outcome_Ack
    except (ImportError, AttributeError):  # the world also contains the `types` of other packages, such as wasi:http
        from wit_world.imports import hostler_consumer_types as types

Function = TypeVar("Function", bound=Callable[..., Any])
Attributes = Dict[str, Union[str, bytes]]

# The types of a body, a reply or an attribute that are not text.
_BINARY = (bytes, bytearray, memoryview)


@dataclass(frozen=True)
class Message:
    """One delivery of a message."""

    body: bytes = b""
    attributes: Attributes = field(default_factory=dict)
    id: str = ""
    channel: str = ""
    content_type: Optional[str] = None
    attempt: int = 1  # number of this delivery, counted by the queue; the first is 1
    enqueued_at: float = 0.0  # time at which the queue accepted the message, in seconds since 1970, as in time.time()
    group_id: Optional[str] = None
    routing_key: Optional[str] = None

    @property
    def text(self) -> str:
        """The body as text, decoded as UTF-8."""
        return self.body.decode()

    def json(self) -> Any:
        """Parses the body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Report:
    """Result of processing a message, for message_end."""

    message_id: str
    attempt: int
    outcome: str  # ack, reply, retry, delay, dead-letter or failed; if the hooks are in a separate component, also trapped
    reason: Optional[str]
    duration: float  # seconds


class Outcome(Exception):
    """Outcome of a message. Raise or return one of the four subclasses below."""


class Ack(Outcome):
    """The message is done."""


class Retry(Outcome):
    """The attempt failed. The retry policy decides whether and when the next one follows. The text, if any, goes to stderr."""


class Delay(Outcome):
    """Deliver the message again after this number of seconds. The retry policy limits the number of attempts."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = math.ceil(seconds)
        if not 0 <= self.seconds < 2**32:
            raise ValueError(f"a delay is 0 to {2**32 - 1} seconds, not {seconds}")


class DeadLetter(Outcome):
    """The message can never succeed. hostler moves it to the dead-letter queue, with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = str(reason)


class SendError(Exception):
    """A message was not sent. kind is denied (the channel is not in allow.send), invalid (the message breaks a limit) or unavailable (the
    queue did not accept the message this time)."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def send(channel: str, body: Union[bytes, str], attributes: Optional[Attributes] = None, *, routing_key: Optional[str] = None,
         delay: Optional[int] = None, group_id: Optional[str] = None, dedupe_key: Optional[str] = None) -> str:
    """Sends a message to a channel that allow.send names. Returns the id after the queue has stored the message durably. delay: in
    seconds, at most 13 days."""
    if producer is None:
        raise RuntimeError("there is no host to send by: replace hostler.send in a test")
    named = [types.Attribute(name, _attribute(value)) for name, value in (attributes or {}).items()]
    try:
        return producer.send(channel, _bytes(body), producer.Options(named, routing_key, delay, group_id, dedupe_key))
    except Err as error:
        kind = type(error.value).__name__.rpartition("_")[2].lower()
        raise SendError(kind, error.value.value) from None


def remaining() -> float:
    """Returns the seconds until the processing timeout stops this call. Without a host, returns infinity."""
    return math.inf if context is None else context.remaining_ms() / 1000


def should_stop() -> bool:
    """Returns True if the host is draining or the lease is lost. The handler should then finish early, or raise Retry."""
    return context is not None and context.should_stop()


@dataclass(frozen=True)
class Job:
    """The job of an item, and the item."""

    id: str
    root_id: str  # id of the root of the job's tree; the same as id if the job is the root
    type: str
    item_id: str
    attempt: int  # number of this attempt; the first is 1


@dataclass(frozen=True)
class Item:
    """An item to add to a job. payload: any value that json.dumps accepts, at most 1 MiB as JSON."""

    payload: Any
    dedupe_key: Optional[str] = None  # a second item with the same key in the same job is not added
    serialize_key: Optional[str] = None  # items with the same key are processed one at a time, in the order of adding
    priority: int = 0  # items with a lower number are processed first


class JobError(Exception):
    """A request to a job was not accepted. kind is no-job (the message is not an item of a job), invalid (the request breaks a rule) or
    full (the attempt has asked for as much as one attempt may)."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def current_job() -> Optional[Job]:
    """Returns the job whose item the message is. Returns None if the message is not an item of a job, and without a host."""
    info = None if jobs is None else jobs.current()
    return info and Job(info.job_id, info.root_id, info.job_type, info.item_id, info.attempt)


def add_items(target: str, items: Iterable[Item]) -> None:
    """Adds items to a job of the same tree when this item succeeds: all of them or none. An attempt that fails adds nothing. target: id
    of the job, or the type of a child of the current job. One attempt adds at most 10,000 items and 16 MiB."""
    _ask("add_items", lambda: jobs.add_items(target, [_item(item) for item in items]))


def seal(job: str) -> None:
    """Seals a job when this item succeeds, after the items are added: no more can be added to it. job: as target of add_items."""
    _ask("seal", lambda: jobs.seal(job))


def progress(fraction: float, text: str = "") -> None:
    """Reports the progress of the item: the share that is done, from 0 to 1, and a text of at most 200 bytes. The latest report replaces
    the others. It is shown although the item is not done."""
    _ask("progress", lambda: jobs.progress(float(fraction), text))


def _item(item: Item) -> Any:
    payload = json.dumps(item.payload, ensure_ascii=False, allow_nan=False)
    return jobs.NewItem(payload, item.dedupe_key, item.serialize_key, item.priority)


def _ask(name: str, request: Callable[[], None]) -> None:
    if exports is None:
        raise RuntimeError(f"there is no host to ask: replace hostler.{name} in a test")
    if jobs is None:
        raise RuntimeError("the world of this component does not import hostler:consumer/jobs")
    try:
        request()
    except Err as error:
        kind = type(error.value).__name__.rpartition("_")[2]
        raise JobError("no-job" if kind == "NoJob" else kind.lower(), error.value.value) from None


def handler(function: Function) -> Function:
    """Registers the function as the handler. The function takes a Message."""
    answer = _checking(function)
    _export(function, "Handler", "handle", lambda message: _fallible(lambda: _outcome(_answer(answer, _message(message)))))
    return answer


def batch_handler(function: Function) -> Function:
    """Registers the function as the handler of batches. The function takes a list of Messages and returns a list with one answer for each
    of them, in order: what a handler may return, or an exception for an error. If the function itself raises an exception, hostler gives
    it each message without an answer once more, alone, unless batch.on_trap is "fail"."""
    def handle_batch(messages: List[Any]) -> List[Any]:
        try:
            return [_result(answer) for answer in function([_message(message) for message in messages])]
        except BaseException as error:
            if len(messages) == 1:  # no other message is concerned
                return [_result(error)]
            traceback.print_exc()
            raise
    return _export(function, "BatchHandler", "handle_batch", handle_batch)


def done(index: int, answer: Any = None) -> bool:
    """Settles the message at this place of the batch now, with this answer in place of the one in the list. Returns False, and settles
    nothing, if there is no such message, if it has an answer, or if it is lost."""
    if batch is None:
        raise RuntimeError("there is no batch: replace hostler.done in a test")
    return batch.done(index, _result(answer))


def lost(index: int) -> bool:
    """Returns True once the message at this place of the batch is no longer this handler's: its lease was lost, or an operator cancelled
    it. Its answer is ignored. Without a host, returns False."""
    return batch is not None and batch.lost(index)


def message_start(function: Function) -> Function:
    """Registers the function as a hook. hostler calls it with the Message before the handler. An exception counts as a failure of the
    message."""
    return _export(function, "MessageStart", "message_start", lambda message: _fallible(lambda: function(_message(message))) and None)


def message_end(function: Function) -> Function:
    """Registers the function as a hook. hostler calls it with a Report after the handler, in the same instance. hostler logs an exception,
    and the outcome stays unchanged."""
    def end(report: Any) -> None:
        function(Report(report.message_id, report.attempt, report.outcome, report.reason, report.duration_ms / 1000))
    return _export(function, "MessageEnd", "message_end", end)


def processing_timeout(function: Function) -> Function:
    """Registers the function as a hook. hostler calls it after the processing timeout, in a fresh instance, with the Message and the
    elapsed seconds. The function returns an outcome as a handler does, but must not return None. If it returns None,
    on_processing_timeout of the config decides."""
    decide = _checking(function, accepts_none=False)

    def timeout(message: Any, elapsed_ms: int) -> Any:
        return _outcome(_answer(decide, _message(message), elapsed_ms / 1000))
    _export(function, "ProcessingTimeout", "processing_timeout", timeout)
    return decide


def state_changed(function: Function) -> Function:
    """Registers the function as a hook. hostler calls it in a fresh instance with the old and the new state of the consumer, such as
    "listening" and "processing"."""
    return _export(function, "StateChanged", "state_changed", lambda old, new: function(old.name.lower(), new.name.lower()))


def _export(function: Function, interface: str, name: str, call: Callable[..., Any]) -> Function:
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{function.__name__} is async, and hostler would not await it")
    if exports is not None and not hasattr(exports, interface):
        raise TypeError(f"{function.__name__} would never be called: the world does not export {name.replace('_', '-')}")
    # componentize-py looks for a class in the built module. The class has the name of the interface.
    _plain.get(function, function).__globals__[interface] = type(interface, (), {name: lambda _, *arguments: call(*arguments)})
    return function


# The functions that _checking has wrapped, by what it returned.
_plain: Dict[Callable[..., Any], Callable[..., Any]] = {}


def _checking(function: Function, accepts_none: bool = True) -> Function:
    """Returns a function that calls this one, and raises TypeError for a returned value that is no outcome. A test of the handler thus
    fails as the handler does in the sandbox."""
    # The same function may be both the handler and a hook. Each of the two has its own rule for None.
    function = cast(Function, _plain.get(function, function))
    if inspect.iscoroutinefunction(function):
        return function  # refused by _export

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        answer = function(*arguments, **named)
        if isinstance(answer, (Ack, Retry, Delay, DeadLetter, str, *_BINARY)) or answer is None and accepts_none:
            return answer
        returned = "None" if answer is None else type(answer).__name__
        wanted = "None, a str, bytes" if accepts_none else "a str, bytes"
        raise TypeError(f"{function.__name__} returned {returned}, not {wanted} or an outcome such as hostler.Retry()")
    _plain[checked] = function
    return cast(Function, checked)


def _message(given: Any) -> Message:
    attributes = {attribute.name: attribute.value.value for attribute in given.attributes}
    return Message(given.body, attributes, given.id, given.channel, given.content_type, given.attempt,
                   given.enqueued_at / 1000, given.group_id, given.routing_key)


def _answer(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Outcome as outcome:
        return outcome


def _fallible(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException as error:
        traceback.print_exc()
        raise Err(_described(error)) from None


def _result(answer: Any) -> Any:
    """Converts the answer for one message of a batch."""
    try:
        if isinstance(answer, BaseException) and not isinstance(answer, Outcome):
            raise answer
        return Ok(_outcome(answer))
    except BaseException as error:
        traceback.print_exception(type(error), error, error.__traceback__)
        return Err(_described(error))


def _described(error: BaseException) -> str:
    return ": ".join(filter(None, [type(error).__name__, str(error)]))


def _outcome(answer: Any) -> Any:
    if answer is None or isinstance(answer, Ack):
        return types.Outcome_Ack()
    if isinstance(answer, Retry):
        if answer.args:
            print("retry:", answer, file=sys.stderr)
        return types.Outcome_Retry()
    if isinstance(answer, Delay):
        return types.Outcome_Delay(answer.seconds)
    if isinstance(answer, DeadLetter):
        return types.Outcome_DeadLetter(answer.reason)
    return types.Outcome_Reply(_bytes(answer))


def _attribute(value: Union[str, bytes]) -> Any:
    return types.AttributeValue_Text(value) if isinstance(value, str) else types.AttributeValue_Binary(_bytes(value))


def _bytes(value: Union[str, bytes]) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, _BINARY):
        return bytes(value)
    raise TypeError(f"str or bytes is wanted here, not {type(value).__name__}")


def _name_what_is_missing() -> None:
    """Improves the error for a missing decorator. componentize-py looks for the class of each export in the module that imports this one.
    If a class is missing, the error names the missing decorator."""
    frame = sys._getframe(1)
    while frame and frame.f_globals.get("__name__", "").startswith((__name__, "importlib", "_frozen_importlib")):
        frame = frame.f_back
    if frame is None:
        return
    module = frame.f_globals.get("__name__")
    marks = {"Handler": "handler", "BatchHandler": "batch_handler", "MessageStart": "message_start", "MessageEnd": "message_end",
             "ProcessingTimeout": "processing_timeout", "StateChanged": "state_changed"}

    def missing(name: str) -> Any:
        if name in marks:
            mark = marks[name]
            raise AttributeError(f"{module}.py has no {mark.replace('_', '-')}: put @hostler.{mark} above the function that is to be called")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    frame.f_globals.setdefault("__getattr__", missing)


if exports is not None:
    _name_what_is_missing()
