//! The faults, in the order of the rules that they break.

use super::SqlFault;

type Changes = &'static [(&'static str, &'static str)];

const fn fault(name: &'static str, function: &'static str, changes: Changes) -> SqlFault {
    SqlFault { name, function: Some(function), changes }
}

/// All faults.
pub const ALL: &[SqlFault] = &[
    // Assignments.
    fault("a token is not compared", "settle", &[("AND a.token = g.token", "")]),
    fault("a stale result is answered as accepted", "settle", &[("ELSE 2 END", "ELSE 1 END")]),
    fault("a repeated result is refused", "settle", &[("AND d.ok AND g.is_result", "AND false")]),
    fault("a heartbeat extends any assignment of the item", "heartbeat", &[("AND a.token = g.token", "")]),
    fault("a release ends any assignment of the item", "release", &[("AND a.token = g.token", "")]),
    fault("heartbeats are not recorded", "heartbeat", &[("beat_at = clock_timestamp()", "beat_at = beat_at")]),
    fault("one missed heartbeat is enough", "settle", &[("make_interval(secs => p_age)", "make_interval(secs => 0)")]),
    fault(
        "a heartbeat at the last moment is too late",
        "settle",
        &[("AND (p_age IS NULL OR a.beat_at < clock_timestamp() - make_interval(secs => p_age))", "")],
    ),
    fault("a claim waits for another", "claim", &[("FOR UPDATE SKIP LOCKED))", "FOR UPDATE))")]),
    // Attempts.
    fault("one attempt too many", "settle", &[("a.fails + 1 > j.max_failures", "a.fails > j.max_failures")]),
    fault("one attempt too few", "settle", &[("a.fails + 1 > j.max_failures", "a.fails + 1 >= j.max_failures")]),
    fault(
        "missed heartbeats are not listed",
        "settle",
        &[("FROM kept WHERE NOT ok", "FROM kept WHERE NOT ok AND kind <> 'expired'")],
    ),
    fault(
        "missed heartbeats do not count as a failure",
        "settle",
        &[
            ("a.fails + 1 AS fails", "a.fails + (g.kind <> 'expired')::int AS fails"),
            ("OR a.fails + 1 > j.max_failures", "OR g.kind <> 'expired' AND a.fails + 1 > j.max_failures"),
        ],
    ),
    fault("a release counts as a failure", "release", &[("b.job, b.fails, b.key", "b.job, b.fails + 1, b.key")]),
    fault("the failures of a head are forgotten", "put_back", &[("SET fails = e.fails,", "SET fails = 0,")]),
    fault(
        "null is no result",
        "settle",
        &[("g.kind IN ('success', 'more') AS ok", "(g.kind IN ('success', 'more') AND g.body <> 'null') AS ok")],
    ),
    // The time of the next attempt.
    fault(
        "items are promoted before their time",
        "promote",
        &[("due <= clock_timestamp()", "due <= clock_timestamp() + interval '40 s'")],
    ),
    fault(
        "a failed item is ready at once",
        "settle",
        &[("delay > 0 AND key IS NULL", "false"), ("delay <= 0 AND key IS NULL", "key IS NULL")],
    ),
    fault("a failed head is ready at once", "line_up", &[("h.due > clock_timestamp() AS is_late", "false AS is_late")]),
    fault(
        "an item is assigned before its time",
        "assign",
        &[("d.seq = p_seq AND d.due <= clock_timestamp()", "d.seq = p_seq")],
    ),
    fault(
        "the wish of a worker is ignored",
        "settle",
        &[("coalesce(g.delay, g.jitter", "coalesce(NULL::float8, g.jitter")],
    ),
    // Serialize keys.
    fault("a success does not pass its key on", "settle", &[("PERFORM pass_on(keys, key_seqs);", "NULL;")]),
    fault(
        "a final failure does not pass its key on",
        "settle",
        &[("FILTER (WHERE final AND key IS NOT NULL)", "FILTER (WHERE final AND ok AND key IS NOT NULL)")],
    ),
    fault("an item that goes back is not put in line", "put_back", &[("PERFORM line_up(keys);", "")]),
    fault(
        "the newest item of a key is the next",
        "pass_on",
        &[("ORDER BY w.key, w.seq LIMIT 1", "ORDER BY w.key, w.seq DESC LIMIT 1")],
    ),
    fault(
        "the next of a key is chosen by priority",
        "pass_on",
        &[("ORDER BY w.key, w.seq LIMIT 1", "ORDER BY w.key, w.priority, w.seq LIMIT 1")],
    ),
    fault(
        "the first of a key is chosen by priority",
        "add_rows",
        &[("ORDER BY u.key, u.seq) h", "ORDER BY u.key, u.priority, u.seq) h")],
    ),
    fault(
        "a head in backoff releases its key",
        "line_up",
        &[(
            "WHERE w.key = d.k ORDER BY",
            "WHERE w.key = d.k AND (w.due IS NULL OR w.due <= clock_timestamp()) ORDER BY",
        )],
    ),
    fault(
        "any item of a key is ready",
        "add_rows",
        &[("WHERE NOT EXISTS (SELECT FROM waiting w WHERE w.key = h.key)", "WHERE true")],
    ),
    fault(
        "a key orders the items of one type",
        "add_rows",
        &[(
            "(SELECT FROM waiting w WHERE w.key = h.key)",
            "(SELECT FROM waiting w WHERE w.key = h.key AND w.type = h.type)",
        )],
    ),
    fault(
        "a key orders the items of one job",
        "add_rows",
        &[(
            "(SELECT FROM waiting w WHERE w.key = h.key)",
            "(SELECT FROM waiting w WHERE w.key = h.key AND w.job = h.job)",
        )],
    ),
    fault(
        "adders do not lock the key",
        "add_rows",
        &[("ON CONFLICT (key) DO UPDATE SET key = excluded.key", "ON CONFLICT (key) DO NOTHING")],
    ),
    fault(
        "those who end items do not lock the key",
        "lock_keys",
        &[("PERFORM FROM serial_key k WHERE k.key = ANY (p_keys) ORDER BY k.key FOR UPDATE", "NULL")],
    ),
    // Priorities.
    fault(
        "priorities are ignored",
        "claim",
        &[("ORDER BY type, priority, seq LIMIT p_max", "ORDER BY type, seq LIMIT p_max")],
    ),
    // Seals.
    fault("a sealed job takes items", "add_items", &[("ELSIF j.sealed THEN", "ELSIF false THEN")]),
    fault(
        "a seal does not wait for adders",
        "add_items",
        &[("WHERE job.id = p_job FOR KEY SHARE", "WHERE job.id = p_job")],
    ),
    fault(
        "children stay open",
        "fold",
        &[("UPDATE job SET sealed = true, sealed_by_fold = true WHERE num = ANY (seals);", "")],
    ),
    fault(
        "a child is sealed with its parent",
        "fold",
        &[(
            "(SELECT p.complete FROM job p WHERE p.num = c.parent)",
            "(SELECT p.sealed FROM job p WHERE p.num = c.parent)",
        )],
    ),
    fault(
        "a child is sealed although an adder holds it",
        "fold",
        &[("ORDER BY c.num FOR UPDATE OF c SKIP LOCKED", "ORDER BY c.num")],
    ),
    // Completion.
    fault(
        "a job completes while items are pending",
        "fold",
        &[("job.added = job.ok + job.failed", "job.added <= job.ok + job.failed + 1")],
    ),
    fault("a job completes without a seal", "fold", &[("AND sealed AND NOT complete", "AND NOT complete")]),
    fault(
        "a job completes before its deltas are folded",
        "fold",
        &[("AND NOT EXISTS (SELECT FROM delta d WHERE d.job = job.num)", "")],
    ),
    fault(
        "a sealed job without items is never complete",
        "create_tree",
        &[("WHERE u.sealed OR i.items > 0", "WHERE i.items > 0")],
    ),
    fault(
        "a seal is not looked at",
        "seal_job",
        &[("INSERT INTO delta (job, added, ok, failed) VALUES (j.num, 0, 0, 0);", "")],
    ),
    fault(
        "only the children of a job are looked at",
        "fold",
        &[("touched := ARRAY(SELECT c.num FROM job c WHERE c.parent = ANY (closed));", "touched := '{}';")],
    ),
    fault("a job completes twice", "fold", &[("AND sealed AND NOT complete", "AND sealed")]),
    // Callbacks.
    fault("a callback is due once a job is complete", "close_jobs", &[("WHERE c.open_jobs = 0 AND", "WHERE")]),
    fault(
        "a tree has two callbacks",
        "close_jobs",
        &[("FROM closed c WHERE", "FROM closed c, generate_series(1, 2) WHERE")],
    ),
    fault("a deleted tree calls back", "delete_job", &[("DELETE FROM outbox WHERE root = ANY (nums);", "")]),
    // Feeds.
    fault(
        "fed items are not counted",
        "settle",
        &[(
            "SELECT f.num, count(*), 0, 0 FROM fed f GROUP BY f.num",
            "SELECT f.num, count(*), 0, 0 FROM fed f WHERE false GROUP BY f.num",
        )],
    ),
    fault(
        "only the first child is fed",
        "settle",
        &[(
            "WHERE f.n = ANY (ended)",
            "WHERE f.n = ANY (ended) AND f.child = (SELECT min(c) FROM unnest(p_feed_jobs) c)",
        )],
    ),
    // Dedupe keys.
    fault(
        "a dedupe key of items is unique per tree",
        "add_rows",
        &[
            (
                "SELECT u.job, u.key, u.seq FROM unnest(p_jobs, p_dedupes, fresh)",
                "SELECT (SELECT j.root FROM job j WHERE j.num = u.job), u.key, u.seq FROM unnest(p_jobs, p_dedupes, fresh)",
            ),
            ("d.job = u.job AND d.key", "d.job = (SELECT j.root FROM job j WHERE j.num = u.job) AND d.key"),
        ],
    ),
    fault(
        "dedupe keys of items are ignored",
        "add_rows",
        &[("WHERE u.key IS NOT NULL ORDER BY u.job", "WHERE false ORDER BY u.job")],
    ),
    SqlFault {
        name: "a dedupe key of jobs is unique per tree",
        function: None,
        changes: &[
            ("", "ALTER TABLE hostler_jobs.job DROP CONSTRAINT job_type_dedupe_key_key"),
            ("", "CREATE UNIQUE INDEX ON hostler_jobs.job (root, type, dedupe_key)"),
        ],
    },
    // Results of trees.
    fault("final_stage is ignored", "create_tree", &[("u.final,", "true,")]),
    // Deletion.
    fault(
        "a deletion spares the jobs below",
        "delete_job",
        &[("ON c.parent = below.num", "ON false AND c.parent = below.num")],
    ),
    fault("a deleted job stays open in its tree", "delete_job", &[("IF opens IS NOT NULL THEN", "IF false THEN")]),
    fault("a complete job that is deleted counts as open", "delete_job", &[("FILTER (WHERE NOT complete)", "")]),
    fault(
        "a heartbeat of a deleted job is accepted",
        "heartbeat",
        &[("AND EXISTS (SELECT FROM job j WHERE j.num = a.job)", "")],
    ),
    fault(
        "a release of a deleted job is accepted",
        "release",
        &[("AND EXISTS (SELECT FROM job j WHERE j.num = a.job)", "")],
    ),
    fault("a deleted item keeps its key", "clear_remains", &[("PERFORM line_up(idle_keys(keys));", "")]),
];
