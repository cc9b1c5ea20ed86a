-- Fan-out by a broker: the ids of items that have become ready, on their way to the broker. They are hints. What is lost or
-- doubled here changes nothing, so that no other table refers to these.

CREATE TABLE hostler_jobs.fanout (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    type int NOT NULL,
    day int NOT NULL,
    seq bigint NOT NULL,
    -- Until this time, an instance publishes it. No index, so that taking is a HOT update.
    taken_until timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE hostler_jobs.fanout_gate (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- Until this time, items that become ready are written into `fanout`.
    open_until timestamptz NOT NULL DEFAULT '-infinity',
    -- The time of the last search for lost messages.
    searched_at timestamptz
);
INSERT INTO hostler_jobs.fanout_gate DEFAULT VALUES;

-- Writes the rows of one INSERT INTO ready. Its trigger exists only where an instance fans out by a broker.
CREATE FUNCTION hostler_jobs.fan_out() RETURNS trigger
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp AS $$
BEGIN
    IF (SELECT g.open_until > clock_timestamp() FROM fanout_gate g) THEN
        INSERT INTO fanout (type, day, seq) SELECT f.type, f.day, f.seq FROM fresh f;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION hostler_jobs.fanout_is_armed() RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = 'hostler_jobs.ready'::regclass AND t.tgname = 'fan_out')
$$;

-- Creates the trigger if it is missing, and keeps the gate open for `p_lease` seconds, unless `fanout` has `p_most` rows. A gate that
-- was closed opens again at half of them. Returns the number of rows, `p_most` at most, and whether the gate is open.
-- Locks: the advisory lock and `ready` against writers, only to create the trigger.
CREATE FUNCTION hostler_jobs.fanout_keep(p_most int, p_lease float8, OUT rows bigint, OUT is_open boolean)
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    IF NOT fanout_is_armed() THEN
        PERFORM pg_advisory_xact_lock(7236837, 4);
        IF NOT fanout_is_armed() THEN
            CREATE TRIGGER fan_out AFTER INSERT ON ready REFERENCING NEW TABLE AS fresh
                FOR EACH STATEMENT EXECUTE FUNCTION fan_out();
        END IF;
    END IF;
    SELECT count(*) INTO rows FROM (SELECT FROM fanout LIMIT p_most) f;
    SELECT g.open_until > moment INTO is_open FROM fanout_gate g;
    IF rows >= p_most THEN
        UPDATE fanout_gate SET open_until = '-infinity' WHERE open_until > '-infinity';
        is_open := false;
    ELSIF is_open OR rows <= p_most / 2 THEN
        -- Renewed seldom, so that the row has few versions.
        UPDATE fanout_gate SET open_until = moment + make_interval(secs => p_lease)
        WHERE open_until < moment + make_interval(secs => p_lease / 2);
        is_open := true;
    END IF;
END $$;

-- Drops the trigger and all rows, unless an instance keeps the gate open. Returns whether there is no trigger.
-- Locks: `ready` against everyone, briefly.
CREATE FUNCTION hostler_jobs.fanout_end() RETURNS boolean
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp SET lock_timeout = '200ms' AS $$
BEGIN
    IF NOT fanout_is_armed() THEN
        RETURN true;
    ELSIF EXISTS (SELECT FROM fanout_gate g WHERE g.open_until > clock_timestamp()) THEN
        RETURN false;
    END IF;
    DROP TRIGGER IF EXISTS fan_out ON ready;
    DELETE FROM fanout;
    RETURN true;
END $$;

-- Takes up to `p_max` rows for `p_lease` seconds. `item`: the id that a client chose.
-- Locks: rows of `fanout`, never waiting for any.
CREATE FUNCTION hostler_jobs.fanout_take(p_max int, p_lease float8)
RETURNS TABLE (id bigint, kind text, day int, seq bigint, item text)
LANGUAGE sql SET search_path = hostler_jobs, pg_temp
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $$
    WITH taken AS (
        UPDATE fanout f SET taken_until = clock_timestamp() + make_interval(secs => p_lease)
        WHERE f.id = ANY (ARRAY(SELECT x.id FROM fanout x WHERE x.taken_until <= clock_timestamp()
            ORDER BY x.id LIMIT p_max FOR UPDATE SKIP LOCKED))
        RETURNING f.id, f.type, f.day, f.seq
    )
    SELECT t.id, k.name, t.day, t.seq, i.id FROM taken t
    CROSS JOIN LATERAL (SELECT x.name FROM job_type x WHERE x.id = t.type LIMIT 1) k
    LEFT JOIN LATERAL (SELECT x.id FROM item x WHERE x.day = t.day AND x.seq = t.seq LIMIT 1) i ON true
    ORDER BY t.id
$$;

-- The number of times that an item is written anew until an age: at ages of 1, 2, 4 … 64 periods, and then every 64 periods.
CREATE FUNCTION hostler_jobs.fanout_turns(p_periods float8) RETURNS int
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_periods < 1 THEN 0 WHEN p_periods < 64 THEN 1 + floor(ln(p_periods) / ln(2.0::float8))::int
        ELSE 6 + floor(p_periods / 64)::int END
$$;

-- Writes the ids of items anew that have been ready for long, because their messages may be lost. Returns their number.
-- One instance in each period of `p_period` seconds searches.
CREATE FUNCTION hostler_jobs.fanout_search(p_period float8, p_most int) RETURNS int
LANGUAGE plpgsql SET search_path = hostler_jobs, pg_temp AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    last timestamptz;
    written int;
BEGIN
    IF NOT pg_try_advisory_xact_lock(7236837, 5) THEN
        RETURN 0;
    END IF;
    SELECT g.searched_at INTO last FROM fanout_gate g WHERE g.open_until > moment;
    IF NOT FOUND OR last > moment - make_interval(secs => p_period / 2) THEN
        RETURN 0;
    END IF;
    UPDATE fanout_gate SET searched_at = moment;
    -- In any order: those beyond the limit differ each time.
    INSERT INTO fanout (type, day, seq)
    SELECT r.type, r.day, r.seq FROM ready r
    WHERE fanout_turns(extract(epoch FROM moment - r.at)::float8 / p_period)
        > coalesce(fanout_turns(extract(epoch FROM last - r.at)::float8 / p_period), 0)
    ORDER BY random() LIMIT p_most;
    GET DIAGNOSTICS written = ROW_COUNT;
    RETURN written;
END $$;
