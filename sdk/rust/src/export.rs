//! Macros that the attributes call. In a guest, a macro exports the function. On other targets, it checks the function's type.

/// Functions of this crate that the macros call.
pub mod __private {
    use std::time::Duration;

    use crate::{Answer, Message, Outcome, Report, Started, State};

    /// Runs a handler.
    pub fn handler<A: Answer>(function: fn(Message) -> A, message: Message) -> Result<Outcome, crate::Failure> {
        function(message).answer()
    }

    /// Runs a handler of batches.
    pub fn batch_handler<A: Answer>(
        function: fn(Vec<Message>) -> Vec<A>,
        messages: Vec<Message>,
    ) -> Vec<Result<Outcome, crate::Failure>> {
        function(messages).into_iter().map(A::answer).collect()
    }

    /// Runs a hook.
    pub fn message_start<A: Started>(function: fn(Message) -> A, message: Message) -> Result<(), String> {
        function(message).started().map_err(|failure| failure.to_string())
    }

    /// Runs a hook.
    pub fn message_end(function: fn(Report), report: Report) {
        function(report);
    }

    /// Runs a hook.
    pub fn processing_timeout(
        function: fn(Message, Duration) -> Outcome,
        message: Message,
        elapsed: Duration,
    ) -> Outcome {
        function(message, elapsed)
    }

    /// Runs a hook.
    pub fn state_changed(function: fn(State, State), from: State, to: State) {
        function(from, to);
    }
}

/// Exports the function of `#[handler]`.
#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_handler {
    ($function:ident) => {
        const _: () = {
            struct Export;
            impl $crate::contract::handler::Guest for Export {
                fn handle(
                    message: $crate::contract::types::Message,
                ) -> ::core::result::Result<$crate::contract::types::Outcome, ::std::string::String> {
                    $crate::contract::outcome($crate::__private::handler($function, message.into()))
                }
            }
    $crate::contract::handler::export_handler!(Export with_types_in $crate::contract::handler);
        };
    };
}

/// Exports the function of `#[batch_handler]`.
#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_batch_handler {
    ($function:ident) => {
        const _: () = {
            struct Export;
            impl $crate::contract::batch_handler::Guest for Export {
                fn handle_batch(
                    messages: ::std::vec::Vec<$crate::contract::types::Message>,
                ) -> ::std::vec::Vec<::core::result::Result<$crate::contract::types::Outcome, ::std::string::String>> {
                    let messages = messages.into_iter().map(::core::convert::Into::into).collect();
                    let answers = $crate::__private::batch_handler($function, messages);
                    answers.into_iter().map($crate::contract::outcome).collect()
                }
            }
            $crate::contract::batch_handler::export_batch_handler!(Export with_types_in $crate::contract::batch_handler);
        };
    };
}

/// Exports the function of `#[message_start]`.
#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_message_start {
    ($function:ident) => {
        const _: () = {
            struct Export;
            impl $crate::contract::message_start::Guest for Export {
                fn message_start(message: $crate::contract::types::Message) -> ::core::result::Result<(), ::std::string::String> {
                    $crate::__private::message_start($function, message.into())
                }
            }
            $crate::contract::message_start::export_message_start!(Export with_types_in $crate::contract::message_start);
        };
    };
}

/// Exports the function of `#[message_end]`.
#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_message_end {
    ($function:ident) => {
        const _: () = {
            struct Export;
            impl $crate::contract::message_end::Guest for Export {
                fn message_end(report: $crate::contract::types::Report) {
                    $crate::__private::message_end($function, report.into())
                }
            }
    $crate::contract::message_end::export_message_end!(Export with_types_in $crate::contract::message_end);
        };
    };
}

/// Exports the function of `#[processing_timeout]`.
#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_processing_timeout {
    ($function:ident) => {
        const _: () = {
            struct Export;
            impl $crate::contract::processing_timeout::Guest for Export {
                fn processing_timeout(message: $crate::contract::types::Message, elapsed_ms: u64) -> $crate::contract::types::Outcome {
                    $crate::__private::processing_timeout($function, message.into(), ::core::time::Duration::from_millis(elapsed_ms)).into()
                }
            }
            $crate::contract::processing_timeout::export_processing_timeout!(Export with_types_in $crate::contract::processing_timeout);
        };
    };
}

/// Exports the function of `#[state_changed]`.
#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_state_changed {
    ($function:ident) => {
        const _: () = {
            struct Export;
            impl $crate::contract::state_changed::Guest for Export {
                fn state_changed(from: $crate::contract::types::State, to: $crate::contract::types::State) {
                    $crate::__private::state_changed($function, from.into(), to.into())
                }
            }
            $crate::contract::state_changed::export_state_changed!(Export with_types_in $crate::contract::state_changed);
        };
    };
}

/// Defines macros that check the type of a function with an attribute. The check counts as a use of the function, so the compiler
/// does not report dead code.
#[cfg(not(target_family = "wasm"))]
macro_rules! checks {
    ($($macro:ident => $check:ident($($argument:ident),*))*) => { checks! { @ ($) $($macro => $check($($argument),*))* } };
    (@ ($dollar:tt) $($macro:ident => $check:ident($($argument:ident),*))*) => {$(
        #[doc(hidden)]
        #[macro_export]
        macro_rules! $macro {
            ($dollar function:ident) => {
                const _: () = {
                    let _ = |$($argument),*| $dollar crate::__private::$check($dollar function, $($argument),*);
                };
            };
        }
    )*};
}

#[cfg(not(target_family = "wasm"))]
checks! {
    __export_handler => handler(message)
    __export_batch_handler => batch_handler(messages)
    __export_message_start => message_start(message)
    __export_message_end => message_end(report)
    __export_processing_timeout => processing_timeout(message, elapsed)
    __export_state_changed => state_changed(from, to)
}
