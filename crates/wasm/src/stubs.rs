//! Stubs for a component's imports that the host does not implement. A stub traps when it is called.
//!
//! The runtimes of some languages import far more functions than their programs use. With stubs, the host can load such
//! a guest. Only a guest that calls a stub fails, with an error that names the import.

use wasmtime::component::types::{ComponentInstance, ComponentItem};
use wasmtime::component::{Component, Linker, LinkerInstance, ResourceType};

use super::VERSION;

/// Prefixes of the names of interfaces that the host implements.
const OFFERED: &[&str] = &[
    "wasi:cli/",
    "wasi:clocks/",
    "wasi:filesystem/",
    "wasi:http/types@",
    "wasi:http/outgoing-handler@",
    "wasi:io/",
    "wasi:random/",
    "wasi:sockets/",
    "hostler:consumer/batch@",
    "hostler:consumer/context@",
    "hostler:consumer/jobs@",
    "hostler:consumer/producer@",
    "hostler:consumer/types@",
    #[cfg(feature = "messaging")]
    "wasi:messaging/producer@0.2.0-draft",
    #[cfg(feature = "messaging")]
    "wasi:messaging/request-reply@0.2.0-draft",
    #[cfg(feature = "messaging")]
    "wasi:messaging/types@0.2.0-draft",
    #[cfg(feature = "messaging")]
    "wasmcloud:messaging/consumer@0.2.",
    #[cfg(feature = "messaging")]
    "wasmcloud:messaging/types@0.2.",
];

/// Adds a stub for every import that the host does not implement.
pub(super) fn add<T: 'static>(linker: &mut Linker<T>, component: &Component) -> wasmtime::Result<()> {
    let engine = linker.engine().clone();
    for (name, import) in component.component_type().imports(&engine) {
        if OFFERED.iter().any(|offered| name.starts_with(offered)) {
            continue;
        }
        match import.ty {
            ComponentItem::ComponentFunc(_) => function(&mut linker.root(), name, name)?,
            ComponentItem::ComponentInstance(instance) => stub(&engine, &mut linker.instance(name)?, name, &instance)?,
            // Types need no stub. Linking refuses imported modules and components.
            _ => {}
        }
    }
    Ok(())
}

fn stub<T: 'static>(
    engine: &wasmtime::Engine,
    linker: &mut LinkerInstance<'_, T>,
    interface: &str,
    instance: &ComponentInstance,
) -> wasmtime::Result<()> {
    for (name, export) in instance.exports(engine) {
        match export.ty {
            ComponentItem::ComponentFunc(_) => function(linker, name, &format!("{interface}#{name}"))?,
            ComponentItem::Resource(_) => linker.resource(name, ResourceType::host::<Stub>(), |_, _| Ok(()))?,
            _ => {}
        }
    }
    Ok(())
}

/// The host's type for resources in stubbed interfaces. No resource of this type is ever created.
struct Stub;

fn function<T: 'static>(linker: &mut LinkerInstance<'_, T>, name: &str, full_name: &str) -> wasmtime::Result<()> {
    let reason = format!("this host (hostler:consumer@{VERSION}, WASI 0.2) does not offer `{full_name}`");
    linker.func_new(name, move |_, _, _, _| Err(wasmtime::Error::msg(reason.clone())))
}
