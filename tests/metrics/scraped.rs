//! Metrics for Prometheus.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::{DELIVERIES, send_hundred, serving, world};
use crate::support::guests::component;
use crate::support::hostler::{Depth, Host, PATIENCE, SECOND, World, until};
use crate::support::prometheus::{Prometheus, Scrape, free_address, get, lint};

/// The labels that all metrics of a consumer have.
const BASE: [&str; 4] =
    ["hostler_consumer", "messaging_consumer_group_name", "messaging_destination_name", "messaging_system"];

/// Waits until nothing is in hand.
fn at_rest(address: std::net::SocketAddr) -> Scrape {
    until("the host is at rest", PATIENCE, || {
        let scrape = Scrape::of(address);
        (scrape.get("hostler_messages_in_hand", &[]) == Some(0.0)).then_some(scrape)
    })
}

#[test]
fn a_known_workload_is_counted_to_the_message() {
    let (world, address) = serving();
    send_hundred(&world);
    let host = world.start();
    host.settled(DELIVERIES);
    let scrape = at_rest(address);
    let settled = |outcome, disposition| {
        let labels = [("hostler_outcome", outcome), ("hostler_disposition", disposition)];
        scrape.get("hostler_messages_settled_total", &labels)
    };
    assert_eq!(settled("ack", "ack"), Some(90.0), "{}", scrape.text);
    assert_eq!(settled("failed", "release"), Some(20.0));
    assert_eq!(settled("failed", "dead-letter"), Some(10.0));
    assert_eq!(settled("trapped", "dead-letter"), Some(0.0), "so that the first is an increase");
    assert_eq!(scrape.get("hostler_messages_settled_total", &[]), Some(120.0));

    let expected = [
        ("messaging_client_consumed_messages_total", 120.0),
        ("messaging_process_duration_seconds_count", 120.0),
        ("hostler_message_queue_delay_seconds_count", 120.0),
        ("hostler_sandbox_instantiation_seconds_count", 120.0),
        ("hostler_message_attempts_count", 100.0),
        ("hostler_message_attempts_sum", 120.0),
        ("hostler_messages_late_total", 0.0),
        ("hostler_leases_lost_total", 0.0),
        ("hostler_messages_refused_total", 0.0),
        ("hostler_leases_extended_total", 0.0),
        ("hostler_processing_timeouts_total", 0.0),
        ("hostler_slots", 4.0),
        ("hostler_slots_busy", 0.0),
        ("hostler_sandbox_memory_peak_bytes", 65_536.0),
        ("hostler_health_state", 1.0),
        ("hostler_up", 1.0),
    ];
    for (name, value) in expected {
        assert_eq!(scrape.get(name, &[]), Some(value), "{name}\n{}", scrape.text);
    }
    let failed = scrape.get("messaging_process_duration_seconds_count", &[("error_type", "failed")]);
    assert_eq!(failed, Some(30.0));
    assert_eq!(scrape.get("hostler_message_attempts_bucket", &[("le", "1")]), Some(90.0));
    assert_eq!(scrape.get("hostler_message_attempts_bucket", &[("le", "3")]), Some(100.0));
    // As many buckets as handlers that take up to half an hour need, and receives that wait.
    assert_eq!(scrape.get("messaging_process_duration_seconds_bucket", &[("le", "1800")]), Some(120.0));
    assert!(scrape.get("messaging_client_operation_duration_seconds_bucket", &[("le", "30")]).is_some());
    for operation in ["receive", "settle"] {
        let labels = [("messaging_operation_name", operation)];
        let calls = scrape.get("messaging_client_operation_duration_seconds_count", &labels);
        assert!(calls.is_some_and(|calls| calls >= 1.0), "{operation}");
    }
    let version = [("service_version", env!("CARGO_PKG_VERSION"))];
    assert_eq!(scrape.get("hostler_up", &version), Some(1.0));
    let work = [("hostler_consumer", "work"), ("messaging_destination_name", "work"), ("messaging_system", "hostler")];
    assert_eq!(scrape.get("hostler_slots", &work), Some(4.0));
}

#[test]
fn the_sizes_of_batches_are_counted() {
    let address = free_address();
    let world = World::new(&format!(
        "telemetry.prometheus = '{address}'
        [consumers.work]
        channel = 'work'
        handler = '{}'
        concurrency = 1
        batch = {{ max = 3, wait = '300ms' }}",
        component("batch-word").display()
    ));
    world.send("work", ["a"; 4]);
    let host = world.start();
    host.settled(4);
    let scrape = at_rest(address);
    assert_eq!(scrape.get("hostler_batch_size_count", &[]), Some(2.0), "{}", scrape.text);
    assert_eq!(scrape.get("hostler_batch_size_sum", &[]), Some(4.0));
    assert_eq!(scrape.get("hostler_batch_size_bucket", &[("le", "1")]), Some(1.0));
}

#[test]
fn series_have_the_labels_that_the_names_promise_and_no_more() {
    let (world, address) = serving();
    send_hundred(&world);
    let host = world.start();
    host.settled(DELIVERIES);
    let scrape = at_rest(address);
    let with = |more: &[&'static str]| {
        let mut labels: Vec<_> = BASE.into_iter().chain(more.iter().copied()).collect();
        labels.sort_unstable();
        labels
    };
    assert_eq!(scrape.labels("hostler_slots"), with(&[]));
    assert_eq!(scrape.labels("hostler_messages_settled_total"), with(&["hostler_outcome", "hostler_disposition"]));
    assert_eq!(scrape.labels("hostler_health_state"), with(&["hostler_state"]));
    let process = with(&["error_type", "messaging_operation_name"]);
    assert_eq!(scrape.labels("messaging_process_duration_seconds_count"), process);
    assert_eq!(scrape.labels("messaging_client_consumed_messages_total"), with(&["messaging_operation_name"]));
    let info = scrape.labels("target_info");
    assert!(
        ["service_name", "service_version", "telemetry_sdk_name"].iter().all(|name| info.contains(name)),
        "{info:?}"
    );
}

#[test]
fn the_linter_has_nothing_to_say_and_a_real_server_answers_queries() {
    let (world, address) = serving();
    send_hundred(&world);
    let host = world.start();
    host.settled(DELIVERIES);
    assert_eq!(lint(&at_rest(address).text), "");

    let prometheus = Prometheus::scraping(address);
    let answers = |query: &str, expected: &[f64]| {
        until(query, PATIENCE, || (prometheus.query(query) == expected).then_some(()));
    };
    answers("up", &[1.0]);
    answers("sum by (hostler_consumer) (hostler_messages_settled_total)", &[120.0]);
    answers("hostler_messages_settled_total{hostler_disposition='dead-letter',hostler_outcome='failed'}", &[10.0]);
    answers("hostler_slots - hostler_slots_busy", &[4.0]);
    answers("hostler_health_state{hostler_state='IDLE'}", &[1.0]);
    answers("histogram_quantile(1, hostler_message_attempts_bucket)", &[3.0]);
    until("the host's tick", PATIENCE, || {
        let ticks = prometheus.query("hostler_host_tick_delay_seconds_count");
        ticks.first().is_some_and(|count| *count >= 2.0).then_some(())
    });
}

#[test]
fn the_queue_is_seen_at_the_start() {
    let (world, address) = serving();
    send_hundred(&world);
    let mut host = world.start();
    host.settled(DELIVERIES);
    assert_eq!(host.stop(), 0);
    assert_eq!(world.depth("work"), Depth { dead_lettered: 10, ..Depth::default() });
    let _host = world.start();
    let scrape = until("the queue is seen", PATIENCE, || {
        let scrape = Scrape::of(address);
        scrape.get("hostler_queue_dead_lettered", &[]).is_some().then_some(scrape)
    });
    let gauges = [
        ("hostler_queue_dead_lettered", Some(10.0)),
        ("hostler_queue_visible", Some(0.0)),
        ("hostler_queue_delayed", Some(0.0)),
        ("hostler_queue_in_flight", Some(0.0)),
        ("hostler_backlog_per_task", Some(0.0)),
        ("hostler_queue_oldest_age_seconds", None),
        ("hostler_time_to_drain_seconds", None),
    ];
    for (name, value) in gauges {
        assert_eq!(scrape.get(name, &[]), value, "{name}");
    }
}

#[test]
fn timeouts_leases_lateness_and_what_is_sent_are_counted() {
    let (_, address) = serving();
    let config = format!(
        "telemetry.prometheus = '{address}'
         [consumers.work]
         channel = 'work'
         handler = 'guests/run-word.wat'
         concurrency = 1
         lease = '2s'
         delay_tolerance = '1s'
         processing_timeout = '1500ms'
         reply = 'stdout'
         reply_channel = 'answers'"
    );
    let world = World::new(&config);
    let host = world.started();
    // The second waits for as long as the first may run.
    world.send("work", ["l", "e hello"]);
    host.settled(2);
    let scrape = at_rest(address);
    let settled = |outcome| scrape.get("hostler_messages_settled_total", &[("hostler_outcome", outcome)]);
    assert_eq!((settled("timed-out"), settled("reply")), (Some(1.0), Some(1.0)));
    assert_eq!(scrape.get("hostler_processing_timeouts_total", &[]), Some(1.0));
    assert_eq!(scrape.get("hostler_messages_late_total", &[]), Some(1.0));
    let extended = scrape.get("hostler_leases_extended_total", &[]);
    assert!(extended.is_some_and(|count| count >= 1.0), "{extended:?}");
    let answers = [("messaging_destination_name", "answers"), ("messaging_operation_name", "send")];
    assert_eq!(scrape.get("messaging_client_sent_messages_total", &answers), Some(1.0), "{}", scrape.text);
    assert_eq!(scrape.get("messaging_client_operation_duration_seconds_count", &answers), Some(1.0));
    let late = scrape.get("messaging_process_duration_seconds_sum", &[("error_type", "timed-out")]);
    assert!(late.is_some_and(|seconds| (1.5..10.0).contains(&seconds)), "{late:?}");
}

#[test]
fn there_is_one_page_and_idle_connections_do_not_keep_scrapers_out() {
    let (world, address) = serving();
    let host = world.started();
    assert_eq!(get(address, "/").unwrap().0, 404);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"POST /metrics HTTP/1.0\r\nContent-Length: 0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer.split(' ').nth(1), Some("405"), "{answer}");
    // As many as there may be, and more; none says what it wants.
    let idle: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    let scrape = until("idle connections end", 20 * SECOND, || get(address, "/metrics").ok());
    assert_eq!(scrape.0, 200);
    drop(idle);
    assert!(host.lines().iter().all(|line| line["level"] != "ERROR"));
}

#[test]
fn an_address_that_is_taken_keeps_the_host_from_starting() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let world = world(&format!("telemetry.prometheus = '{address}'"));
    let mut host: Host = world.start();
    assert_eq!(host.wait_exit(PATIENCE), 64);
    let lines = host.lines();
    let told = lines.iter().find(|line| line["level"] == "ERROR").unwrap_or_else(|| panic!("{lines:?}"));
    let message = told["message"].as_str().unwrap();
    assert!(message.contains(&format!("telemetry.prometheus: cannot listen on {address}")), "{told}");
    assert_eq!(told["exit_code"], 64);
}
