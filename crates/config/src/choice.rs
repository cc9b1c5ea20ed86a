//! Enums for keys that accept one of a few words.

use figment::value::Value;

use super::read::{Read, quoted, text};

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }

        impl $name {
            /// All words, as written in the configuration.
            pub const WORDS: &'static [&'static str] = &[$($word),+];
        }

        impl Read for $name {
            fn read(value: &Value) -> Result<Self, String> {
                match text(value)? {
                    $($word => Ok(Self::$variant),)+
                    other => Err(format!("{} is not one of the choices", quoted(other))),
                }
            }
        }
    };
}

choice! {
    /// Protection of the ECS task from scale-in while messages are in flight.
    TaskProtection {
        /// Enabled if the ECS agent responds.
        Auto = "auto",
        /// Disabled.
        Off = "off",
    }
}

choice! {
    /// Use of hardening: limits that the process sets for itself by Landlock and seccomp, independently of the
    /// sandboxes of guests.
    HardeningMode {
        /// Imposes the limits that the kernel supports.
        Auto = "auto",
        /// Imposes all limits. If one of them cannot be imposed, the host does not start.
        Require = "require",
        /// Imposes no limits.
        Off = "off",
    }
}

choice! {
    /// Queue service that stores the messages.
    Driver {
        /// SQLite in one file, for one machine.
        Embedded = "embedded",
        /// Amazon SQS, with SNS topics as exchanges.
        Sqs = "sqs",
        /// RabbitMQ, by AMQP 0-9-1.
        RabbitMq = "rabbitmq",
        /// NATS, by JetStream.
        Nats = "nats",
        /// PostgreSQL, by tables.
        Postgres = "postgres",
    }
}

impl Driver {
    /// Returns the word for this driver in the configuration.
    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

choice! {
    /// Treatment of queues that are missing when the host starts.
    Provision {
        /// Ends the process with exit code 69 and an error text with instructions for creating the queues.
        Check = "check",
        /// Creates the queues.
        Auto = "auto",
    }
}

choice! {
    /// Treatment of a message that exceeds the processing timeout.
    OnProcessingTimeout {
        /// Moves the message to the dead-letter queue.
        DeadLetter = "dead-letter",
        /// Applies the escalation policy, as for a failed attempt.
        Retry = "retry",
        /// Drains the process, which then exits with code 71.
        Exit = "exit",
    }
}

choice! {
    /// Treatment of the messages of a batch for which the handler has given no answer when it traps, or reaches its processing
    /// timeout.
    OnTrap {
        /// Each of them runs again alone, under its lease, and without another attempt.
        Singly = "singly",
        /// Each of them has trapped or timed out.
        Fail = "fail",
    }
}

choice! {
    /// Store of idempotency records.
    RecordStore {
        /// SQLite in the file of the embedded queue.
        Embedded = "embedded",
        /// PostgreSQL, in the database of the queues.
        Postgres = "postgres",
    }
}

impl RecordStore {
    /// Returns the word for this store in the configuration.
    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

choice! {
    /// Treatment of a message whose key has an earlier run without a result.
    OnUnknown {
        /// The handler runs again.
        Run = "run",
        /// The message is dead-lettered.
        DeadLetter = "dead-letter",
    }
}

choice! {
    /// Part of a WASI command's output to send as the reply.
    Reply {
        /// No reply: stdout is logged.
        Off = "off",
        /// Standard output.
        Stdout = "stdout",
    }
}

choice! {
    /// Comparison of a filter's values with the routing key.
    FilterType {
        /// The routing key equals one of the values.
        Exact = "exact",
        /// The routing key starts with one of the values.
        Prefix = "prefix",
        /// The routing key equals none of the values.
        Exclude = "exclude",
    }
}

choice! {
    /// Access of a guest to a granted folder.
    DirMode {
        /// Read only.
        ReadOnly = "ro",
        /// Read and write.
        ReadWrite = "rw",
    }
}

choice! {
    /// Format of a log line.
    LogFormat {
        /// One JSON object per line.
        Json = "json",
        /// Text for people.
        Text = "text",
    }
}

choice! {
    /// Growth of the retry service's waits between deliveries.
    RetryBackoff {
        /// Every wait is the same.
        Fixed = "fixed",
        /// The waits double, with jitter, up to a maximum.
        Exponential = "exponential",
    }
}

choice! {
    /// End of a message of the retry service that expires.
    Expired {
        /// The message is removed.
        Drop = "drop",
        /// The message moves to the dead-letter queue.
        DeadLetter = "dead-letter",
    }
}

choice! {
    /// Way in which the instances of the job service learn of each other's work.
    Fanout {
        /// Each instance looks into the database at short intervals.
        Poll = "poll",
        /// Each instance also notifies the others, by PostgreSQL.
        Notify = "notify",
        /// Each instance also publishes the ids of items to RabbitMQ.
        RabbitMq = "rabbitmq",
    }
}

impl LogFormat {
    /// Returns the default log format. The default is text if the log is written to a terminal, because a person reads
    /// it there. Otherwise, the default is JSON.
    pub fn usual(is_terminal: bool) -> Self {
        if is_terminal { Self::Text } else { Self::Json }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_text_and_everything_else_json() {
        assert_eq!([true, false].map(LogFormat::usual), [LogFormat::Text, LogFormat::Json]);
    }
}
