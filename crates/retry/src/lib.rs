//! The retry service: keeps messages of NATS, and requests them again until they are delivered, expire or are given up.
