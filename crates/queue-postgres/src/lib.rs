//! The PostgreSQL driver of hostler.
