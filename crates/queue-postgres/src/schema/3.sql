-- Idempotency records. The id is the digest of a key; the label names the key for people.
CREATE TABLE hostler_queue.record (
    id bytea PRIMARY KEY CHECK (octet_length(id) = 32),
    label text NOT NULL,
    body bytea NOT NULL CHECK (octet_length(body) = 32),
    token bigint NOT NULL,
    done boolean NOT NULL,
    leased_until timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    reply bytea,
    unsent bytea
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

CREATE INDEX record_expires ON hostler_queue.record (expires_at);
