//! Limits of a sandbox where there is no pool, as addresses are too scarce for one: the store keeps them.

use hostler_handler::Outcome;
use hostler_wasm::Engine;

use super::limits::with_instances;
use crate::damaged::{load_with, run};
use crate::support::hostler::PATIENCE;

/// Linear memory of a sandbox, in bytes.
const MEMORY: u64 = 32 << 20;

/// The outcome of a handler on an engine without a pool.
fn outcome(bytes: Vec<u8>) -> Outcome {
    let engine = Engine::on_demand().unwrap();
    let loaded = load_with(&engine, bytes).unwrap_or_else(|error| panic!("{error}"));
    run(loaded.handler(MEMORY).unwrap_or_else(|error| panic!("{error}")), PATIENCE).expect("it ends")
}

fn command(parts: &str) -> Outcome {
    let text = format!("(module {parts} (memory (export \"memory\") 1) (func (export \"_start\")))");
    outcome(wat::parse_str(text).unwrap())
}

#[test]
fn without_a_pool_a_sandbox_has_the_same_limits() {
    let tables = |count| "(table 1 funcref)".repeat(count);
    let memories = |count| "(memory 0)".repeat(count);
    let fits = [
        command("(table 100000 funcref)"),
        command(&tables(64)),
        command(&memories(15)),
        command("(memory 511)"),
        outcome(with_instances("acks", 3)),
    ];
    assert_eq!(fits.each_ref().map(|one| matches!(one, Outcome::Ack)), [true; 5], "{fits:#?}");
    // What has more from the start is refused when it is loaded.
    let grows =
        "(func (if (i32.eq (table.grow (ref.null func) (i32.const 1)) (i32.const -1)) (then unreachable))) (start 0)";
    let expands = "(func (if (i32.eq (memory.grow 0 (i32.const 1)) (i32.const -1)) (then unreachable))) (start 0)";
    let more = [
        command(&format!("(table 100000 funcref) {grows}")),
        command(&tables(65)),
        command(&memories(16)),
        command(&format!("(memory 511) {expands}")),
        outcome(with_instances("acks", 4)),
    ];
    assert_eq!(more.each_ref().map(|one| matches!(one, Outcome::Trapped(_))), [true; 5], "{more:#?}");
}
