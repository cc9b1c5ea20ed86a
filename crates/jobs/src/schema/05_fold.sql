-- Folding counters, completion, deletion, retry. All of it runs under one advisory lock, (7236837, 1), taken first.

-- Marks jobs of trees closed; a tree without open jobs is complete, and its callback is due.
-- Locks: rows of roots.
CREATE FUNCTION hostler_jobs.close_jobs(p_roots bigint[]) RETURNS void
LANGUAGE sql SET search_path = hostler_jobs, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
    WITH less AS (
        SELECT r AS root, count(*) AS jobs FROM unnest(p_roots) r GROUP BY r
    ), closed AS (
        UPDATE job SET open_jobs = open_jobs - less.jobs,
            tree_completed_at = CASE WHEN open_jobs = less.jobs THEN clock_timestamp() END
        FROM less WHERE job.num = less.root
        RETURNING job.num, job.id, job.open_jobs, job.callback
    )
    INSERT INTO outbox (id, root, root_id, callback)
    SELECT gen_random_uuid()::text, c.num, c.id, c.callback FROM closed c WHERE c.open_jobs = 0 AND c.callback IS NOT NULL
$$;

-- Takes the lock of folding. Returns false if others hold it for half a second: they queue, so that no sweep starves.
CREATE FUNCTION hostler_jobs.lock_fold() RETURNS boolean
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp SET lock_timeout = '500ms' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7236837, 1);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Adds the deltas of all jobs, or of some, to the jobs' counters, then completes what is complete: a job whose parent is complete
-- is sealed; one that is sealed and has nothing pending is complete, and its children are looked at in turn.
-- Returns the number of jobs looked at; 0 as well if the lock is taken: for half a second if `p_wait`.
-- Locks: the advisory lock; rows of `job`. Whoever holds a child against sealing is not waited for: the next fold tries again.
--
-- Completion is decided in a statement after the one that read the deltas, by its own snapshot. A job that is sealed in it has no
-- item whose addition is not committed: adders hold the job's row, and sealing waits for them. So if no delta is left, `added` is
-- final. Results of a parent add items without that lock, but commit them together with the delta that the parent's own
-- completion needs.
CREATE FUNCTION hostler_jobs.fold(p_jobs bigint[], p_wait boolean) RETURNS int
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    touched bigint[];
    more bigint[];
    more_ok bigint[];
    more_failed bigint[];
    seals bigint[];
    closed bigint[];
    roots bigint[];
    looked int := 0;
BEGIN
    -- An older snapshot would not see deltas that were committed before the lock was taken.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the isolation level has to be read committed' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    IF NOT CASE WHEN p_wait THEN lock_fold() ELSE pg_try_advisory_xact_lock(7236837, 1) END THEN
        RETURN 0;
    END IF;
    IF p_jobs IS NULL THEN
        WITH gone AS (DELETE FROM delta RETURNING *),
            sums AS (SELECT d.job, sum(d.added) AS a, sum(d.ok) AS o, sum(d.failed) AS f FROM gone d GROUP BY d.job)
        SELECT array_agg(s.job), array_agg(s.a), array_agg(s.o), array_agg(s.f) INTO touched, more, more_ok, more_failed FROM sums s;
    ELSE
        WITH gone AS (DELETE FROM delta d WHERE d.job = ANY (p_jobs) RETURNING *),
            sums AS (SELECT d.job, sum(d.added) AS a, sum(d.ok) AS o, sum(d.failed) AS f FROM gone d GROUP BY d.job)
        SELECT array_agg(s.job), array_agg(s.a), array_agg(s.o), array_agg(s.f) INTO touched, more, more_ok, more_failed FROM sums s;
    END IF;
    IF touched IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE job SET added = job.added + s.a, ok = job.ok + s.o, failed = job.failed + s.f
    FROM unnest(touched, more, more_ok, more_failed) s (num, a, o, f)
    WHERE job.num = s.num AND (s.a <> 0 OR s.o <> 0 OR s.f <> 0);
    WHILE cardinality(touched) > 0 LOOP
        looked := looked + cardinality(touched);
        seals := ARRAY(SELECT c.num FROM job c WHERE c.num = ANY (touched) AND NOT c.sealed
            AND (SELECT p.complete FROM job p WHERE p.num = c.parent) ORDER BY c.num FOR UPDATE OF c SKIP LOCKED);
        UPDATE job SET sealed = true, sealed_by_fold = true WHERE num = ANY (seals);
        INSERT INTO delta (job, added, ok, failed)
        SELECT c.num, 0, 0, 0 FROM job c WHERE c.num = ANY (touched) AND NOT c.sealed
            AND (SELECT p.complete FROM job p WHERE p.num = c.parent);
        WITH ends AS (
            UPDATE job SET complete = true, completed_at = clock_timestamp()
            WHERE num = ANY (touched) AND sealed AND NOT complete AND job.added = job.ok + job.failed
                AND (feed IS NULL OR parent IS NULL OR (SELECT p.complete FROM job p WHERE p.num = job.parent))
                AND NOT EXISTS (SELECT FROM delta d WHERE d.job = job.num)
            RETURNING num, root
        )
        SELECT array_agg(e.num), array_agg(e.root) INTO closed, roots FROM ends e;
        EXIT WHEN closed IS NULL;
        PERFORM close_jobs(roots);
        touched := ARRAY(SELECT c.num FROM job c WHERE c.parent = ANY (closed));
    END LOOP;
    RETURN looked;
END $$;

-- Deletes a job and those below it. Returns whether there was such a job. Rows of `ready` and `later` without a serialize key
-- stay: claims and promotions drop them. Items, results and failures stay until their day is dropped; nobody sees them.
-- Locks: the advisory lock; the jobs' rows, in order, against adders and sealing; rows of `assignment`; the rows of the serialize
-- keys, in order; the heads of these keys wherever they are. A settlement may hold a head's assignment and wait for its key: the
-- deadlock is broken by the server, and the loser tries again.
CREATE FUNCTION hostler_jobs.delete_job(p_job text) RETURNS boolean
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    nums bigint[];
    keys text[];
    heads bigint[];
    found_heads int := 0;
    part int;
    opens bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(7236837, 1);
    WITH RECURSIVE below AS (
        SELECT num FROM job WHERE id = p_job
        UNION ALL
        SELECT c.num FROM below JOIN job c ON c.parent = below.num
    )
    SELECT array_agg(num ORDER BY num) INTO nums FROM below;
    IF nums IS NULL THEN
        RETURN false;
    END IF;
    PERFORM FROM job WHERE num = ANY (nums) ORDER BY num FOR UPDATE;
    keys := ARRAY(SELECT DISTINCT key FROM waiting WHERE job = ANY (nums) ORDER BY key);
    IF cardinality(keys) > 0 THEN
        PERFORM FROM serial_key WHERE key = ANY (keys) ORDER BY key FOR UPDATE;
        heads := ARRAY(SELECT h.seq FROM unnest(keys) k CROSS JOIN LATERAL (
            SELECT w.seq, w.job FROM waiting w WHERE w.key = k ORDER BY w.key, w.seq LIMIT 1) h WHERE h.job = ANY (nums));
        -- A head may be moving from one table to the next.
        FOR attempt IN 1 .. 20 LOOP
            EXIT WHEN found_heads = cardinality(heads);
            DELETE FROM assignment WHERE seq = ANY (heads);
            GET DIAGNOSTICS part = ROW_COUNT;
            found_heads := found_heads + part;
            DELETE FROM later WHERE seq = ANY (heads);
            GET DIAGNOSTICS part = ROW_COUNT;
            found_heads := found_heads + part;
            DELETE FROM ready r USING (SELECT w.type, w.priority, w.seq FROM unnest(keys) k JOIN waiting w ON w.key = k
                WHERE w.seq = ANY (heads)) h
            WHERE r.type = h.type AND r.priority = h.priority AND r.seq = h.seq;
            GET DIAGNOSTICS part = ROW_COUNT;
            found_heads := found_heads + part;
        END LOOP;
        IF found_heads < cardinality(heads) THEN
            RAISE EXCEPTION 'the head of a serialize key is moving' USING ERRCODE = 'serialization_failure';
        END IF;
        DELETE FROM waiting WHERE job = ANY (nums);
        INSERT INTO ready (type, priority, seq, day, job, key)
        SELECT n.type, n.priority, n.seq, n.day, n.job, n.key
        FROM unnest(keys) k CROSS JOIN LATERAL (
            SELECT w.* FROM waiting w WHERE w.key = k ORDER BY w.key, w.seq LIMIT 1) n
        WHERE NOT EXISTS (SELECT FROM ready r WHERE r.type = n.type AND r.priority = n.priority AND r.seq = n.seq)
            AND NOT EXISTS (SELECT FROM later l WHERE l.seq = n.seq)
            AND NOT EXISTS (SELECT FROM assignment a WHERE a.seq = n.seq);
        DELETE FROM serial_key k WHERE k.key = ANY (keys) AND NOT EXISTS (SELECT FROM waiting w WHERE w.key = k.key);
    END IF;
    DELETE FROM assignment WHERE job = ANY (nums);
    DELETE FROM delta WHERE job = ANY (nums);
    DELETE FROM item_dedupe WHERE job = ANY (nums);
    DELETE FROM item_id WHERE job = ANY (nums);
    DELETE FROM outbox WHERE root = ANY (nums);
    WITH gone AS (DELETE FROM job WHERE num = ANY (nums) RETURNING num, root, complete)
    SELECT array_agg(root) FILTER (WHERE NOT complete) INTO opens FROM gone;
    IF opens IS NOT NULL THEN
        PERFORM close_jobs(opens);
    END IF;
    RETURN true;
END $$;

-- Makes the failed items of a job pending again, with all their attempts anew. Opens the job, the jobs below that it feeds or that
-- its completion sealed, and the tree. Returns the number of items, null if there is no such job.
-- Locks: the advisory lock; the job's row and, at the end, those of the jobs below and of the root; the serialize keys, in order; rows of `ready` and `later` of the keys' heads.
CREATE FUNCTION hostler_jobs.retry_job(p_job text) RETURNS bigint
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    j record;
    seqs bigint[];
    keys text[];
    reopened int;
BEGIN
    PERFORM pg_advisory_xact_lock(7236837, 1);
    SELECT * INTO j FROM job WHERE id = p_job FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    WITH gone AS (DELETE FROM done WHERE job = j.num AND day = j.day AND NOT ok RETURNING seq)
    SELECT array_agg(seq ORDER BY seq) INTO seqs FROM gone;
    IF seqs IS NULL THEN
        RETURN 0;
    END IF;
    keys := ARRAY(SELECT DISTINCT i.serialize_key FROM unnest(seqs) s JOIN item i ON i.day = j.day AND i.seq = s
        WHERE i.serialize_key IS NOT NULL ORDER BY i.serialize_key);
    INSERT INTO ready (type, priority, seq, day, job)
    SELECT j.type, i.priority, i.seq, i.day, i.job FROM unnest(seqs) s JOIN item i ON i.day = j.day AND i.seq = s
    WHERE i.serialize_key IS NULL;
    IF cardinality(keys) > 0 THEN
        INSERT INTO serial_key AS s (key) SELECT k FROM unnest(keys) k ORDER BY k COLLATE "C"
        ON CONFLICT (key) DO UPDATE SET key = excluded.key;
        -- A head that no worker has makes way for an older item.
        PERFORM take_aside(keys);
        INSERT INTO waiting (key, seq, type, priority, day, job)
        SELECT i.serialize_key, i.seq, j.type, i.priority, i.day, i.job
        FROM unnest(seqs) s JOIN item i ON i.day = j.day AND i.seq = s WHERE i.serialize_key IS NOT NULL;
        PERFORM line_up(idle_keys(keys));
    END IF;
    -- The results that are still to come may add items to the jobs below.
    WITH RECURSIVE again AS (
        SELECT num, complete, sealed FROM job WHERE num = j.num
        UNION ALL
        SELECT c.num, c.complete, c.sealed AND NOT c.sealed_by_fold FROM again JOIN job c ON c.parent = again.num
        WHERE c.feed IS NOT NULL OR c.sealed_by_fold
    ), opened AS (
        UPDATE job SET complete = false, completed_at = NULL, sealed = again.sealed, sealed_by_fold = job.sealed_by_fold AND again.sealed,
            failed = failed - CASE WHEN job.num = j.num THEN cardinality(seqs) ELSE 0 END
        FROM again WHERE job.num = again.num RETURNING again.complete
    )
    SELECT count(*) FILTER (WHERE complete) INTO reopened FROM opened;
    UPDATE job SET open_jobs = open_jobs + reopened, tree_completed_at = NULL WHERE num = j.root;
    -- The jobs below are looked at again once this job is complete.
    INSERT INTO delta (job, added, ok, failed) VALUES (j.num, 0, 0, 0);
    RETURN cardinality(seqs);
END $$;
