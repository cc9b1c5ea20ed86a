CREATE TABLE hostler_queue.queue (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    ordered boolean NOT NULL,
    tags jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now()
);

-- The filter is JSON, such as {"exact": ["a"]}.
CREATE TABLE hostler_queue.subscription (
    exchange text NOT NULL,
    queue int NOT NULL REFERENCES hostler_queue.queue ON DELETE CASCADE,
    filter jsonb NOT NULL,
    PRIMARY KEY (exchange, queue)
);

-- Exchanges that exist without a subscription.
CREATE TABLE hostler_queue.exchange (name text PRIMARY KEY);

CREATE SEQUENCE hostler_queue.seq CACHE 1;

-- Written once: the bodies may be large.
CREATE TABLE hostler_queue.content (
    seq bigint PRIMARY KEY,
    id text NOT NULL,
    grp text,
    routing_key text,
    attributes text,
    enqueued_at timestamptz NOT NULL,
    body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05,
        autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 1,
        toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_threshold = 1000, toast.autovacuum_vacuum_cost_delay = 1);

-- A row changes at every receive, so it is narrow. In an ordered queue each row has a group, and all but one of a group are blocked:
-- their visible_at is null. A row with a lease and a visible_at in the future is leased.
CREATE TABLE hostler_queue.entry (
    queue int NOT NULL,
    seq bigint NOT NULL,
    attempts int NOT NULL DEFAULT 0,
    lease bigint,
    visible_at timestamptz,
    due_at timestamptz NOT NULL,
    grp text,
    PRIMARY KEY (queue, seq)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX entry_visible ON hostler_queue.entry (queue, visible_at, seq) WHERE visible_at IS NOT NULL;
CREATE INDEX entry_group ON hostler_queue.entry (queue, grp, seq) WHERE grp IS NOT NULL;

CREATE TABLE hostler_queue.dedupe (
    scope text NOT NULL,
    hash bytea NOT NULL,
    id text NOT NULL,
    sent_at timestamptz NOT NULL,
    PRIMARY KEY (scope, hash)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

CREATE INDEX dedupe_age ON hostler_queue.dedupe (sent_at);

-- Whoever deletes a queue deletes its messages. A foreign key would lock the row of the queue at every send.
CREATE FUNCTION hostler_queue.forget() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (DELETE FROM hostler_queue.entry WHERE queue = OLD.id RETURNING seq)
    DELETE FROM hostler_queue.content USING gone WHERE content.seq = gone.seq;
    RETURN NULL;
END $$;

CREATE TRIGGER forget AFTER DELETE ON hostler_queue.queue FOR EACH ROW EXECUTE FUNCTION hostler_queue.forget();
