//! Driver of NATS: JetStream streams as queues, and core subjects with acknowledgements.
