//! Lost, stuck and replaced connections.

use super::*;

#[tokio::test]
async fn a_lost_connection_costs_no_retry() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.a", &[("Hostler-Retries", "0")]).await;
    running.stored().await;
    let (lost, ..) = running.request().await;
    running.until_works(true).await;
    running.events.send(Event::Disconnected).await.unwrap();
    running.until_works(false).await;
    running.answer(lost, Answer::Nak(None)).await;
    running.events.send(Event::Connected(2)).await.unwrap();
    running.until_works(true).await;
    let (token, attempt, _) = running.request().await;
    assert!(attempt == 1 && token != lost);
    running.answer(token, Answer::Ack).await;
    running.end().await;
    assert_eq!(depth(&path, "retry").await.visible, 0);
}

#[tokio::test]
async fn another_connection_ends_the_requests_of_the_one_before() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.a", &[("Hostler-Retries", "0")]).await;
    running.stored().await;
    running.request().await;
    // The loss itself was not told.
    running.events.send(Event::Connected(2)).await.unwrap();
    match running.next().await {
        Outgoing::Request { link: 2, token, attempt: 1, .. } => running.answer(token, Answer::Ack).await,
        other => panic!("{other:?}"),
    }
    running.end().await;
}

#[tokio::test]
async fn a_refused_subject_costs_no_retry() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.a", &[("Hostler-Retries", "0")]).await;
    running.stored().await;
    let (refused, ..) = running.request().await;
    for subject in ["b", "a", "a"] {
        running.events.send(Event::Denied(subject.to_owned())).await.unwrap();
    }
    let (token, attempt, _) = running.request().await;
    assert!(attempt == 1 && token != refused);
    running.answer(token, Answer::Ack).await;
    running.end().await;
    let depth = depth(&path, "retry").await;
    assert_eq!((depth.visible, depth.dead_lettered), (0, 0));
}

#[tokio::test]
async fn a_receiver_that_breaks_the_connection_each_time_is_given_up() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.bad", &[("Hostler-Retries", "0")]).await;
    running.stored().await;
    for link in 2..=5 {
        // From the second time on, the subject waits before.
        running.request().await;
        running.events.send(Event::Disconnected).await.unwrap();
        running.events.send(Event::Connected(link)).await.unwrap();
    }
    let ended = async {
        while depth(&path, "retry").await.dead_lettered == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, ended).await.expect("it is never given up");
    running.end().await;
    assert_eq!(depth(&path, "retry").await.visible, 0);
}

#[tokio::test]
async fn a_silent_connection_costs_no_retry() {
    let (_folder, path) = file();
    let mut running = start(&path, Plan { ack_timeout: Duration::from_millis(100), ..plan() }).await;
    running.send("retry.a", &[("Hostler-Retries", "0")]).await;
    running.stored().await;
    running.request().await;
    let Outgoing::Probe(_) = running.next().await else { panic!("no proof is asked for") };
    running.events.send(Event::Disconnected).await.unwrap();
    running.events.send(Event::Connected(2)).await.unwrap();
    running.request().await;
    let Outgoing::Probe(at) = running.next().await else { panic!("no proof is asked for") };
    // It took long, so the receiver has its time again.
    running.events.send(Event::Heard(at - 2 * PROMPT)).await.unwrap();
    let Outgoing::Probe(at) = running.next().await else { panic!("no proof is asked for") };
    assert_eq!(depth(&path, "retry").await.dead_lettered, 0);
    running.events.send(Event::Heard(at)).await.unwrap();
    let ended = async {
        while depth(&path, "retry").await.dead_lettered == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, ended).await.expect("the receiver is silent, although the connection works");
    running.end().await;
}

#[tokio::test]
async fn a_drain_without_a_connection_ends_at_once() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.a", &[]).await;
    running.stored().await;
    running.request().await;
    running.events.send(Event::Disconnected).await.unwrap();
    running.drain.cancel();
    running.events.send(Event::NoMoreIncoming).await.unwrap();
    assert_eq!(timeout(PATIENCE, running.task).await.expect("it waits for the grace").unwrap(), 0);
}
