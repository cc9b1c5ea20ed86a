//! Command `hostler compile`.

use std::path::{Path, PathBuf};

use super::{block_on, print};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use crate::host::resources::{Machine, Threads};
use hostler_telemetry as telemetry;
use hostler_wasm::fetch::Reference;
use hostler_wasm::{self as handler, CompileError, CpuBaseline, Recipe, Source};

const HELP: &str = "\
Examples:
  hostler compile handler.wasm -o handler.cwasm
  hostler compile handler.wasm -o handler.cwasm --cpu-baseline x86-64-v3

The code fits this version of hostler and the CPU baseline. The file also contains the WASM: where the code does not \
    fit, hostler warns and compiles the WASM, which takes seconds. Compiled code cannot be verified, so name only files in \
    a config that you compiled yourself.";

/// Compile a handler ahead of time for a fast start
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// A .wasm or .wat file, s3://… or oci://…
    handler: String,
    /// The .cwasm file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// A target triple, such as x86_64-unknown-linux-gnu [default: this machine]
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// The required CPU: generic, x86-64-v2, x86-64-v3 or native
    #[arg(long, value_name = "BASELINE", default_value_t)]
    cpu_baseline: CpuBaseline,
    /// Leave the WASM out; the file is refused where the code does not fit
    #[arg(long)]
    no_source: bool,
}

pub(super) fn run(args: &Args) -> Result {
    handler::compile_with(Threads::of(&Machine::measure(), 1).compiling);
    telemetry::show_warnings();
    let source = if Reference::is_meant_by(&args.handler) {
        block_on(host::fetch(&args.handler, None, None))?
    } else {
        Source::from(Path::new(&args.handler))
    };
    let recipe = Recipe { target: args.target.as_deref(), baseline: args.cpu_baseline, with_source: !args.no_source };
    let compiled = handler::compile(&source, recipe).map_err(|error| {
        let exit = match error {
            CompileError::Handler(_) => Exit::BadHandler,
            CompileError::Target { .. } => Exit::Usage,
        };
        Failure::new(exit, error)
    })?;
    // Replaces the file atomically with a rename. A host that starts meanwhile never loads an incomplete file.
    let temporary = args.output.with_added_extension("tmp");
    let written = std::fs::write(&temporary, &compiled).and_then(|()| std::fs::rename(&temporary, &args.output));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        Failure::new(
            Exit::Failed,
            format!(
                "cannot write {}: {error}\n  cure: name a file in a folder that exists and that you may write to",
                args.output.display()
            ),
        )
    })?;
    let size = bytesize::ByteSize(compiled.len() as u64);
    print(format!("{} ({size}, {})", args.output.display(), args.cpu_baseline));
    Ok(Exit::Ok)
}
