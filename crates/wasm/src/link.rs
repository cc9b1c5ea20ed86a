//! Links components with the host's functions.

use std::sync::Arc;

use wasmtime::component::{Component, Linker};

use super::artifact::CONTRACTS;
use super::capabilities::Grants;
use super::engine::Engine;
use super::guest::Guest;
use super::load_error::LoadError;
use super::sandbox::{ComponentWasi, Sandbox};
use super::{Definition, batch, denied, http, imports, jobs, listing, lists, stubs, tcp};
#[cfg(feature = "messaging")]
use super::{messaging, wasmcloud};

/// Links a component. Each of its instances may use up to `memory` bytes of linear memory.
///
/// # Errors
/// [`LoadError`] if the type of an import differs from the type of the host's item of the same name.
pub(super) fn guest(
    engine: &Engine,
    component: &Component,
    definition: &Arc<Definition>,
    memory: u64,
) -> Result<Guest, LoadError> {
    let mut linker = Linker::new(engine.inner());
    let pre = add(&mut linker, &definition.grants)
        .and_then(|()| stubs::add(&mut linker, component))
        .and_then(|()| linker.instantiate_pre(component));
    Guest::new(engine, pre.map_err(|error| misfit(definition, &error))?, definition, memory)
}

fn misfit(definition: &Definition, error: &wasmtime::Error) -> LoadError {
    let text = format!("{error:#}");
    let of = |package: &str| text.contains(&format!("{package}/"));
    let contract = CONTRACTS.iter().find(|(_, interface)| !interface.is_own() && interface.package().is_some_and(of));
    LoadError::link(&definition.source, error, contract.map(|(_, interface)| interface.wit))
}

/// Adds WASI 0.2 with outgoing HTTP and, if any server is granted, outgoing TCP, `context`, `producer`, `jobs`, `batch`, and the
/// packages of the other contracts.
fn add(linker: &mut Linker<Sandbox<ComponentWasi>>, grants: &Grants) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    denied::add(linker, !grants.dirs.is_empty())?;
    if !grants.tcp.is_empty() {
        tcp::add(linker)?;
    }
    listing::add(linker)?;
    lists::add(linker)?;
    http::add(linker)?;
    imports::add(linker, grants)?;
    jobs::add(linker)?;
    batch::add(linker)?;
    #[cfg(feature = "messaging")]
    {
        messaging::add(linker, grants)?;
        wasmcloud::add(linker, grants)?;
    }
    Ok(())
}
