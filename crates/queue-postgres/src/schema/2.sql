-- States of schedules. Times are microseconds since 1970 by the hosts' clocks, at most the end of the year 9999.
CREATE TABLE hostler_queue.schedule (
    name text PRIMARY KEY CHECK (name <> ''),
    definition text NOT NULL,
    handled bigint NOT NULL CHECK (handled BETWEEN 0 AND 253402300799999999),
    sent bigint CHECK (sent BETWEEN 0 AND 253402300799999999),
    seen bigint NOT NULL CHECK (seen BETWEEN 0 AND 253402300799999999)
);
