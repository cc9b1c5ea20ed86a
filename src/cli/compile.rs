//! Command `hostler compile`.

use std::path::{Path, PathBuf};

use super::{block_on, print};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use crate::host::resources::{Machine, Threads};
use hostler_telemetry as telemetry;
use hostler_wasm::fetch::Reference;
use hostler_wasm::{self as handler, CompileError, CpuBaseline, Recipe, Source};

/// Compile a handler ahead of time, so that it loads in milliseconds
///
/// The code fits this version of hostler and the requested CPU baseline. The file also contains the WASM: where the code does not
/// fit, hostler warns and compiles the WASM, which takes seconds. Name only files that you compiled yourself in a config:
/// compiled code cannot be verified.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The handler: a .wasm or .wat file, or a reference to one: s3://… or oci://…
    handler: String,
    /// The .cwasm file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// A target triple, for example x86_64-unknown-linux-gnu [default: this machine]
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// The CPU features to require: generic, x86-64-v2, x86-64-v3 or native
    #[arg(long, value_name = "BASELINE", default_value_t)]
    cpu_baseline: CpuBaseline,
    /// Leave the WASM out: the file is smaller, but refused where the code does not fit
    #[arg(long)]
    no_source: bool,
}

pub(super) fn run(args: &Args) -> Result {
    handler::compile_with(Threads::of(&Machine::measure(), 1).compiling);
    telemetry::show_warnings();
    let source = match Reference::is_meant_by(&args.handler) {
        true => block_on(host::fetch(&args.handler, None, None))?,
        false => Source::from(Path::new(&args.handler)),
    };
    let recipe = Recipe { target: args.target.as_deref(), baseline: args.cpu_baseline, with_source: !args.no_source };
    let compiled = handler::compile(&source, recipe).map_err(|error| {
        let exit = match error {
            CompileError::Handler(_) => Exit::BadHandler,
            CompileError::Target { .. } => Exit::Usage,
        };
        Failure::new(exit, error)
    })?;
    // The rename replaces the file atomically. A host that starts meanwhile never loads an incomplete file.
    let temporary = args.output.with_added_extension("tmp");
    let written = std::fs::write(&temporary, &compiled).and_then(|()| std::fs::rename(&temporary, &args.output));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        Failure::new(Exit::Failed, format!("cannot write {}: {error}", args.output.display()))
    })?;
    let size = bytesize::ByteSize(compiled.len() as u64);
    print(format!("{} ({size}, {})", args.output.display(), args.cpu_baseline));
    Ok(Exit::Ok)
}
