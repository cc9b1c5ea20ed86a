//! Commands as handlers. A command is a program with `main` that reads the message body from standard input. The exit
//! code of the program determines the outcome.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use wasmtime::{InstancePre, Linker, Module};
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::{I32Exit, WasiView as _};

use super::capabilities::Stdin;
use super::engine::Engine;
use super::guest::{Export, Guest, no_folder};
use super::limits::Limits;
use super::lines::{self, Lines};
use super::load_error::LoadError;
use super::output::Sink;
use super::sandbox::{self, Sandbox};
use super::scope::Scope;
use super::signature::{Function, Interface};
use super::{Definition, denied, listing};
use hostler_handler::{BatchCall, BatchEnd, Call, Handler, Mark, Outcome, Output, handle_alone};

/// Exit code for a temporary failure (`EX_TEMPFAIL` in sysexits.h). The message is retried.
const EX_TEMPFAIL: i32 = 75;
/// Exit code for input that can never be processed (`EX_DATAERR` in sysexits.h). The message is dead-lettered.
const EX_DATAERR: i32 = 65;

/// Length in bytes of a line of answers that is taken even if fewer bytes of output are kept.
const SHORTEST_LINE: usize = 64 * 1024;

/// Failure of a message of a batch for which the program wrote no line.
const NO_ANSWER: &str = "the program gave no answer for the message";

/// The export that identifies a component as a WASI 0.2 command.
pub(super) const RUN: Interface = Interface { name: "wasi:cli/run", version: "0.2.0", wit: "wasi:cli@0.2" };

/// The function `run` of [`RUN`].
const MAIN: Function = Function { interface: RUN, name: "run", alone: false };

/// A program that a command runs.
pub(super) trait Program: Send + Sync + 'static {
    /// Returns the definition of the handler.
    fn definition(&self) -> &Definition;

    /// Runs the program to its end. `conclude` converts its exit code to the outcome of the call.
    fn run(
        &self,
        scope: Scope,
        stdin: Stdin<'_>,
        output: &Output,
        conclude: impl FnOnce(i32) -> Outcome + Send,
    ) -> impl Future<Output = Outcome> + Send;
}

/// Handler that runs a program. Exit code 0 acks the message, 75 retries it, and 65 dead-letters it. Any other exit code is
/// a failure. If the consumer has batches, the program answers in lines of JSON: see [`lines`].
pub(super) struct CommandHandler<P>(pub(super) P);

#[async_trait]
impl<P: Program> Handler for CommandHandler<P> {
    async fn handle(&self, call: &Call) -> Outcome {
        let definition = self.0.definition();
        if definition.batches {
            return handle_alone(self, call).await;
        }
        let (mark, env, replies) = (call.output.mark(), environment(call), definition.reply_from_stdout);
        let stdin = Stdin { body: call.message.body.clone(), env: &env, replies, answers: None };
        let conclude = |code| outcome(code, &call.output, mark, replies);
        self.0.run(Scope::of(call, definition), stdin, &call.output, conclude).await
    }

    async fn handle_batch(&self, batch: &Arc<BatchCall>) -> BatchEnd {
        let (output, size) = (&batch.output, batch.calls.len());
        let may_connect = !self.0.definition().grants.tcp.is_empty();
        let lines = Lines::new(batch, output.limit().max(SHORTEST_LINE), may_connect);
        let channel = batch.calls.first().map_or_else(String::new, |call| call.channel.to_string());
        let (mark, env) = (output.mark(), [("MESSAGE_CHANNEL", channel)]);
        let body = lines::input(batch).into();
        let stdin = Stdin { body, env: &env, replies: false, answers: Some(lines.clone()) };
        let scope = Scope::of_batch(batch, self.0.definition());
        let ended = self.0.run(scope, stdin, output, |code| outcome(code, output, mark, false)).await;
        lines.end(ended == Outcome::Ack);
        match ended {
            Outcome::Ack => BatchEnd::Answers(vec![Outcome::Failed(NO_ANSWER.to_owned()); size]),
            ended @ (Outcome::HostLimit(..) | Outcome::Trapped(_)) => BatchEnd::of_all(ended, size),
            ended if size == 1 => BatchEnd::Answers(vec![ended]),
            // The exit code is about all messages without an answer, so each of them runs alone, as after a trap.
            ended => BatchEnd::Trapped(ended.reason().unwrap_or_else(|| "the program asked for a retry".to_owned())),
        }
    }
}

/// A WASI preview-1 module with `_start`.
pub(super) struct ModuleProgram {
    engine: Engine,
    pre: InstancePre<Sandbox<WasiP1Ctx>>,
    definition: Arc<Definition>,
    limits: Limits,
}

impl ModuleProgram {
    pub(super) fn new(
        engine: &Engine,
        module: &Module,
        definition: &Arc<Definition>,
        memory: u64,
    ) -> Result<Self, LoadError> {
        let mut linker = Linker::<Sandbox<WasiP1Ctx>>::new(engine.inner());
        let has_folders = !definition.grants.dirs.is_empty();
        let pre = p1::add_to_linker_async(&mut linker, |sandbox| &mut sandbox.wasi)
            .and_then(|()| denied::add_preview1(&mut linker, has_folders))
            .and_then(|()| listing::add_preview1(&mut linker))
            .and_then(|()| linker.define_unknown_imports_as_traps(module))
            .and_then(|()| linker.instantiate_pre(module))
            .map_err(|error| LoadError::link(&definition.source, &error, None))?;
        let limits = Limits::command(memory).of(engine.files(), definition);
        Ok(Self { engine: engine.clone(), pre, definition: Arc::clone(definition), limits })
    }
}

impl Program for ModuleProgram {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    async fn run(
        &self,
        scope: Scope,
        stdin: Stdin<'_>,
        output: &Output,
        conclude: impl FnOnce(i32) -> Outcome + Send,
    ) -> Outcome {
        let begun = self.definition.metrics.as_ref().map(|metrics| (metrics, Instant::now()));
        let mark = output.mark();
        let wasi = self.definition.grants.wasi(stdin, &Sink::new(output), &self.limits);
        let wasi = match wasi {
            Ok(mut wasi) => wasi.build_p1(),
            Err(error) => return no_folder(&error),
        };
        let _running = self.engine.running();
        let mut store = sandbox::store(&self.engine, wasi, &self.limits, Arc::new(scope));
        store.data_mut().wasi.ctx().table.set_max_capacity(self.limits.handles);
        let run = async {
            let instance = self.pre.instantiate_async(&mut store).await?;
            if let Some((metrics, begun)) = begun {
                metrics.instantiated(begun.elapsed());
            }
            instance.get_typed_func::<(), ()>(&mut store, "_start")?.call_async(&mut store, ()).await
        };
        let code = match run.await {
            Ok(()) => 0,
            Err(error) => match error.downcast_ref::<I32Exit>() {
                Some(exit) => exit.0,
                None => return output.explain(store.data_mut().trapped(&error), mark),
            },
        };
        store.data_mut().judge(conclude(code))
    }
}

/// A WASI 0.2 command. Its `run` function returns no exit code, only ok or err. An err counts as exit code 1.
pub(super) struct ComponentProgram {
    guest: Guest,
    run: Export,
}

impl ComponentProgram {
    pub(super) fn new(guest: Guest) -> Result<Self, LoadError> {
        Ok(Self { run: MAIN.required::<(), (Result<(), ()>,)>(&guest)?, guest })
    }
}

impl Program for ComponentProgram {
    fn definition(&self) -> &Definition {
        self.guest.definition()
    }

    async fn run(
        &self,
        scope: Scope,
        stdin: Stdin<'_>,
        output: &Output,
        conclude: impl FnOnce(i32) -> Outcome + Send,
    ) -> Outcome {
        let mark = output.mark();
        let mut live = match self.guest.instantiate(scope, output, stdin).await {
            Ok(live) => live,
            Err(outcome) => return outcome,
        };
        let code = match live.call::<_, (Result<(), ()>,)>(&self.run, ()).await {
            Ok((Ok(()),)) => 0,
            Ok((Err(()),)) => 1,
            Err(error) => match error.downcast_ref::<I32Exit>() {
                Some(exit) => exit.0,
                None => return output.explain(live.trapped(&error), mark),
            },
        };
        let outcome = live.judge(conclude(code));
        live.settled(outcome).await
    }
}

/// Converts an exit code to an outcome. The reason for the outcome is the end of standard error, where programs usually
/// report failures. `mark`: position in the output at which the command started. Earlier output is ignored, because a
/// hook wrote it. `replies`: `true` if the standard output is the reply.
fn outcome(code: i32, output: &Output, mark: Mark, replies: bool) -> Outcome {
    if code == 0 {
        return if replies {
            match output.take_reply(mark) {
                Some(reply) => Outcome::Reply(reply),
                None => Outcome::Failed("its reply exceeds limits.output, and was cut short".into()),
            }
        } else {
            Outcome::Ack
        };
    }
    let said = output.last_words_since(mark);
    match code {
        EX_TEMPFAIL => Outcome::Retry(said),
        EX_DATAERR => Outcome::DeadLetter(said.unwrap_or_else(|| format!("exit code {code}"))),
        _ => Outcome::Failed(match said {
            Some(said) => format!("exit code {code}: {said}"),
            None => format!("exit code {code}"),
        }),
    }
}

/// Returns the environment variables that describe the message to a command.
fn environment(call: &Call) -> Vec<(&'static str, String)> {
    let attributes = call.message.attributes.iter().map(|(name, value)| (name.clone(), lines::attribute(value)));
    let mut environment = vec![
        ("MESSAGE_ID", call.message.id.clone()),
        ("MESSAGE_CHANNEL", call.channel.to_string()),
        ("MESSAGE_ATTEMPT", call.attempt.to_string()),
        ("MESSAGE_ATTRIBUTES", serde_json::Value::Object(attributes.collect()).to_string()),
    ];
    if let Some(trace) = &call.trace {
        environment.push(("TRACEPARENT", trace.traceparent()));
        environment.extend(trace.tracestate().map(|state| ("TRACESTATE", state)));
    }
    environment
}
