//! The image in a real container engine: what it holds, its health as the engine sees it, how it stops, life as PID 1.

mod health;
mod image;
mod init;
mod memory;
mod stop;

/// A consumer `work` whose handler does what the body says. Further keys of it follow.
const WORK: &str = "
    [consumers.work]
    channel = 'work'
    handler = '/guests/run-word.wat'
";

/// A config with these dotted keys of the host, and these of the consumer.
fn work(host: &str, keys: &str) -> String {
    format!("{host}\n{WORK}{keys}")
}
