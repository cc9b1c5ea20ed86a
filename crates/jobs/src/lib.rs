//! The job service of hostler: trees of jobs over PostgreSQL, by HTTP.
