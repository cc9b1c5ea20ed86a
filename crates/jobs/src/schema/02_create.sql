-- Creating trees and adding items.
-- Errors: HJ001 a dedupe key is taken (the message is the job's id), HJ002 a job's id is taken, HJ003 an item's id is
-- taken, HJ404 no such job, HJ409 the job is sealed.

-- Locks the rows of serialize keys, in the order of keys.
CREATE FUNCTION hostler_jobs.lock_keys(p_keys text[]) RETURNS void
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM FROM serial_key k WHERE k.key = ANY (p_keys) ORDER BY k.key FOR UPDATE;
END $$;

-- Puts the first pending item of each key in line. The caller has locked the keys, and none of their items is in line or assigned.
CREATE FUNCTION hostler_jobs.line_up(p_keys text[]) RETURNS void
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH head AS MATERIALIZED (
        SELECT h.*, h.due > clock_timestamp() AS is_late
        FROM (SELECT DISTINCT u.k COLLATE "C" AS k FROM unnest(p_keys) u (k)) d CROSS JOIN LATERAL (
            SELECT w.* FROM waiting w WHERE w.key = d.k ORDER BY w.key, w.seq LIMIT 1) h
    ), wait AS (
        INSERT INTO later (seq, due, type, priority, day, job, fails, key)
        SELECT h.seq, h.due, h.type, h.priority, h.day, h.job, h.fails, h.key FROM head h WHERE h.is_late
    )
    INSERT INTO ready (type, priority, seq, day, job, fails, key)
    SELECT h.type, h.priority, h.seq, h.day, h.job, h.fails, h.key FROM head h WHERE h.is_late IS NOT TRUE;
END $$;

-- Those of the keys that have pending items, of which none is in line or assigned. The caller has locked the keys.
CREATE FUNCTION hostler_jobs.idle_keys(p_keys text[]) RETURNS text[]
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN ARRAY(SELECT h.key FROM unnest(p_keys) k CROSS JOIN LATERAL (
            SELECT w.* FROM waiting w WHERE w.key = k ORDER BY w.key, w.seq LIMIT 1) h
        WHERE NOT EXISTS (SELECT FROM ready r WHERE r.type = h.type AND r.priority = h.priority AND r.seq = h.seq)
            AND NOT EXISTS (SELECT FROM later l WHERE l.seq = h.seq)
            AND NOT EXISTS (SELECT FROM assignment a WHERE a.key = h.key));
END $$;

-- Takes the first items of keys out of line, unless they are assigned: they wait, with their failures and their time. The caller has
-- locked the keys. An item that moves from `later` to `ready` meanwhile is looked for again.
-- Locks: rows of `ready` and `later`.
CREATE FUNCTION hostler_jobs.take_aside(p_keys text[]) RETURNS void
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    FOR attempt IN 1 .. 20 LOOP
        WITH head AS MATERIALIZED (
            SELECT h.* FROM unnest(p_keys) k CROSS JOIN LATERAL (
                SELECT w.key, w.seq, w.type, w.priority FROM waiting w WHERE w.key = k ORDER BY w.key, w.seq LIMIT 1) h
        ), from_ready AS (
            DELETE FROM ready r USING head h WHERE r.type = h.type AND r.priority = h.priority AND r.seq = h.seq
            RETURNING h.key, h.seq, r.fails, NULL::timestamptz AS due
        ), from_later AS (
            DELETE FROM later l USING head h WHERE l.seq = h.seq RETURNING h.key, h.seq, l.fails, l.due
        )
        UPDATE waiting w SET fails = a.fails, due = a.due
        FROM (SELECT * FROM from_ready UNION ALL SELECT * FROM from_later) a WHERE w.key = a.key AND w.seq = a.seq;
        IF NOT EXISTS (SELECT FROM unnest(p_keys) k CROSS JOIN LATERAL (
                SELECT w.* FROM waiting w WHERE w.key = k ORDER BY w.key, w.seq LIMIT 1) h CROSS JOIN LATERAL (
                SELECT FROM ready r WHERE r.type = h.type AND r.priority = h.priority AND r.seq = h.seq
                UNION ALL SELECT FROM later l WHERE l.seq = h.seq) x) THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'the head of a serialize key is moving' USING ERRCODE = 'serialization_failure';
END $$;

-- Inserts items of jobs of one day. `seqs` holds an entry for each item: that of the first item if its dedupe key was known.
-- Locks: the rows of the serialize keys, in the order of keys; then numbers are drawn; then dedupe keys and ids, in order.
CREATE FUNCTION hostler_jobs.add_rows(
    p_day int, p_jobs bigint[], p_types int[], p_payloads text[], p_ids text[], p_dedupes text[], p_keys text[],
    p_priorities smallint[], p_metas text[], OUT seqs bigint[], OUT fresh bigint[])
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    wanted int;
    got int;
BEGIN
    IF p_keys IS NOT NULL THEN
        INSERT INTO serial_key AS s (key)
        SELECT DISTINCT k COLLATE "C" FROM unnest(p_keys) k WHERE k IS NOT NULL ORDER BY k COLLATE "C"
        ON CONFLICT (key) DO UPDATE SET key = excluded.key;
    END IF;
    fresh := ARRAY(SELECT nextval('item_seq') FROM generate_series(1, cardinality(p_jobs)));
    seqs := fresh;
    IF p_dedupes IS NOT NULL THEN
        INSERT INTO item_dedupe (job, key, seq)
        SELECT u.job, u.key, u.seq FROM unnest(p_jobs, p_dedupes, fresh) u (job, key, seq)
        WHERE u.key IS NOT NULL ORDER BY u.job, u.key COLLATE "C", u.seq
        ON CONFLICT DO NOTHING;
        SELECT array_agg(coalesce(d.seq, u.seq) ORDER BY u.n) INTO seqs
        FROM unnest(p_jobs, p_dedupes, fresh) WITH ORDINALITY u (job, key, seq, n)
        LEFT JOIN item_dedupe d ON d.job = u.job AND d.key = u.key;
    END IF;
    IF p_ids IS NOT NULL THEN
        SELECT count(*) INTO wanted FROM unnest(p_ids, seqs, fresh) u (id, seq, own) WHERE u.id IS NOT NULL AND u.seq = u.own;
        INSERT INTO item_id (id, job, day, seq)
        SELECT u.id, u.job, p_day, u.seq FROM unnest(p_ids, p_jobs, seqs, fresh) u (id, job, seq, own)
        WHERE u.id IS NOT NULL AND u.seq = u.own ORDER BY u.id COLLATE "C"
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS got = ROW_COUNT;
        IF got < wanted THEN
            RAISE EXCEPTION 'an id of an item is taken' USING ERRCODE = 'HJ003';
        END IF;
    END IF;
    INSERT INTO item (day, seq, job, id, payload, dedupe_key, serialize_key, priority, metadata)
    SELECT p_day, u.seq, u.job, u.id, u.payload::json, u.dedupe, u.key, u.priority, nullif(u.meta, '{}')::json
    FROM unnest(seqs, fresh, p_jobs, p_ids, p_payloads, p_dedupes, p_keys, p_priorities, p_metas)
        u (seq, own, job, id, payload, dedupe, key, priority, meta)
    WHERE u.seq = u.own;
    INSERT INTO ready (type, priority, seq, day, job)
    SELECT u.type, u.priority, u.seq, p_day, u.job
    FROM unnest(seqs, fresh, p_jobs, p_types, p_priorities, p_keys) u (seq, own, job, type, priority, key)
    WHERE u.key IS NULL AND u.seq = u.own;
    IF p_keys IS NOT NULL THEN
        INSERT INTO ready (type, priority, seq, day, job, key)
        SELECT h.type, h.priority, h.seq, p_day, h.job, h.key
        FROM (SELECT DISTINCT ON (u.key) u.*
            FROM unnest(seqs, fresh, p_jobs, p_types, p_priorities, p_keys) u (seq, own, job, type, priority, key)
            WHERE u.key IS NOT NULL AND u.seq = u.own ORDER BY u.key, u.seq) h
        WHERE NOT EXISTS (SELECT FROM waiting w WHERE w.key = h.key);
        INSERT INTO waiting (key, seq, type, priority, day, job)
        SELECT u.key, u.seq, u.type, u.priority, p_day, u.job
        FROM unnest(seqs, fresh, p_jobs, p_types, p_priorities, p_keys) u (seq, own, job, type, priority, key)
        WHERE u.key IS NOT NULL AND u.seq = u.own;
    END IF;
END $$;

-- Creates a tree. `p_parents` holds positions, 0 for the root, which comes first. `p_item_jobs` holds positions of jobs.
-- Locks: the new rows of `job` in the order of the tree, then those of `add_rows`.
CREATE FUNCTION hostler_jobs.create_tree(
    p_ids text[], p_types int[], p_parents int[], p_max_failures int[], p_final boolean[], p_sealed boolean[],
    p_feeds boolean[], p_dedupes text[], p_metas text[], p_callback text, p_templates text[],
    p_item_jobs int[], p_payloads text[], p_item_ids text[], p_item_dedupes text[], p_keys text[],
    p_priorities smallint[], p_item_metas text[], OUT day int, OUT seqs bigint[], OUT fresh bigint[])
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp AS $$
DECLARE
    nums bigint[];
    jobs bigint[];
    types int[];
    got int;
    taken text;
BEGIN
    day := today();
    nums := ARRAY(SELECT nextval(pg_get_serial_sequence('hostler_jobs.job', 'num')) FROM generate_series(1, cardinality(p_ids)));
    INSERT INTO job (num, id, root, parent, day, type, max_failures, final_stage, sealed, feeds, dedupe_key, metadata,
        callback, feed, open_jobs)
    SELECT nums[u.n], u.id, nums[1], CASE WHEN u.parent > 0 THEN nums[u.parent] END, create_tree.day, u.type, u.max_failures,
        u.final, u.sealed, u.feeds, u.dedupe, nullif(u.meta, '{}')::json, CASE WHEN u.n = 1 THEN p_callback::json END,
        u.template::json, CASE WHEN u.n = 1 THEN cardinality(p_ids) ELSE 0 END
    FROM unnest(p_ids, p_types, p_parents, p_max_failures, p_final, p_sealed, p_feeds, p_dedupes, p_metas, p_templates)
        WITH ORDINALITY u (id, type, parent, max_failures, final, sealed, feeds, dedupe, meta, template, n)
    ORDER BY u.n
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS got = ROW_COUNT;
    IF got < cardinality(p_ids) THEN
        SELECT j.id INTO taken FROM unnest(p_types, p_dedupes) u (type, key)
        JOIN job j ON j.type = u.type AND j.dedupe_key = u.key WHERE NOT (j.num = ANY (nums)) LIMIT 1;
        IF taken IS NOT NULL THEN
            RAISE EXCEPTION '%', taken USING ERRCODE = 'HJ001';
        END IF;
        SELECT j.id INTO taken FROM unnest(p_ids) u (id) JOIN job j ON j.id = u.id WHERE NOT (j.num = ANY (nums)) LIMIT 1;
        IF taken IS NOT NULL THEN
            RAISE EXCEPTION '%', taken USING ERRCODE = 'HJ002';
        END IF;
        -- The job that was in the way has been deleted meanwhile.
        RAISE EXCEPTION 'a job was deleted meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
    IF cardinality(p_item_jobs) > 0 THEN
        SELECT array_agg(nums[u.j] ORDER BY u.n), array_agg(p_types[u.j] ORDER BY u.n) INTO jobs, types
        FROM unnest(p_item_jobs) WITH ORDINALITY u (j, n);
        SELECT a.seqs, a.fresh INTO seqs, create_tree.fresh
        FROM add_rows(create_tree.day, jobs, types, p_payloads, p_item_ids, p_item_dedupes, p_keys, p_priorities, p_item_metas) a;
    END IF;
    INSERT INTO delta (job, added, ok, failed)
    SELECT nums[u.n], coalesce(i.items, 0), 0, 0
    FROM unnest(p_sealed) WITH ORDINALITY u (sealed, n)
    LEFT JOIN (SELECT a.job, count(*) AS items FROM unnest(jobs, seqs, create_tree.fresh) a (job, seq, own)
        WHERE a.seq = a.own GROUP BY a.job) i ON i.job = nums[u.n]
    WHERE u.sealed OR i.items > 0;
END $$;

-- Adds items to a job.
-- Locks: the job's row against sealing and deletion (KEY SHARE), then those of `add_rows`.
CREATE FUNCTION hostler_jobs.add_items(
    p_job text, p_payloads text[], p_ids text[], p_dedupes text[], p_keys text[], p_priorities smallint[], p_metas text[],
    OUT day int, OUT seqs bigint[], OUT fresh bigint[])
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp AS $$
DECLARE
    j record;
    n int := cardinality(p_payloads);
BEGIN
    SELECT job.num, job.day, job.type, job.sealed INTO j FROM job WHERE job.id = p_job FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such job' USING ERRCODE = 'HJ404';
    ELSIF j.sealed THEN
        RAISE EXCEPTION 'the job is sealed' USING ERRCODE = 'HJ409';
    END IF;
    day := j.day;
    IF n > 0 THEN
        SELECT a.seqs, a.fresh INTO seqs, add_items.fresh
        FROM add_rows(j.day, array_fill(j.num, ARRAY[n]), array_fill(j.type, ARRAY[n]), p_payloads, p_ids, p_dedupes, p_keys,
            p_priorities, p_metas) a;
        INSERT INTO delta (job, added, ok, failed)
        SELECT j.num, count(*), 0, 0 FROM unnest(seqs, add_items.fresh) u (seq, own) WHERE u.seq = u.own HAVING count(*) > 0;
    END IF;
END $$;

-- Seals a job: only its parent's results may still add items, by its feed. Returns whether there is such a job.
-- Locks: the job's row (UPDATE), so that every item that was added before is committed.
CREATE FUNCTION hostler_jobs.seal_job(p_job text) RETURNS boolean
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp AS $$
DECLARE
    j record;
BEGIN
    SELECT job.num, job.sealed INTO j FROM job WHERE job.id = p_job FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF j.sealed THEN
        RETURN true;
    END IF;
    UPDATE job SET sealed = true WHERE num = j.num;
    INSERT INTO delta (job, added, ok, failed) VALUES (j.num, 0, 0, 0);
    RETURN true;
END $$;
