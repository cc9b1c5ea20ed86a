-- Folding counters, completion, deletion, retry. All of it runs under one advisory lock, (7236837, 1), taken first.

-- Marks jobs of trees closed; a tree without open jobs is complete, and its callback is due.
-- Locks: rows of roots.
CREATE FUNCTION hostler_jobs.close_jobs(p_roots bigint[]) RETURNS void
LANGUAGE sql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
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
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
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
    IF p_wait THEN
        IF NOT lock_fold() THEN
            RETURN 0;
        END IF;
    ELSIF NOT pg_try_advisory_xact_lock(7236837, 1) THEN
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
                AND (held_until IS NULL OR held_until < clock_timestamp())
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

-- Appends zero deltas for jobs that are open though they have nothing pending, or that are not sealed though their parent is complete:
-- the next fold looks at them. In a sound database there are none. Returns their number.
CREATE FUNCTION hostler_jobs.wake_jobs(p_max int) RETURNS int
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp AS $$
DECLARE
    woken int;
BEGIN
    INSERT INTO delta (job, added, ok, failed)
    SELECT j.num, 0, 0, 0 FROM job j LEFT JOIN job p ON p.num = j.parent
    WHERE NOT j.complete AND (j.held_until IS NULL OR j.held_until < clock_timestamp())
        AND NOT EXISTS (SELECT FROM delta d WHERE d.job = j.num) AND CASE
        WHEN NOT j.sealed THEN p.complete
        ELSE j.added = j.ok + j.failed AND (j.feed IS NULL OR p.complete IS NOT FALSE) END
    LIMIT p_max;
    GET DIAGNOSTICS woken = ROW_COUNT;
    RETURN woken;
END $$;

-- Looks at up to `p_max` serialize keys after `p_after`, and puts the first item of each in line if none of the key's is in line or
-- assigned. In a sound database all have one. Returns the last key, null after the last of all, and the number of those put in line.
-- Locks: the rows of these keys, in order.
CREATE FUNCTION hostler_jobs.wake_keys(p_after text, p_max int, OUT last text, OUT woken int)
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    keys text[];
BEGIN
    keys := ARRAY(SELECT k.key FROM serial_key k WHERE k.key > p_after ORDER BY k.key LIMIT p_max);
    last := keys[p_max];
    keys := idle_keys(keys);
    woken := cardinality(keys);
    IF woken > 0 THEN
        PERFORM lock_keys(keys);
        keys := idle_keys(keys);
        woken := cardinality(keys);
        PERFORM line_up(keys);
    END IF;
END $$;

-- Deletes a job and those below it. Returns whether there was such a job. Their assignments are stale at once; `clear_remains`
-- deletes them, and what else has a row of its own. Rows of `ready` and `later` without a serialize key stay: claims and promotions
-- drop them, and folds drop deltas. Items, results and failures stay until their day is dropped; nobody sees them.
-- Locks: the advisory lock; the jobs' rows, in order, against adders and sealing; the rows of roots.
CREATE FUNCTION hostler_jobs.delete_job(p_job text) RETURNS boolean
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    nums bigint[];
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
    INSERT INTO remains (job) SELECT n FROM unnest(nums) n;
    DELETE FROM outbox WHERE root = ANY (nums);
    WITH gone AS (DELETE FROM job WHERE num = ANY (nums) RETURNING num, root, complete)
    SELECT array_agg(root) FILTER (WHERE NOT complete) INTO opens FROM gone;
    IF opens IS NOT NULL THEN
        PERFORM close_jobs(opens);
    END IF;
    RETURN true;
END $$;

-- Deletes rows of deleted jobs, up to `p_max` of each table, and passes their serialize keys on. Returns 0 if none is left.
-- Locks: rows of `remains`, in order; of `assignment`; of serialize keys, in order; the heads of these keys in `ready` and `later`.
CREATE FUNCTION hostler_jobs.clear_remains(p_max int) RETURNS int
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    nums bigint[];
    keys text[];
    seqs bigint[];
    part int;
    most int := 0;
BEGIN
    nums := ARRAY(SELECT job FROM remains ORDER BY job LIMIT 1000 FOR UPDATE);
    IF cardinality(nums) = 0 THEN
        RETURN 0;
    END IF;
    -- Before the keys, as those who end assignments do.
    DELETE FROM assignment WHERE seq = ANY (ARRAY(SELECT a.seq FROM assignment a WHERE a.job = ANY (nums) ORDER BY a.seq LIMIT p_max));
    GET DIAGNOSTICS part = ROW_COUNT;
    most := greatest(most, part);
    SELECT array_agg(w.key), array_agg(w.seq), count(*) INTO keys, seqs, part
    FROM (SELECT x.key, x.seq FROM waiting x WHERE x.job = ANY (nums) LIMIT p_max) w;
    most := greatest(most, part);
    IF keys IS NOT NULL THEN
        PERFORM lock_keys(keys);
        PERFORM take_aside(ARRAY(SELECT DISTINCT k FROM unnest(keys) k));
        DELETE FROM waiting w USING unnest(keys, seqs) u (key, seq) WHERE w.key = u.key AND w.seq = u.seq;
        -- Those that were claimed since.
        DELETE FROM assignment a WHERE a.key = ANY (keys) AND a.job = ANY (nums);
        PERFORM line_up(idle_keys(keys));
        DELETE FROM serial_key k WHERE k.key = ANY (keys) AND NOT EXISTS (SELECT FROM waiting w WHERE w.key = k.key);
    END IF;
    DELETE FROM item_dedupe WHERE ctid = ANY (ARRAY(SELECT d.ctid FROM item_dedupe d WHERE d.job = ANY (nums) LIMIT p_max));
    GET DIAGNOSTICS part = ROW_COUNT;
    most := greatest(most, part);
    DELETE FROM item_id WHERE ctid = ANY (ARRAY(SELECT i.ctid FROM item_id i WHERE i.job = ANY (nums) LIMIT p_max));
    GET DIAGNOSTICS part = ROW_COUNT;
    most := greatest(most, part);
    IF most < p_max THEN
        DELETE FROM remains WHERE job = ANY (nums);
    END IF;
    RETURN 1;
END $$;

-- Makes up to `p_max` failed items of a job pending again, those with numbers above `p_after`, with all their attempts anew. Opens
-- the job, the jobs below that it feeds or that its completion sealed, and the tree. Returns the number of items, null if there is
-- no such job, and the number of the last. If it is `p_max`, the job is held open for the next part, for two minutes at most: items
-- of this part may all end before it.
-- Locks: the advisory lock; the rows of the tree's jobs, in order; the serialize keys, in order; rows of `ready` and `later` of the
-- keys' heads; the tree's callback.
CREATE FUNCTION hostler_jobs.retry_job(p_job text, p_after bigint, p_max int, OUT retried bigint, OUT last bigint)
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    j record;
    seqs bigint[];
    keys text[];
    reopened int;
BEGIN
    PERFORM pg_advisory_xact_lock(7236837, 1);
    PERFORM FROM job t WHERE t.root = (SELECT x.root FROM job x WHERE x.id = p_job) ORDER BY t.num FOR NO KEY UPDATE;
    SELECT * INTO j FROM job WHERE id = p_job;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    seqs := ARRAY(SELECT d.seq FROM done d WHERE d.job = j.num AND d.day = j.day AND NOT d.ok AND d.seq > p_after
        ORDER BY d.job, d.seq LIMIT p_max);
    retried := cardinality(seqs);
    last := seqs[retried];
    IF retried = 0 THEN
        IF j.held_until IS NOT NULL THEN
            UPDATE job SET held_until = NULL WHERE num = j.num;
            INSERT INTO delta (job, added, ok, failed) VALUES (j.num, 0, 0, 0);
        END IF;
        RETURN;
    END IF;
    DELETE FROM done d WHERE d.day = j.day AND d.seq = ANY (seqs);
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
            failed = failed - CASE WHEN job.num = j.num THEN cardinality(seqs) ELSE 0 END,
            held_until = CASE WHEN job.num <> j.num THEN job.held_until
                WHEN retried = p_max THEN clock_timestamp() + interval '2 minutes' END
        FROM again WHERE job.num = again.num RETURNING again.complete
    )
    SELECT count(*) FILTER (WHERE complete) INTO reopened FROM opened;
    UPDATE job SET open_jobs = open_jobs + reopened, tree_completed_at = NULL WHERE num = j.root;
    -- The tree is not complete any more. Its next completion has a callback of its own.
    DELETE FROM outbox WHERE root = j.root;
    -- The jobs below are looked at again once this job is complete.
    INSERT INTO delta (job, added, ok, failed) VALUES (j.num, 0, 0, 0);
END $$;
