-- Several databases: the place of this one, and serialize keys across them. Installed only where there are several.
--
-- A key's home, one of the databases, keeps the key's line: tickets in the order in which databases asked. It grants the key to the
-- database of the first ticket, up to the last ticket before one of another database. Databases do not talk: any number of
-- processes carry what `wanted`, `due` and `returned` list to the other side. All of it may be lost, late or doubled.

CREATE TABLE hostler_shards.place (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    number smallint NOT NULL,
    count smallint NOT NULL
);

-- The home of a key. The same as `route::home` in the program.
CREATE FUNCTION hostler_shards.home_of(p_key text) RETURNS smallint
LANGUAGE sql STABLE AS $$
    SELECT (('x' || encode(substring(sha256(convert_to(p_key, 'UTF8')) FROM 1 FOR 4), 'hex'))::bit(32)::bigint % p.count)::smallint
    FROM hostler_shards.place p
$$;

-- Makes this database one of several. Its items get numbers of its own from then on.
CREATE FUNCTION hostler_shards.take_place(p_number smallint, p_count smallint) RETURNS void
LANGUAGE plpgsql SET search_path = hostler_shards, pg_temp AS $$
BEGIN
    INSERT INTO place (number, count) VALUES (p_number, p_count) ON CONFLICT DO NOTHING;
    -- The first database goes on: deleted items may be left of a time when there was one.
    IF FOUND AND p_number > 0 THEN
        EXECUTE format('ALTER SEQUENCE hostler_jobs.item_seq RESTART WITH %s', (p_number::bigint << 48) + 1);
    END IF;
END $$;

-- At a key's home --------------------------------------------------------------------------------------------------------

-- Keys that have tickets. Whoever changes the tickets of a key locks its row first.
CREATE TABLE hostler_shards.line (
    key text COLLATE "C" PRIMARY KEY,
    -- The database that has the key, and the number of the grant. Grants of a key have increasing numbers.
    holder smallint,
    fence bigint NOT NULL DEFAULT 0,
    -- The grant: tickets up to `last`, items up to `upto`.
    last bigint NOT NULL DEFAULT 0,
    upto bigint NOT NULL DEFAULT 0,
    -- The end of the lease: the holder is asked then whether it still needs the key.
    due timestamptz NOT NULL DEFAULT '-infinity'
);
CREATE INDEX line_free ON hostler_shards.line (key) WHERE holder IS NULL;
CREATE INDEX line_due ON hostler_shards.line (holder, due) WHERE holder IS NOT NULL;

CREATE SEQUENCE hostler_shards.fence CACHE 1;

-- A database asks for a key, for an item. `want`: the number of the request in that database.
CREATE TABLE hostler_shards.ticket (
    key text COLLATE "C" NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    shard smallint NOT NULL,
    want bigint NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (key, number),
    UNIQUE (shard, want)
);

-- Where the items are ---------------------------------------------------------------------------------------------------

-- Requests for tickets, on their way to the homes of the keys.
CREATE TABLE hostler_shards.wanted (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    home smallint NOT NULL,
    key text COLLATE "C" NOT NULL,
    seq bigint NOT NULL
);
CREATE INDEX wanted_home ON hostler_shards.wanted (home, id);

-- Keys that this database has, or had. A key's row is changed under the lock of its row in `serial_key`.
CREATE TABLE hostler_shards.held (
    key text COLLATE "C" PRIMARY KEY,
    home smallint NOT NULL,
    fence bigint NOT NULL,
    -- Items up to this one may run.
    upto bigint NOT NULL,
    is_open boolean NOT NULL,
    -- Whether the home knows that it is not open any more.
    is_told boolean NOT NULL DEFAULT false,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX held_untold ON hostler_shards.held (home, fence) WHERE NOT is_open AND NOT is_told;
CREATE INDEX held_told ON hostler_shards.held (at) WHERE NOT is_open AND is_told;

-- Of each home, the highest number among the grants that were forgotten: older grants are not taken.
CREATE TABLE hostler_shards.floor (
    home smallint PRIMARY KEY,
    fence bigint NOT NULL
);

-- Keeps items out of line whose key this database does not have.
CREATE FUNCTION hostler_shards.gate() RETURNS trigger
LANGUAGE plpgsql SET search_path = hostler_shards, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (SELECT FROM held h WHERE h.key = NEW.key AND h.is_open AND NEW.seq <= h.upto) THEN
        RETURN NEW;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER shards_gate BEFORE INSERT ON hostler_jobs.ready
    FOR EACH ROW WHEN (NEW.key IS NOT NULL) EXECUTE FUNCTION hostler_shards.gate();

-- Asks for a ticket for each keyed item. Their keys are locked, so that of each key the order of `id` is that of commits.
CREATE FUNCTION hostler_shards.want() RETURNS trigger
LANGUAGE plpgsql SET search_path = hostler_shards, pg_temp AS $$
BEGIN
    INSERT INTO wanted (home, key, seq) SELECT home_of(f.key), f.key, f.seq FROM fresh f ORDER BY f.seq;
    RETURN NULL;
END $$;
CREATE TRIGGER shards_want AFTER INSERT ON hostler_jobs.waiting REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION hostler_shards.want();

-- Ends the grants of these keys that have no item left. The caller has locked the keys.
CREATE FUNCTION hostler_shards.close_ended(p_keys text[]) RETURNS void
LANGUAGE plpgsql SET search_path = hostler_shards, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE held h SET is_open = false, is_told = false, at = clock_timestamp()
    WHERE h.key = ANY (p_keys) AND h.is_open
        AND NOT EXISTS (SELECT FROM hostler_jobs.waiting w WHERE w.key = h.key AND w.seq <= h.upto);
END $$;

CREATE FUNCTION hostler_shards.ended() RETURNS trigger
LANGUAGE plpgsql SET search_path = hostler_shards, pg_temp AS $$
BEGIN
    PERFORM close_ended(ARRAY(SELECT DISTINCT g.key FROM gone g));
    RETURN NULL;
END $$;
CREATE TRIGGER shards_ended AFTER DELETE ON hostler_jobs.waiting REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION hostler_shards.ended();
