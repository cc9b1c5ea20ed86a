-- Settling: results, failures, missed heartbeats.

-- Passes serialize keys on: the items given have ended, the next of each key becomes ready.
-- Locks: the rows of the keys, in the order of keys.
CREATE FUNCTION hostler_jobs.pass_on(p_keys text[], p_seqs bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM FROM serial_key k WHERE k.key = ANY (p_keys) ORDER BY k.key FOR UPDATE;
    WITH gone AS (
        DELETE FROM waiting w USING unnest(p_keys, p_seqs) e (key, seq) WHERE w.key = e.key AND w.seq = e.seq
        RETURNING w.key, w.seq
    ), next AS (
        SELECT g.key AS ended, n.* FROM gone g LEFT JOIN LATERAL (
            SELECT w.* FROM waiting w WHERE w.key = g.key AND w.seq <> g.seq ORDER BY w.key, w.seq LIMIT 1) n ON true
    ), first AS (
        INSERT INTO ready (type, priority, seq, day, job, key)
        SELECT n.type, n.priority, n.seq, n.day, n.job, n.key FROM next n WHERE n.seq IS NOT NULL
    )
    DELETE FROM serial_key k USING next n WHERE n.seq IS NULL AND k.key = n.ended;
END $$;

-- Ends assignments. The arrays have an entry for each; the caller sorts them by `p_seqs`.
-- `p_delays`: seconds before the next attempt, null for the back-off: `p_jitters` (0 to 1) times `p_ceilings` (by the number of
-- failures, from 1). `p_fed`: whether the items of the children's feeds are given; otherwise results that feed children are left
-- as they are, with status 3. `p_feed_items` holds positions. `p_age`: only assignments without a heartbeat for so many seconds.
-- Status: 1 accepted, now or before; 2 stale; 3 see above.
-- Locks: rows of `assignment` in the order given; then those of `pass_on`. Inserts everywhere else.
CREATE FUNCTION hostler_jobs.settle(
    p_days int[], p_seqs bigint[], p_tokens bigint[], p_ok boolean[], p_bodies text[], p_delays float8[], p_jitters float8[],
    p_ceilings float8[], p_fed boolean, p_feed_items int[], p_feed_jobs bigint[], p_feed_payloads text[], p_age float8)
RETURNS TABLE (n int, status smallint, retry_at text, job bigint)
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    ended int[];
    retries timestamptz[];
    keys text[];
    key_seqs bigint[];
BEGIN
    WITH gone AS (
        DELETE FROM assignment a
        USING unnest(p_seqs, p_tokens, p_ok, p_bodies, p_delays, p_jitters) WITH ORDINALITY g (seq, token, ok, body, delay, jitter, n),
            job j
        WHERE a.seq = g.seq AND a.token = g.token AND j.num = a.job
            AND (p_fed OR NOT (g.ok AND j.feeds))
            AND (p_age IS NULL OR a.beat_at < clock_timestamp() - make_interval(secs => p_age))
        RETURNING g.n::int AS n, g.ok, g.body, a.day, a.seq, a.token, a.job, a.type, a.priority, a.key, a.worker,
            a.fails + 1 AS fails, g.ok OR a.fails + 1 > j.max_failures AS final,
            coalesce(g.delay, g.jitter * p_ceilings[least(a.fails + 1, cardinality(p_ceilings))], 0) AS delay
    ), kept AS MATERIALIZED (
        SELECT *, CASE WHEN NOT final THEN clock_timestamp() + make_interval(secs => delay) END AS retry_at FROM gone
    ), into_done AS (
        INSERT INTO done (day, seq, ok, result, token, job)
        SELECT day, seq, ok, CASE WHEN ok THEN body::json END, token, job FROM kept WHERE final
    ), into_failure AS (
        INSERT INTO failure (day, seq, token, job, error, worker, retry_at)
        SELECT day, seq, token, job, body::json, worker, retry_at FROM kept WHERE NOT ok
    ), into_later AS (
        INSERT INTO later (seq, due, type, priority, day, job, fails, key)
        SELECT seq, retry_at, type, priority, day, job, fails, key FROM kept WHERE NOT final AND delay > 0
    ), into_ready AS (
        INSERT INTO ready (type, priority, seq, day, job, fails, key)
        SELECT type, priority, seq, day, job, fails, key FROM kept WHERE NOT final AND delay <= 0
    ), into_delta AS (
        INSERT INTO delta (job, added, ok, failed)
        SELECT job, 0, count(*) FILTER (WHERE ok), count(*) FILTER (WHERE NOT ok) FROM kept WHERE final GROUP BY job
    )
    SELECT array_agg(n), array_agg(kept.retry_at), array_agg(key ORDER BY key) FILTER (WHERE final AND key IS NOT NULL),
        array_agg(seq ORDER BY key) FILTER (WHERE final AND key IS NOT NULL)
    INTO ended, retries, keys, key_seqs FROM kept;
    IF cardinality(p_feed_items) > 0 AND ended IS NOT NULL THEN
        -- The child's row is not locked: it cannot be complete before this transaction's change of its parent is folded in.
        WITH fed AS MATERIALIZED (
            SELECT nextval('item_seq') AS seq, c.num, c.type, p_days[f.n] AS day, f.payload
            FROM unnest(p_feed_items, p_feed_jobs, p_feed_payloads) f (n, child, payload)
            JOIN job c ON c.num = f.child WHERE f.n = ANY (ended)
        ), items AS (
            INSERT INTO item (day, seq, job, payload, priority) SELECT f.day, f.seq, f.num, f.payload::json, 0 FROM fed f
        ), line AS (
            INSERT INTO ready (type, priority, seq, day, job) SELECT f.type, 0, f.seq, f.day, f.num FROM fed f
        )
        INSERT INTO delta (job, added, ok, failed) SELECT f.num, count(*), 0, 0 FROM fed f GROUP BY f.num;
    END IF;
    IF keys IS NOT NULL THEN
        PERFORM pass_on(keys, key_seqs);
    END IF;
    RETURN QUERY SELECT u.n, 1::smallint, rfc3339(u.at), NULL::bigint FROM unnest(ended, retries) u (n, at);
    IF coalesce(cardinality(ended), 0) < cardinality(p_seqs) THEN
        RETURN QUERY SELECT g.n::int,
            CASE WHEN a.job IS NOT NULL THEN 3 WHEN j.num IS NOT NULL THEN 1 ELSE 2 END::smallint, rfc3339(f.retry_at), a.job
        FROM unnest(p_days, p_seqs, p_tokens, p_ok) WITH ORDINALITY g (day, seq, token, ok, n)
        LEFT JOIN LATERAL (SELECT x.job FROM assignment x JOIN job j ON j.num = x.job
            WHERE x.seq = g.seq AND x.token = g.token AND g.ok AND NOT p_fed AND j.feeds LIMIT 1) a ON true
        LEFT JOIN LATERAL (SELECT d.job FROM done d
            WHERE d.day = g.day AND d.seq = g.seq AND d.token = g.token AND d.ok AND g.ok LIMIT 1) d ON true
        LEFT JOIN LATERAL (SELECT x.job, x.retry_at FROM failure x
            WHERE x.day = g.day AND x.seq = g.seq AND x.token = g.token AND NOT g.ok LIMIT 1) f ON true
        LEFT JOIN LATERAL (SELECT x.num FROM job x WHERE x.num = coalesce(d.job, f.job) LIMIT 1) j ON true
        WHERE ended IS NULL OR NOT (g.n = ANY (ended));
    END IF;
END $$;

-- Makes up to `p_max` items ready whose time has come. Returns their number.
-- Locks: rows of `later`, never waiting for any.
CREATE FUNCTION hostler_jobs.promote(p_max int) RETURNS int
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    met int;
BEGIN
    WITH due AS (
        DELETE FROM later WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM later WHERE due <= clock_timestamp() ORDER BY due LIMIT p_max FOR UPDATE SKIP LOCKED))
        RETURNING *
    ), line AS (
        INSERT INTO ready (type, priority, seq, day, job, fails, key)
        SELECT d.type, d.priority, d.seq, d.day, d.job, d.fails, d.key FROM due d
        WHERE EXISTS (SELECT FROM job j WHERE j.num = d.job)
    )
    SELECT count(*) INTO met FROM due;
    RETURN met;
END $$;
