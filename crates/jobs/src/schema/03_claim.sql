-- Claiming, assigning, heartbeats, release.

-- Gives up to `p_max` items of a type to a worker, the first in line first. If the jobs of all these were deleted, drops them, and
-- up to 1,000 more at the head of the line, and returns one row of nulls: the caller claims again, in another transaction.
-- Locks: rows of `ready`, never waiting for any. Inserts rows of `assignment`.
CREATE FUNCTION hostler_jobs.claim(p_type int, p_worker text, p_max int, p_salt bigint)
RETURNS TABLE (seq bigint, token bigint)
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    given bigint[];
    tokens bigint[];
    met int;
BEGIN
    WITH picked AS (
        DELETE FROM ready WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM ready WHERE type = p_type ORDER BY type, priority, seq LIMIT p_max FOR UPDATE SKIP LOCKED))
        RETURNING *
    ), live AS (
        INSERT INTO assignment (seq, token, beat_at, type, priority, day, job, fails, worker, key)
        SELECT p.seq, hashint8extended(p.seq, p_salt), clock_timestamp(), p.type, p.priority, p.day, p.job, p.fails, p_worker, p.key
        FROM picked p CROSS JOIN LATERAL (SELECT FROM job j WHERE j.num = p.job LIMIT 1) j
        RETURNING seq, token, priority
    )
    SELECT (SELECT count(*) FROM picked), (SELECT array_agg(l.seq ORDER BY l.priority, l.seq) FROM live l),
        (SELECT array_agg(l.token ORDER BY l.priority, l.seq) FROM live l)
    INTO met, given, tokens;
    IF given IS NOT NULL THEN
        RETURN QUERY SELECT u.seq, u.token FROM unnest(given, tokens) u (seq, token);
    ELSIF met > 0 THEN
        DELETE FROM ready WHERE ctid = ANY (ARRAY(
            SELECT r.ctid FROM (SELECT ctid, job FROM ready WHERE type = p_type ORDER BY type, priority, seq LIMIT 1000
                FOR UPDATE SKIP LOCKED) r
            WHERE NOT EXISTS (SELECT FROM job j WHERE j.num = r.job)));
        RETURN QUERY SELECT NULL::bigint, NULL::bigint;
    END IF;
END $$;

-- The last 20 failures of an item as JSON text, the oldest first. An error longer than 16 KiB is the beginning of its text.
CREATE FUNCTION hostler_jobs.failures_of(p_day int, p_seq bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = hostler_jobs, pg_temp AS $$
    SELECT json_agg(json_build_object('error', CASE WHEN octet_length(f.error::text) <= 16384 THEN f.error
        ELSE to_json(left(f.error::text, 16384)) END, 'worker_id', f.worker, 'at', rfc3339(f.at)) ORDER BY f.at, f.token)::text
    FROM (SELECT * FROM failure l WHERE l.day = p_day AND l.seq = p_seq ORDER BY l.at DESC, l.token DESC LIMIT 20) f
$$;

-- The items of assignments, in the order of `p_seqs`. Volatile, so that it sees the assignments that `claim` made in the same
-- statement.
CREATE FUNCTION hostler_jobs.assigned_items(p_seqs bigint[], p_tokens bigint[])
RETURNS TABLE (seq bigint, token bigint, day int, id text, job_id text, root_id text, type text, payload text, metadata text,
    dedupe_key text, serialize_key text, priority smallint, failures text, created_at text)
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT a.seq, a.token, a.day, i.id, j.id, r.id, t.name, i.payload::text, i.metadata::text, i.dedupe_key, i.serialize_key,
        i.priority, CASE WHEN f.any THEN failures_of(a.day, a.seq) END, rfc3339(i.at)
    FROM unnest(p_seqs, p_tokens) WITH ORDINALITY g (seq, token, n)
    CROSS JOIN LATERAL (SELECT * FROM assignment a WHERE a.seq = g.seq AND a.token = g.token LIMIT 1) a
    CROSS JOIN LATERAL (SELECT * FROM item i WHERE i.day = a.day AND i.seq = a.seq LIMIT 1) i
    CROSS JOIN LATERAL (SELECT * FROM job j WHERE j.num = a.job LIMIT 1) j
    CROSS JOIN LATERAL (SELECT * FROM job r WHERE r.num = j.root LIMIT 1) r
    CROSS JOIN LATERAL (SELECT * FROM job_type t WHERE t.id = j.type LIMIT 1) t
    CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM failure f WHERE f.day = a.day AND f.seq = a.seq) AS any) f
    ORDER BY g.n;
END $$;

-- Gives one item to a worker. Returns `given`, or the reason against it: `missing`, `done`, `assigned`, `retry_at`,
-- `serialize_key`; `moving` if the item is changing places: try again.
-- Locks: the item's row of `ready` or `later`.
CREATE FUNCTION hostler_jobs.assign(p_day int, p_seq bigint, p_worker text, p_salt bigint, OUT outcome text, OUT token bigint)
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp AS $$
DECLARE
    i record;
    r record;
BEGIN
    SELECT item.priority, j.type INTO i FROM item JOIN job j ON j.num = item.job WHERE item.day = p_day AND item.seq = p_seq;
    IF NOT FOUND THEN
        outcome := 'missing';
        RETURN;
    END IF;
    DELETE FROM ready d WHERE d.type = i.type AND d.priority = i.priority AND d.seq = p_seq
    RETURNING d.type, d.priority, d.day, d.job, d.fails, d.key INTO r;
    IF NOT FOUND THEN
        DELETE FROM later d WHERE d.seq = p_seq AND d.due <= clock_timestamp()
        RETURNING d.type, d.priority, d.day, d.job, d.fails, d.key INTO r;
    END IF;
    IF FOUND THEN
        token := hashint8extended(p_seq, p_salt);
        INSERT INTO assignment (seq, token, beat_at, type, priority, day, job, fails, worker, key)
        VALUES (p_seq, token, clock_timestamp(), r.type, r.priority, r.day, r.job, r.fails, p_worker, r.key);
        outcome := 'given';
        RETURN;
    END IF;
    -- One statement, so that all tables are seen at the same moment.
    SELECT CASE
        WHEN EXISTS (SELECT FROM done d WHERE d.day = p_day AND d.seq = p_seq) THEN 'done'
        WHEN EXISTS (SELECT FROM assignment a WHERE a.seq = p_seq) THEN 'assigned'
        WHEN EXISTS (SELECT FROM later l WHERE l.seq = p_seq) THEN 'retry_at'
        WHEN EXISTS (SELECT FROM ready d WHERE d.type = i.type AND d.priority = i.priority AND d.seq = p_seq) THEN 'moving'
        WHEN EXISTS (SELECT FROM item JOIN waiting w ON w.key = item.serialize_key AND w.seq = item.seq
            WHERE item.day = p_day AND item.seq = p_seq) THEN 'serialize_key'
        ELSE 'missing' END INTO outcome;
END $$;

-- Extends assignments, and notes the progress of those that have one. Returns those that are alive.
-- Locks: rows of `assignment`, in the order of `p_seqs`, which the caller sorts.
CREATE FUNCTION hostler_jobs.heartbeat(p_seqs bigint[], p_tokens bigint[], p_fractions float8[], p_notes text[])
RETURNS TABLE (seq bigint, token bigint)
LANGUAGE sql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
    UPDATE assignment a SET beat_at = clock_timestamp(), fraction = coalesce(g.fraction, a.fraction), note = coalesce(g.note, a.note)
    FROM unnest(p_seqs, p_tokens, p_fractions, p_notes) g (seq, token, fraction, note)
    WHERE a.seq = g.seq AND a.token = g.token AND EXISTS (SELECT FROM job j WHERE j.num = a.job)
    RETURNING a.seq, a.token
$$;

-- Gives items back without a failure, to be claimed after `p_delay` seconds. Returns those that were alive.
-- Locks: rows of `assignment`, in the order of `p_seqs`, which the caller sorts; then those of the serialize keys, in order.
CREATE FUNCTION hostler_jobs.release(p_seqs bigint[], p_tokens bigint[], p_delay float8) RETURNS TABLE (seq bigint, token bigint)
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := CASE WHEN p_delay > 0 THEN clock_timestamp() + make_interval(secs => p_delay) END;
    given bigint[];
    tokens bigint[];
    keys text[];
    key_seqs bigint[];
    key_fails int[];
BEGIN
    WITH back AS (
        DELETE FROM assignment a USING unnest(p_seqs, p_tokens) g (seq, token)
        WHERE a.seq = g.seq AND a.token = g.token AND EXISTS (SELECT FROM job j WHERE j.num = a.job)
        RETURNING a.*
    ), line AS (
        INSERT INTO ready (type, priority, seq, day, job, fails, key)
        SELECT b.type, b.priority, b.seq, b.day, b.job, b.fails, b.key FROM back b WHERE b.key IS NULL AND moment IS NULL
    ), wait AS (
        INSERT INTO later (seq, due, type, priority, day, job, fails, key)
        SELECT b.seq, moment, b.type, b.priority, b.day, b.job, b.fails, b.key FROM back b WHERE b.key IS NULL AND moment IS NOT NULL
    )
    SELECT array_agg(b.seq), array_agg(b.token), array_agg(b.key ORDER BY b.seq) FILTER (WHERE b.key IS NOT NULL),
        array_agg(b.seq ORDER BY b.seq) FILTER (WHERE b.key IS NOT NULL),
        array_agg(b.fails ORDER BY b.seq) FILTER (WHERE b.key IS NOT NULL)
    INTO given, tokens, keys, key_seqs, key_fails FROM back b;
    IF keys IS NOT NULL THEN
        PERFORM lock_keys(keys);
        PERFORM put_back(keys, key_seqs, key_fails, array_fill(moment, ARRAY[cardinality(keys)]));
    END IF;
    RETURN QUERY SELECT u.seq, u.token FROM unnest(given, tokens) u (seq, token);
END $$;
