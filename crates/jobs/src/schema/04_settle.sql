-- Settling: results, failures, missed heartbeats.

-- Passes serialize keys on: the items given have ended, the next of each key gets in line. The caller has locked the keys.
CREATE FUNCTION hostler_jobs.pass_on(p_keys text[], p_seqs bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH gone AS (
        DELETE FROM waiting w USING unnest(p_keys, p_seqs) e (key, seq) WHERE w.key = e.key AND w.seq = e.seq
        RETURNING w.key, w.seq
    ), next AS MATERIALIZED (
        SELECT g.key AS ended, n.*, n.due > clock_timestamp() AS is_late FROM gone g LEFT JOIN LATERAL (
            SELECT w.* FROM waiting w WHERE w.key = g.key AND w.seq <> g.seq ORDER BY w.key, w.seq LIMIT 1) n ON true
    ), first AS (
        INSERT INTO ready (type, priority, seq, day, job, fails, key)
        SELECT n.type, n.priority, n.seq, n.day, n.job, n.fails, n.key FROM next n WHERE n.seq IS NOT NULL AND n.is_late IS NOT TRUE
    ), wait AS (
        INSERT INTO later (seq, due, type, priority, day, job, fails, key)
        SELECT n.seq, n.due, n.type, n.priority, n.day, n.job, n.fails, n.key FROM next n WHERE n.is_late
    )
    DELETE FROM serial_key k USING next n WHERE n.seq IS NULL AND k.key = n.ended;
END $$;

-- Puts the items of keys, whose assignments have ended, back in line, or older ones that were retried meanwhile. The caller has
-- locked the keys.
CREATE FUNCTION hostler_jobs.put_back(p_keys text[], p_seqs bigint[], p_fails int[], p_dues timestamptz[]) RETURNS void
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    keys text[];
BEGIN
    WITH back AS (
        UPDATE waiting w SET fails = e.fails, due = e.due FROM unnest(p_keys, p_seqs, p_fails, p_dues) e (key, seq, fails, due)
        WHERE w.key = e.key AND w.seq = e.seq RETURNING w.key
    )
    SELECT array_agg(b.key) INTO keys FROM back b;
    PERFORM line_up(keys);
END $$;

-- Ends assignments. The arrays have an entry for each; the caller sorts them by `p_seqs`. An entry whose day is not the
-- assignment's is stale.
-- `p_kinds`: `success`, `more` (a success that adds items or seals jobs), `failure`, `final` (a failure after which there is no
-- attempt), `refused` (a failure in place of a result), `expired` (missed heartbeats).
-- `p_delays`: seconds before the next attempt, null for the back-off: `p_jitters` (0 to 1) times `p_ceilings` (by the number of
-- failures, from 1). `p_fed`: whether the items of the children's feeds are given; otherwise results that feed children, and those
-- with more, are left as they are, with status 3. `p_feed_items` holds positions. `p_age`: only assignments without a heartbeat for so many seconds.
-- Status: 1 accepted, now or before; 2 stale; 3 see above. A failure by missed heartbeats is never accepted as the worker's own.
-- Locks: rows of `assignment` in the order given; then those of their serialize keys, in order. Inserts everywhere else.
CREATE FUNCTION hostler_jobs.settle(
    p_days int[], p_seqs bigint[], p_tokens bigint[], p_kinds text[], p_bodies text[], p_delays float8[], p_jitters float8[],
    p_ceilings float8[], p_fed boolean, p_feed_items int[], p_feed_jobs bigint[], p_feed_payloads text[], p_age float8)
RETURNS TABLE (n int, status smallint, retry_at text, job bigint)
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    ended int[];
    retries timestamptz[];
    keys text[];
    key_seqs bigint[];
    back_keys text[];
    back_seqs bigint[];
    back_fails int[];
    back_dues timestamptz[];
BEGIN
    WITH gone AS (
        DELETE FROM assignment a
        USING unnest(p_days, p_seqs, p_tokens, p_kinds, p_bodies, p_delays, p_jitters)
                WITH ORDINALITY g (day, seq, token, kind, body, delay, jitter, n),
            job j
        WHERE a.seq = g.seq AND a.token = g.token AND a.day = g.day AND j.num = a.job
            AND (p_fed OR NOT (g.kind = 'more' OR g.kind = 'success' AND j.feeds))
            AND (p_age IS NULL OR a.beat_at < clock_timestamp() - make_interval(secs => p_age))
        RETURNING g.n::int AS n, g.kind, g.kind IN ('success', 'more') AS ok, g.body, a.day, a.seq, a.token, a.job, a.type,
            a.priority, a.key, a.worker, a.fails + 1 AS fails,
            g.kind IN ('success', 'more', 'final') OR a.fails + 1 > j.max_failures AS final,
            coalesce(g.delay, g.jitter * p_ceilings[least(a.fails + 1, cardinality(p_ceilings))], 0) AS delay
    ), kept AS MATERIALIZED (
        SELECT *, CASE WHEN NOT final THEN clock_timestamp() + make_interval(secs => delay) END AS retry_at FROM gone
    ), into_done AS (
        INSERT INTO done (day, seq, ok, result, token, job)
        SELECT day, seq, ok, CASE WHEN ok THEN body::json END, token, job FROM kept WHERE final
    ), into_failure AS (
        INSERT INTO failure (day, seq, token, job, kind, error, worker, retry_at)
        SELECT day, seq, token, job, kind, body::json, worker, retry_at FROM kept WHERE NOT ok
    ), into_later AS (
        INSERT INTO later (seq, due, type, priority, day, job, fails, key)
        SELECT seq, retry_at, type, priority, day, job, fails, key FROM kept WHERE NOT final AND delay > 0 AND key IS NULL
    ), into_ready AS (
        INSERT INTO ready (type, priority, seq, day, job, fails, key)
        SELECT type, priority, seq, day, job, fails, key FROM kept WHERE NOT final AND delay <= 0 AND key IS NULL
    ), into_delta AS (
        INSERT INTO delta (job, added, ok, failed)
        SELECT job, 0, count(*) FILTER (WHERE ok), count(*) FILTER (WHERE NOT ok) FROM kept WHERE final GROUP BY job
    )
    SELECT array_agg(n), array_agg(kept.retry_at), array_agg(key ORDER BY key) FILTER (WHERE final AND key IS NOT NULL),
        array_agg(seq ORDER BY key) FILTER (WHERE final AND key IS NOT NULL),
        array_agg(key ORDER BY seq) FILTER (WHERE NOT final AND key IS NOT NULL),
        array_agg(seq ORDER BY seq) FILTER (WHERE NOT final AND key IS NOT NULL),
        array_agg(fails ORDER BY seq) FILTER (WHERE NOT final AND key IS NOT NULL),
        array_agg(CASE WHEN delay > 0 THEN kept.retry_at END ORDER BY seq) FILTER (WHERE NOT final AND key IS NOT NULL)
    INTO ended, retries, keys, key_seqs, back_keys, back_seqs, back_fails, back_dues FROM kept;
    IF cardinality(p_feed_items) > 0 AND ended IS NOT NULL THEN
        -- The child's row is not locked: it cannot be complete before this transaction's change of its parent is folded in.
        WITH fed AS MATERIALIZED (
            SELECT nextval('item_seq') AS seq, c.num, c.type, c.day, f.payload
            FROM unnest(p_feed_items, p_feed_jobs, p_feed_payloads) f (n, child, payload)
            JOIN job c ON c.num = f.child WHERE f.n = ANY (ended)
        ), items AS (
            INSERT INTO item (day, seq, job, payload, priority) SELECT f.day, f.seq, f.num, f.payload::json, 0 FROM fed f
        ), line AS (
            INSERT INTO ready (type, priority, seq, day, job) SELECT f.type, 0, f.seq, f.day, f.num FROM fed f
        )
        INSERT INTO delta (job, added, ok, failed) SELECT f.num, count(*), 0, 0 FROM fed f GROUP BY f.num;
    END IF;
    IF keys IS NOT NULL OR back_keys IS NOT NULL THEN
        PERFORM lock_keys(keys || back_keys);
    END IF;
    IF keys IS NOT NULL THEN
        PERFORM pass_on(keys, key_seqs);
    END IF;
    IF back_keys IS NOT NULL THEN
        PERFORM put_back(back_keys, back_seqs, back_fails, back_dues);
    END IF;
    RETURN QUERY SELECT u.n, 1::smallint, rfc3339(u.at), NULL::bigint FROM unnest(ended, retries) u (n, at);
    IF coalesce(cardinality(ended), 0) < cardinality(p_seqs) THEN
        RETURN QUERY SELECT g.n::int,
            CASE WHEN a.job IS NOT NULL THEN 3 WHEN j.num IS NOT NULL THEN 1 ELSE 2 END::smallint, rfc3339(f.retry_at), a.job
        FROM (SELECT u.*, u.kind IN ('success', 'more', 'refused') AS is_result
            FROM unnest(p_days, p_seqs, p_tokens, p_kinds) WITH ORDINALITY u (day, seq, token, kind, n)) g
        LEFT JOIN LATERAL (SELECT x.job FROM assignment x JOIN job j ON j.num = x.job
            WHERE x.seq = g.seq AND x.token = g.token AND x.day = g.day AND NOT p_fed AND (g.kind = 'more' OR g.kind = 'success' AND j.feeds) LIMIT 1) a ON true
        LEFT JOIN LATERAL (SELECT d.job FROM done d
            WHERE d.day = g.day AND d.seq = g.seq AND d.token = g.token AND d.ok AND g.is_result LIMIT 1) d ON true
        LEFT JOIN LATERAL (SELECT x.job, x.retry_at FROM failure x
            WHERE x.day = g.day AND x.seq = g.seq AND x.token = g.token
                AND x.kind <> 'expired' AND g.kind <> 'expired' AND g.is_result = (x.kind = 'refused') LIMIT 1) f ON true
        LEFT JOIN LATERAL (SELECT x.num FROM job x WHERE x.num = coalesce(d.job, f.job) LIMIT 1) j ON true
        WHERE ended IS NULL OR NOT (g.n = ANY (ended));
    END IF;
END $$;

-- Ends assignments by results of which some add items to jobs of the tree and seal jobs of it. The first parameters are those of
-- `settle`. `p_add_ns` and `p_seal_ns` hold positions of results; a target is the id of a job of the item's tree, or the type of
-- one child of the item's job. All items of these results are added before jobs are sealed. A result with a target that is
-- unknown, that is sealed and gets items, or that is to be sealed, open and has a feed, becomes a failure that says so, and nothing
-- of it is added. Items with `p_add_fed` are of an applet: the target is the id of the child. They are added to a sealed child as
-- well, as it is not complete yet, and a child that was deleted gets none.
-- Locks: rows of jobs in order, against sealing and deletion (KEY SHARE) or against adders (UPDATE); rows of `assignment` in the
-- order given; the rows of the serialize keys of items that are added or end, in order; those of `add_rows` and `settle`.
CREATE FUNCTION hostler_jobs.settle_more(
    p_days int[], p_seqs bigint[], p_tokens bigint[], p_kinds text[], p_bodies text[], p_delays float8[], p_jitters float8[],
    p_ceilings float8[], p_feed_items int[], p_feed_jobs bigint[], p_feed_payloads text[],
    p_add_ns int[], p_add_targets text[], p_add_fed boolean[], p_payloads text[], p_dedupes text[], p_keys text[],
    p_priorities smallint[], p_metas text[], p_seal_ns int[], p_seal_targets text[])
RETURNS TABLE (n int, status smallint, retry_at text, job bigint)
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    t record;
    ns int[];
    names text[];
    feds boolean[];
    nums bigint[];
    faults text[];
    errors text[];
    live int[];
    kinds text[] := p_kinds;
    bodies text[] := p_bodies;
    seals bigint[];
BEGIN
    -- The targets of all results. One that is given by id is preferred to a child of that type.
    WITH wanted AS (
        SELECT DISTINCT u.n, u.target, u.fed FROM (
            SELECT * FROM unnest(p_add_ns, p_add_targets, p_add_fed)
            UNION ALL SELECT s.n, s.target, false FROM unnest(p_seal_ns, p_seal_targets) s (n, target)) u (n, target, fed)
    )
    SELECT array_agg(w.n), array_agg(w.target), array_agg(w.fed),
        array_agg(CASE WHEN w.fed THEN i.num ELSE coalesce(i.num, c.num) END), array_agg(CASE
        WHEN w.fed THEN NULL
        WHEN i.num IS NULL AND c.children = 0 THEN 'names no job of the tree and no type of a child'
        WHEN i.num IS NULL AND c.children > 1 THEN 'is the type of several children: name one by its id' END)
    INTO ns, names, feds, nums, faults
    FROM wanted w
    JOIN assignment a ON a.seq = p_seqs[w.n] AND a.token = p_tokens[w.n] AND a.day = p_days[w.n]
    JOIN job own ON own.num = a.job
    LEFT JOIN LATERAL (SELECT j.num FROM job j WHERE j.id = w.target AND j.root = own.root LIMIT 1) i ON true
    CROSS JOIN LATERAL (SELECT min(j.num) AS num, count(*) AS children FROM job j JOIN job_type k ON k.id = j.type
        WHERE j.parent = own.num AND k.name = w.target) c;
    FOR t IN
        SELECT u.num, bool_or(EXISTS (SELECT FROM unnest(p_seal_ns, p_seal_targets) s (n, target)
            WHERE s.n = u.n AND s.target = u.name)) AS seal
        FROM unnest(ns, names, nums, faults) u (n, name, num, fault)
        WHERE u.fault IS NULL AND u.num IS NOT NULL GROUP BY u.num ORDER BY u.num
    LOOP
        IF t.seal THEN
            PERFORM FROM job j WHERE j.num = t.num FOR UPDATE;
        ELSE
            PERFORM FROM job j WHERE j.num = t.num FOR KEY SHARE;
        END IF;
    END LOOP;
    -- From here on, the targets are neither sealed nor deleted by others, and the assignments end here.
    SELECT array_agg(l.n) INTO live FROM (
        SELECT g.n::int AS n FROM unnest(p_days, p_seqs, p_tokens) WITH ORDINALITY g (day, seq, token, n)
        JOIN assignment a ON a.seq = g.seq AND a.token = g.token AND a.day = g.day
        WHERE EXISTS (SELECT FROM job j WHERE j.num = a.job) ORDER BY g.n FOR UPDATE OF a) l;
    SELECT array_agg(CASE
        WHEN u.fed THEN NULL
        WHEN u.fault IS NOT NULL THEN u.fault
        WHEN j.num IS NULL THEN 'was deleted'
        WHEN j.sealed AND EXISTS (SELECT FROM unnest(p_add_ns, p_add_targets, p_add_fed) x (n, target, fed)
            WHERE x.n = u.n AND x.target = u.name AND NOT x.fed) THEN 'is sealed, and takes no items'
        WHEN j.feed IS NOT NULL AND NOT j.sealed AND EXISTS (SELECT FROM unnest(p_seal_ns, p_seal_targets) x (n, target)
            WHERE x.n = u.n AND x.target = u.name) THEN 'has a feed, and is sealed when its parent is complete' END ORDER BY u.o)
    INTO errors
    FROM unnest(ns, names, feds, nums, faults) WITH ORDINALITY u (n, name, fed, num, fault, o) LEFT JOIN job j ON j.num = u.num;
    FOR t IN SELECT u.n, u.name, u.error FROM unnest(ns, names, errors) u (n, name, error) WHERE u.error IS NOT NULL
        ORDER BY u.n, u.name DESC
    LOOP
        kinds[t.n] := 'refused';
        bodies[t.n] := to_json(format('the result was refused: the target %s %s', to_json(t.name), t.error))::text;
    END LOOP;
    -- The keys of the items that are added and of those that end, in one order.
    IF EXISTS (SELECT FROM unnest(p_keys) k WHERE k IS NOT NULL) THEN
        INSERT INTO serial_key AS s (key)
        SELECT DISTINCT u.k COLLATE "C" FROM (
            SELECT a.key FROM unnest(p_add_ns, p_keys) a (n, key) WHERE a.n = ANY (live) AND kinds[a.n] <> 'refused'
            UNION ALL
            SELECT a.key FROM unnest(live) l JOIN assignment a ON a.seq = p_seqs[l]) u (k)
        WHERE u.k IS NOT NULL ORDER BY u.k COLLATE "C"
        ON CONFLICT (key) DO UPDATE SET key = excluded.key;
    END IF;
    FOR t IN
        SELECT j.day, array_agg(r.num ORDER BY a.o) AS jobs, array_agg(j.type ORDER BY a.o) AS types,
            array_agg(a.payload ORDER BY a.o) AS payloads, array_agg(a.dedupe ORDER BY a.o) AS dedupes,
            array_agg(a.key ORDER BY a.o) AS keys, array_agg(a.priority ORDER BY a.o) AS priorities,
            array_agg(a.meta ORDER BY a.o) AS metas, count(a.dedupe) > 0 AS has_dedupes, count(a.key) > 0 AS has_keys
        FROM unnest(p_add_ns, p_add_targets, p_add_fed, p_payloads, p_dedupes, p_keys, p_priorities, p_metas)
            WITH ORDINALITY a (n, target, fed, payload, dedupe, key, priority, meta, o)
        JOIN unnest(ns, names, feds, nums) r (n, name, fed, num) ON r.n = a.n AND r.name = a.target AND r.fed = a.fed
        JOIN job j ON j.num = r.num
        WHERE a.n = ANY (live) AND kinds[a.n] <> 'refused' AND a.payload IS NOT NULL GROUP BY 1
    LOOP
        INSERT INTO delta (job, added, ok, failed)
        SELECT u.job, count(*), 0, 0
        FROM add_rows(t.day, t.jobs, t.types, t.payloads, NULL, CASE WHEN t.has_dedupes THEN t.dedupes END,
            CASE WHEN t.has_keys THEN t.keys END, t.priorities, t.metas) r,
            unnest(t.jobs, r.seqs, r.fresh) u (job, seq, own)
        WHERE u.seq = u.own GROUP BY u.job;
    END LOOP;
    seals := ARRAY(SELECT DISTINCT r.num FROM unnest(p_seal_ns, p_seal_targets) s (n, target)
        JOIN unnest(ns, names, nums) r (n, name, num) ON r.n = s.n AND r.name = s.target
        WHERE s.n = ANY (live) AND kinds[s.n] <> 'refused');
    WITH sealed AS (UPDATE job SET sealed = true WHERE num = ANY (seals) AND NOT sealed RETURNING num)
    INSERT INTO delta (job, added, ok, failed) SELECT num, 0, 0, 0 FROM sealed;
    RETURN QUERY SELECT s.n, s.status, s.retry_at, s.job FROM settle(p_days, p_seqs, p_tokens, kinds, bodies, p_delays, p_jitters,
        p_ceilings, true,
        ARRAY(SELECT f.n FROM unnest(p_feed_items) WITH ORDINALITY f (n, o) WHERE kinds[f.n] <> 'refused' ORDER BY f.o),
        ARRAY(SELECT f.job FROM unnest(p_feed_items, p_feed_jobs) WITH ORDINALITY f (n, job, o) WHERE kinds[f.n] <> 'refused' ORDER BY f.o),
        ARRAY(SELECT f.payload FROM unnest(p_feed_items, p_feed_payloads) WITH ORDINALITY f (n, payload, o)
            WHERE kinds[f.n] <> 'refused' ORDER BY f.o), NULL) s;
END $$;

-- Makes up to `p_max` items ready whose time has come. Returns their number.
-- Locks: rows of `later`, never waiting for any.
CREATE FUNCTION hostler_jobs.promote(p_max int) RETURNS int
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
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
