//! Bounds of what lies in memory at once.

use hostler_jobs::types::ItemQuery;
use serde_json::json;

use crate::{claim, item, items_of, raw, store, tree};

#[tokio::test]
async fn claims_and_pages_are_bounded_by_their_bytes() {
    let store = store().await;
    let large = "x".repeat(1_000_000);
    let items: Vec<_> = (0..40).map(|n| json!({ "id": format!("i{n}"), "payload": [n, large] })).collect();
    store.create(tree(&json!({ "type": "mail", "id": "j", "items": items })), None).await.unwrap();
    let mut query = ItemQuery { job_id: Some("j".to_owned()), limit: Some(1000), ..ItemQuery::default() };
    let mut seen = Vec::new();
    loop {
        let page = store.items(&query).await.unwrap();
        assert!((1..=17).contains(&page.items.len()), "{}", page.items.len());
        seen.extend(page.items.into_iter().map(|item| item.id));
        query.cursor = page.next;
        if query.cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, (0..40).map(|n| format!("i{n}")).collect::<Vec<_>>());
    let mut taken = Vec::new();
    for expected in [17, 17, 6] {
        let given = claim(&store, "mail", 1000).await;
        assert_eq!(given.len(), expected);
        taken.extend(given.into_iter().map(|one| one.item.id));
    }
    assert_eq!(taken, seen, "the others went back at once");
}

#[tokio::test]
async fn the_last_failures_of_an_item_are_given_shortened() {
    let store = store().await;
    let job = json!({ "type": "mail", "id": "j", "max_failures_per_item": 100 });
    store.create(tree(&job), None).await.unwrap();
    store.add_items("j", vec![item(&json!({ "payload": 1 }))], None).await.unwrap();
    for n in 0..22 {
        let given = claim(&store, "mail", 1).await;
        let long = if n == 21 { "y".repeat(100_000) } else { n.to_string() };
        store.fail(&given[0].assignment_id, raw(&json!(long)), None).await.unwrap();
    }
    let page = items_of(&store, "j").await;
    let failures = &page.items[0].failures;
    let errors: Vec<usize> = failures.iter().map(|failure| failure.error.text().len()).collect();
    assert_eq!((errors.len(), failures[0].error.text()), (20, "\"2\""));
    assert!(errors[19] > 16_000 && errors[19] < 17_000, "{errors:?}");
}
