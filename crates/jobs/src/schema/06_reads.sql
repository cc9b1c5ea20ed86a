-- Reads, reaping, and views for people.

-- Folds the tree that a job is in, if it has deltas and nobody holds the lock of folding. Returns the numbers of the tree's jobs.
CREATE FUNCTION hostler_jobs.fold_tree(p_job text) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp AS $$
DECLARE
    nums bigint[];
BEGIN
    nums := ARRAY(SELECT t.num FROM job j JOIN job t ON t.root = j.root WHERE j.id = p_job);
    IF EXISTS (SELECT FROM delta d WHERE d.job = ANY (nums)) THEN
        PERFORM fold(nums, false);
    END IF;
    RETURN nums;
END $$;

-- All jobs of the tree that a job is in, in the order of creation. Folds the tree first. If another holds the lock of folding, the
-- counters have what is to be folded in, so that a caller sees its own writes; `behind`: the job is to be complete.
CREATE FUNCTION hostler_jobs.tree(p_job text)
RETURNS TABLE (num bigint, id text, parent bigint, type text, sealed boolean, complete boolean, final_stage boolean,
    added bigint, ok bigint, failed bigint, assigned bigint, tree_complete boolean, behind boolean)
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp AS $$
#variable_conflict use_column
DECLARE
    nums bigint[];
BEGIN
    nums := fold_tree(p_job);
    RETURN QUERY
    WITH busy AS MATERIALIZED (SELECT a.job, count(*) AS n FROM assignment a WHERE a.job = ANY (nums) GROUP BY a.job),
    fresh AS MATERIALIZED (SELECT d.job, sum(d.added) AS a, sum(d.ok) AS o, sum(d.failed) AS f FROM delta d
        WHERE d.job = ANY (nums) GROUP BY d.job)
    SELECT t.num, t.id, t.parent, k.name, t.sealed, t.complete, t.final_stage, t.added + coalesce(f.a, 0), t.ok + coalesce(f.o, 0),
        t.failed + coalesce(f.f, 0), coalesce(b.n, 0), r.tree_completed_at IS NOT NULL,
        t.sealed AND NOT t.complete AND coalesce(t.added + f.a = t.ok + f.o + t.failed + f.f, false)
    FROM job t JOIN job r ON r.num = t.root JOIN job_type k ON k.id = t.type LEFT JOIN busy b ON b.job = t.num
        LEFT JOIN fresh f ON f.job = t.num
    WHERE t.num = ANY (nums) ORDER BY t.num;
END $$;

-- Deletes one tree that has been complete for `p_age` seconds and whose callback has been sent, as `delete_job` does. Returns the
-- number of trees; 0 as well if the lock of folding is taken.
-- Locks: the advisory lock; rows of jobs.
CREATE FUNCTION hostler_jobs.reap(p_age float8) RETURNS int
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off AS $$
DECLARE
    old bigint;
BEGIN
    IF NOT lock_fold() THEN
        RETURN 0;
    END IF;
    SELECT r.num INTO old FROM job r WHERE r.tree_completed_at < clock_timestamp() - make_interval(secs => p_age)
        AND NOT EXISTS (SELECT FROM outbox o WHERE o.root = r.num AND NOT o.dead)
        ORDER BY r.tree_completed_at LIMIT 1 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    DELETE FROM outbox WHERE root = old;
    WITH gone AS (DELETE FROM job WHERE root = old RETURNING num)
    INSERT INTO remains (job) SELECT g.num FROM gone g;
    RETURN 1;
END $$;

-- Deletes up to `p_max` serialize keys without pending items. Returns their number. Locks them in one statement and looks again in
-- the next, which sees the items of those who had the lock before.
-- Locks: rows of serialize keys, never waiting for any.
CREATE FUNCTION hostler_jobs.drop_keys(p_max int) RETURNS int
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    keys text[];
    dropped int;
BEGIN
    keys := ARRAY(SELECT k.key FROM serial_key k WHERE NOT EXISTS (SELECT FROM waiting w WHERE w.key = k.key)
        LIMIT p_max FOR UPDATE OF k SKIP LOCKED);
    DELETE FROM serial_key k WHERE k.key = ANY (keys) AND NOT EXISTS (SELECT FROM waiting w WHERE w.key = k.key);
    GET DIAGNOSTICS dropped = ROW_COUNT;
    RETURN dropped;
END $$;

-- Drops the partitions of past days of which no job is left. Returns their number. Fails by `lock_timeout` rather than hold
-- others up: the next sweep tries again.
CREATE FUNCTION hostler_jobs.drop_partitions() RETURNS int
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    p record;
    dropped int := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(7236837, 2);
    FOR p IN SELECT c.relname, split_part(c.relname, '_', 2)::int AS day
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent IN ('hostler_jobs.item'::regclass, 'hostler_jobs.done'::regclass, 'hostler_jobs.failure'::regclass)
        ORDER BY 2, 1
    LOOP
        -- A root may be created shortly before midnight and committed after it.
        IF p.day < today() - 1 AND NOT EXISTS (SELECT FROM job j WHERE j.day = p.day) THEN
            EXECUTE format('DROP TABLE hostler_jobs.%I', p.relname);
            dropped := dropped + 1;
        END IF;
    END LOOP;
    RETURN dropped;
END $$;

-- Items with their state. Reading all of it takes as long as there are items: name a job.
CREATE VIEW hostler_jobs.job_item AS
SELECT coalesce(i.id, 'i-' || to_hex(i.day) || '-' || to_hex(i.seq)) AS id, j.id AS job_id, r.id AS root_id, t.name AS type,
    CASE WHEN d.ok THEN 'succeeded' WHEN NOT d.ok THEN 'failed' WHEN a.seq IS NOT NULL THEN 'assigned' ELSE 'pending' END AS state,
    i.payload, d.result, (SELECT count(*) FROM hostler_jobs.failure f WHERE f.day = i.day AND f.seq = i.seq) AS failures,
    a.worker AS worker_id, l.due AS retry_at, i.dedupe_key, i.serialize_key, i.priority, i.metadata, i.day, i.seq
FROM hostler_jobs.item i
JOIN hostler_jobs.job j ON j.num = i.job
JOIN hostler_jobs.job r ON r.num = j.root
JOIN hostler_jobs.job_type t ON t.id = j.type
LEFT JOIN hostler_jobs.done d ON d.day = i.day AND d.seq = i.seq
LEFT JOIN hostler_jobs.assignment a ON a.seq = i.seq
LEFT JOIN hostler_jobs.later l ON l.seq = i.seq;

-- Jobs with their counters, as far as they have been folded in.
CREATE VIEW hostler_jobs.job_status AS
SELECT j.id, r.id AS root_id, p.id AS parent_id, t.name AS type, j.sealed, j.complete, j.final_stage, j.added, j.ok AS succeeded,
    j.failed, j.added - j.ok - j.failed AS pending, r.tree_completed_at IS NOT NULL AS tree_complete, j.created_at, j.completed_at,
    j.dedupe_key, j.metadata
FROM hostler_jobs.job j
JOIN hostler_jobs.job r ON r.num = j.root
JOIN hostler_jobs.job_type t ON t.id = j.type
LEFT JOIN hostler_jobs.job p ON p.num = j.parent;
