//! Keys that accept one of a few words, each as an enum.

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
            /// Every word, as written in the configuration.
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
    /// ECS scale-in protection while messages are in flight.
    TaskProtection {
        /// On where the ECS agent answers.
        Auto = "auto",
        /// Never.
        Off = "off",
    }
}

choice! {
    /// Limits that the process puts on itself, in addition to the sandbox of each guest.
    HardeningMode {
        /// As far as the kernel supports them.
        Auto = "auto",
        /// In full, or the host does not start.
        Require = "require",
        /// None.
        Off = "off",
    }
}

choice! {
    /// The queue service that the messages come from.
    Driver {
        /// SQLite in one file, for one machine.
        Embedded = "embedded",
        /// Amazon SQS, with SNS topics as exchanges.
        Sqs = "sqs",
    }
}

impl Driver {
    /// Its word in the configuration.
    pub fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

choice! {
    /// The treatment of queues that are missing at the start.
    Provision {
        /// They end the process with exit code 69 and a cure.
        Check = "check",
        /// They are created.
        Auto = "auto",
    }
}

choice! {
    /// The treatment of a message whose processing timeout ran out.
    OnProcessingTimeout {
        /// It goes to the dead-letter queue.
        DeadLetter = "dead-letter",
        /// It goes through the escalation policy.
        Retry = "retry",
        /// The process drains, then exits with code 71.
        Exit = "exit",
    }
}

choice! {
    /// The part of a WASI command's output that is its reply.
    Reply {
        /// Nothing: stdout is logged.
        Off = "off",
        /// Its standard output.
        Stdout = "stdout",
    }
}

choice! {
    /// The way in which a filter's values match the routing key.
    FilterType {
        /// The key is one of them.
        Exact = "exact",
        /// The key starts with one of them.
        Prefix = "prefix",
        /// The key is none of them.
        Exclude = "exclude",
    }
}

choice! {
    /// A guest's access to a granted folder.
    DirMode {
        /// Read.
        ReadOnly = "ro",
        /// Read and write.
        ReadWrite = "rw",
    }
}

choice! {
    /// The format of a log line.
    LogFormat {
        /// One JSON object per line.
        Json = "json",
        /// For people.
        Text = "text",
    }
}
