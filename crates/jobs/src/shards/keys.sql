-- The steps of serialize keys across databases. Each is one transaction in one database, and may be repeated.

-- At a key's home: takes tickets for a database, in the order given. Those that are known change nothing. One that comes again after
-- its item has ended costs a grant, which the database returns at once.
-- Locks: rows of `line`, in the order of keys.
CREATE FUNCTION hostler_shards.register(p_shard smallint, p_wants bigint[], p_keys text[], p_seqs bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = hostler_shards, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    INSERT INTO line AS l (key) SELECT DISTINCT k COLLATE "C" FROM unnest(p_keys) k ORDER BY k COLLATE "C"
    ON CONFLICT (key) DO UPDATE SET key = excluded.key;
    INSERT INTO ticket (key, shard, want, seq)
    SELECT u.key, p_shard, u.want, u.seq FROM unnest(p_wants, p_keys, p_seqs) WITH ORDINALITY u (want, key, seq, n) ORDER BY u.n
    ON CONFLICT (shard, want) DO NOTHING;
END $$;

-- At a key's home: grants up to `p_max` free keys, each to the database of its first ticket, for at most 1,000 tickets. Returns their number.
-- Locks: rows of `line`, never waiting for any.
CREATE FUNCTION hostler_shards.grant_keys(p_max int) RETURNS int
LANGUAGE plpgsql SET search_path = hostler_shards, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    keys text[];
BEGIN
    keys := ARRAY(SELECT l.key FROM line l WHERE l.holder IS NULL LIMIT p_max FOR UPDATE SKIP LOCKED);
    IF cardinality(keys) = 0 THEN
        RETURN 0;
    END IF;
    -- Lines without a ticket: there are none, unless a row was deleted by hand.
    DELETE FROM line l WHERE l.key = ANY (keys) AND NOT EXISTS (SELECT FROM ticket t WHERE t.key = l.key);
    UPDATE line l SET holder = r.shard, fence = nextval('fence'), last = r.last, upto = r.upto, due = '-infinity'
    FROM unnest(keys) k CROSS JOIN LATERAL (
        SELECT min(w.shard) AS shard, max(w.number) AS last, max(w.seq) AS upto
        FROM (SELECT x.*, bool_or(x.shard <> x.first) OVER (ORDER BY x.number) AS is_past
            FROM (SELECT t.number, t.shard, t.seq, first_value(t.shard) OVER (ORDER BY t.number) AS first
                FROM ticket t WHERE t.key = k ORDER BY t.key, t.number LIMIT 1000) x) w
        WHERE NOT w.is_past) r
    WHERE l.key = k AND r.shard IS NOT NULL;
    RETURN cardinality(keys);
END $$;

-- At a key's home: notes what a database said about grants: `held`, `done` or `stale`. One that is not the key's last grant
-- changes nothing. `held` extends the lease by `p_lease` seconds. Returns the number of keys that are free now.
-- Locks: rows of `line`, in the order of keys.
CREATE FUNCTION hostler_shards.answer(p_shard smallint, p_keys text[], p_fences bigint[], p_answers text[], p_lease float8) RETURNS int
LANGUAGE plpgsql SET search_path = hostler_shards, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    freed int;
BEGIN
    PERFORM FROM line l WHERE l.key = ANY (p_keys) ORDER BY l.key FOR UPDATE;
    UPDATE line l SET due = clock_timestamp() + make_interval(secs => p_lease)
    FROM unnest(p_keys, p_fences, p_answers) u (key, fence, answer)
    WHERE l.key = u.key AND l.holder = p_shard AND l.fence = u.fence AND u.answer = 'held';
    DELETE FROM ticket t USING unnest(p_keys, p_fences, p_answers) u (key, fence, answer), line l
    WHERE l.key = u.key AND l.holder = p_shard AND l.fence = u.fence AND u.answer = 'done'
        AND t.key = l.key AND t.number <= l.last AND t.shard = p_shard;
    UPDATE line l SET holder = NULL FROM unnest(p_keys, p_fences, p_answers) u (key, fence, answer)
    WHERE l.key = u.key AND l.holder = p_shard AND l.fence = u.fence AND u.answer IN ('done', 'stale');
    GET DIAGNOSTICS freed = ROW_COUNT;
    DELETE FROM line l WHERE l.key = ANY (p_keys) AND l.holder IS NULL AND NOT EXISTS (SELECT FROM ticket t WHERE t.key = l.key);
    RETURN freed;
END $$;

-- Where the items are: takes grants of a home, and puts the first items of their keys in line. Returns `held`; `done` if no item is
-- left, now or before; `stale` if the grant is older than one that was seen, so that nothing runs under it.
-- Locks: the advisory lock against `forget`; rows of serialize keys, in order; then as `line_up`.
CREATE FUNCTION hostler_shards.open_keys(p_home smallint, p_keys text[], p_fences bigint[], p_uptos bigint[])
RETURNS TABLE (key text, fence bigint, answer text)
LANGUAGE plpgsql SET search_path = hostler_shards, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7236837, 10);
    INSERT INTO hostler_jobs.serial_key AS s (key) SELECT DISTINCT k COLLATE "C" FROM unnest(p_keys) k ORDER BY k COLLATE "C"
    ON CONFLICT (key) DO UPDATE SET key = excluded.key;
    INSERT INTO held AS h (key, home, fence, upto, is_open)
    SELECT u.key, p_home, u.fence, u.upto, true FROM unnest(p_keys, p_fences, p_uptos) u (key, fence, upto)
    WHERE u.fence > coalesce((SELECT f.fence FROM floor f WHERE f.home = p_home), 0)
    ON CONFLICT (key) DO UPDATE SET fence = excluded.fence, upto = excluded.upto, is_open = true, is_told = false,
        at = clock_timestamp() WHERE excluded.fence > h.fence;
    PERFORM close_ended(p_keys);
    PERFORM hostler_jobs.line_up(hostler_jobs.idle_keys(ARRAY(SELECT h.key FROM held h WHERE h.key = ANY (p_keys) AND h.is_open)));
    DELETE FROM hostler_jobs.serial_key s WHERE s.key = ANY (p_keys)
        AND NOT EXISTS (SELECT FROM hostler_jobs.waiting w WHERE w.key = s.key);
    RETURN QUERY SELECT u.key, u.fence,
        CASE WHEN h.fence = u.fence AND h.is_open THEN 'held' WHEN h.fence = u.fence THEN 'done' ELSE 'stale' END
    FROM unnest(p_keys, p_fences) u (key, fence) LEFT JOIN held h ON h.key = u.key;
END $$;

-- Where the items are: forgets up to `p_max` grants that ended `p_age` seconds ago or earlier, and takes none that is as old from then on.
-- Returns their number.
-- Locks: the advisory lock against `open_keys`.
CREATE FUNCTION hostler_shards.forget(p_age float8, p_max int) RETURNS int
LANGUAGE plpgsql SET search_path = hostler_shards, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    forgotten int;
BEGIN
    IF NOT pg_try_advisory_xact_lock(7236837, 10) THEN
        RETURN 0;
    END IF;
    WITH gone AS (
        DELETE FROM held WHERE key = ANY (ARRAY(SELECT h.key FROM held h WHERE NOT h.is_open AND h.is_told
            AND h.at <= clock_timestamp() - make_interval(secs => p_age) ORDER BY h.at LIMIT p_max))
        RETURNING home, fence
    ), highest AS (
        INSERT INTO floor AS f (home, fence) SELECT g.home, max(g.fence) FROM gone g GROUP BY g.home
        ON CONFLICT (home) DO UPDATE SET fence = greatest(f.fence, excluded.fence)
    )
    SELECT count(*) INTO forgotten FROM gone;
    RETURN forgotten;
END $$;

-- The databases for which this one has something: as the place of items, tickets to be taken or grants that ended; as a home, grants
-- whose lease is over. `is_free`: a key waits to be granted.
CREATE FUNCTION hostler_shards.pending(OUT outgoing smallint[], OUT due smallint[], OUT is_free boolean)
LANGUAGE sql VOLATILE SET search_path = hostler_shards, pg_temp SET enable_seqscan = off SET jit = off AS $$
    SELECT
        ARRAY(SELECT g::smallint FROM place p CROSS JOIN generate_series(0, p.count - 1) g
            WHERE EXISTS (SELECT FROM wanted w WHERE w.home = g::smallint)
                OR EXISTS (SELECT FROM held h WHERE h.home = g::smallint AND NOT h.is_open AND NOT h.is_told)),
        ARRAY(SELECT g::smallint FROM place p CROSS JOIN generate_series(0, p.count - 1) g
            WHERE EXISTS (SELECT FROM line l WHERE l.holder = g::smallint AND l.due <= clock_timestamp())),
        EXISTS (SELECT FROM line l WHERE l.holder IS NULL)
$$;
