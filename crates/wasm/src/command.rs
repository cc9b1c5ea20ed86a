//! Commands as handlers. A command is a program with `main` that reads the message body from standard input. The exit
//! code of the program determines the outcome.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use wasmtime::{InstancePre, Linker, Module};
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::{I32Exit, WasiView as _};

use super::capabilities::Stdin;
use super::engine::Engine;
use super::guest::{Export, Guest, no_folder};
use super::limits::Limits;
use super::load_error::LoadError;
use super::output::Sink;
use super::sandbox::{self, Sandbox};
use super::scope::Scope;
use super::signature::{Function, Interface};
use super::{Definition, denied, listing};
use hostler_handler::{Call, Handler, Mark, Outcome};
use hostler_types::message::Plain;

/// Exit code for a temporary failure (`EX_TEMPFAIL` in sysexits.h). The message is retried.
const EX_TEMPFAIL: i32 = 75;
/// Exit code for input that can never be processed (`EX_DATAERR` in sysexits.h). The message is dead-lettered.
const EX_DATAERR: i32 = 65;

/// The export that identifies a component as a WASI 0.2 command.
pub(super) const RUN: Interface = Interface { name: "wasi:cli/run", version: "0.2.0", wit: "wasi:cli@0.2" };

/// The function `run` of [`RUN`].
const MAIN: Function = Function { interface: RUN, name: "run", alone: false };

/// Handler that runs a WASI preview-1 module. Exit code 0 acks the message, 75 retries it, and 65 dead-letters it. Any
/// other exit code is a failure.
pub(super) struct CommandHandler {
    engine: Engine,
    pre: InstancePre<Sandbox<WasiP1Ctx>>,
    definition: Arc<Definition>,
    limits: Limits,
}

impl CommandHandler {
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

#[async_trait]
impl Handler for CommandHandler {
    async fn handle(&self, call: &Call) -> Outcome {
        let begun = self.definition.metrics.as_ref().map(|metrics| (metrics, Instant::now()));
        let mark = call.output.mark();
        let env = environment(call);
        let stdin = Stdin { body: call.message.body.clone(), env: &env, replies: self.definition.reply_from_stdout };
        let wasi = self.definition.grants.wasi(stdin, &Sink::new(&call.output), &self.limits);
        let wasi = match wasi {
            Ok(mut wasi) => wasi.build_p1(),
            Err(error) => return no_folder(&error),
        };
        let _running = self.engine.running();
        let scope = Arc::new(Scope::of(call, &self.definition));
        let mut store = sandbox::store(&self.engine, wasi, &self.limits, scope);
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
                None => return call.output.explain(store.data_mut().trapped(&error), mark),
            },
        };
        store.data_mut().judge(outcome(code, call, mark, &self.definition))
    }
}

/// Handler that runs a WASI 0.2 command. The command's `run` function returns no exit code, only ok or err. An err
/// counts as exit code 1.
pub(super) struct RunHandler {
    guest: Guest,
    run: Export,
}

impl RunHandler {
    pub(super) fn new(guest: Guest) -> Result<Self, LoadError> {
        Ok(Self { run: MAIN.required::<(), (Result<(), ()>,)>(&guest)?, guest })
    }
}

#[async_trait]
impl Handler for RunHandler {
    async fn handle(&self, call: &Call) -> Outcome {
        let (mark, definition) = (call.output.mark(), self.guest.definition());
        let env = environment(call);
        let stdin = Stdin { body: call.message.body.clone(), env: &env, replies: definition.reply_from_stdout };
        let mut live = match self.guest.instantiate(self.guest.scope(call), &call.output, stdin).await {
            Ok(live) => live,
            Err(outcome) => return outcome,
        };
        let code = match live.call::<_, (Result<(), ()>,)>(&self.run, ()).await {
            Ok((Ok(()),)) => 0,
            Ok((Err(()),)) => 1,
            Err(error) => match error.downcast_ref::<I32Exit>() {
                Some(exit) => exit.0,
                None => return call.output.explain(live.trapped(&error), mark),
            },
        };
        let outcome = live.judge(outcome(code, call, mark, definition));
        live.settled(outcome).await
    }
}

/// Converts an exit code to an outcome. The reason for the outcome is the end of standard error, where programs usually
/// report failures. `mark`: position in the output at which the command started. Earlier output is ignored, because a
/// hook wrote it.
fn outcome(code: i32, call: &Call, mark: Mark, definition: &Definition) -> Outcome {
    if code == 0 {
        return if definition.reply_from_stdout {
            match call.output.take_reply(mark) {
                Some(reply) => Outcome::Reply(reply),
                None => Outcome::Failed("its reply exceeds limits.output, and was cut short".into()),
            }
        } else {
            Outcome::Ack
        };
    }
    let said = call.output.last_words_since(mark);
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
    let attributes = call.message.attributes.iter().map(|(name, value)| {
        let value = match value.plain() {
            Plain::Text(text) => serde_json::Value::from(text),
            Plain::Binary(bytes) => serde_json::json!({ "base64": STANDARD.encode(bytes) }),
        };
        (name.clone(), value)
    });
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
