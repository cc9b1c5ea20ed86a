//! The Python SDK outside of a component: what a unit test of a handler sees. What handlers made with it do in the sandbox is
//! in `languages`.

use std::process::Command;

use crate::support::hostler::Said;

/// Calls decorated functions as a unit test does. `answer` is what they return.
const UNIT_TEST: &str = "
import sys
sys.path.insert(0, 'sdk/python')
sys.dont_write_bytecode = True
import hostler
answer = None
@hostler.handler
def greet(message: hostler.Message, *, greeting='Hello'):
    return answer
@hostler.processing_timeout
def give_up(message, elapsed):
    return answer
def refused(call):
    try: call()
    except TypeError as error: return str(error)
message = hostler.Message(b'x')
good = [None, 'text', b'bytes', bytearray(b'b'), hostler.Ack(), hostler.Retry(), hostler.Delay(1), hostler.DeadLetter('no')]
for answer in good:
    assert greet(message, greeting='Hi') is answer, answer
    assert answer is None or give_up(message, 1.0) is answer, answer
answer = None
assert 'give_up returned None, not a str, bytes or an outcome' in refused(lambda: give_up(message, 1.0))
for answer in [{'a': 1}, ['a'], 1, True, object(), hostler.Ack, hostler.Outcome()]:
    told = f'returned {type(answer).__name__}, not '
    assert 'greet ' + told + 'None, a str, bytes or an outcome' in refused(lambda: greet(message)), answer
    assert 'give_up ' + told in refused(lambda: give_up(message, 1.0)), answer
assert greet.__name__ == 'greet'
# Without a host there is no job, and a test replaces what asks for it.
assert hostler.current_job() is None
for ask in [lambda: hostler.add_items('a', [hostler.Item(1)]), lambda: hostler.seal('a'), lambda: hostler.progress(0.5)]:
    try: ask()
    except RuntimeError as error: assert 'there is no host to ask' in str(error), error
    else: raise AssertionError('asked nobody')
# One function may be both. What componentize-py looks for is then in this module.
for first, second in [(hostler.handler, hostler.processing_timeout), (hostler.processing_timeout, hostler.handler)]:
    for name in ['Handler', 'ProcessingTimeout']:
        globals().pop(name, None)
    @first
    @second
    def both(message, elapsed=0):
        return answer
    assert 'Handler' in globals() and 'ProcessingTimeout' in globals(), globals().keys()
    answer = None
    assert first is hostler.processing_timeout or both(message) is None
";

#[test]
fn a_test_of_a_handler_refuses_what_the_sandbox_would() {
    let mut python = Command::new("python3");
    let said = Said::new(python.args(["-c", UNIT_TEST]).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap());
    assert_eq!(said.code, 0, "{said:?}");
}
