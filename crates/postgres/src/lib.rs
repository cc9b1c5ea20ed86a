//! Connections to PostgreSQL: pools, TLS, deadlines, errors, migrations.
