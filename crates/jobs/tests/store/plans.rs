//! The plans that the schema's functions get.

use crate::rules::store_count;
use crate::store;

/// A plan node that is turned off and has no alternative costs so much that PostgreSQL compiles the plan, which takes a second.
#[tokio::test]
async fn functions_that_turn_plan_nodes_off_are_not_compiled() {
    let store = store().await;
    let steering = "SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'hostler_jobs'::regnamespace \
        AND 'enable_seqscan=off' = ANY (p.proconfig)";
    assert!(store_count(&store, steering).await > 15);
    let compiled = format!("{steering} AND NOT 'jit=off' = ANY (p.proconfig)");
    assert_eq!(store_count(&store, &compiled).await, 0);
}
