//! The PostgreSQL driver.
