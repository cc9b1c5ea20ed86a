//! Files that a preview-1 module asks for and is denied, told in the log.
//!
//! WASI's functions take the guest's memory from the module that calls them, so nothing of the host's can stand before
//! them and call on. A module can: the go-between, made here, has its guest's memory, and calls each of them. It is
//! instantiated beside a guest when the guest first asks for a path.

use std::fmt::Write as _;
use std::sync::{Arc, Once};

use wasmtime::{Caller, Extern, FuncType, Instance, Linker, Memory, Module, Val, ValType};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::p1::WasiP1Ctx;

use crate::sandbox::Sandbox;
use crate::{files, listing};
use hostler_handler::Limit;

/// The name of WASI preview 1 in the imports of a module.
const WASI: &str = "wasi_snapshot_preview1";

/// The `errno`s of a denial: `perm`, `rofs` and `notcapable` of WASI preview 1.
const DENIED: [i32; 3] = [63, 69, 76];

/// The `errno` for a descriptor that is no folder: `badf`.
const BAD_DESCRIPTOR: i32 = 8;

/// The `errno` for too many open files (`mfile`), and the one for what WASI has no name for (`io`).
const TOO_MANY_FILES: i32 = 33;
const IO: i32 = 29;

/// The function that opens files.
const OPEN: &str = "path_open";

/// The open flag `creat`, and the rights that writing asks for (`fd_write`, `fd_allocate`), of WASI preview 1.
const CREATE: i32 = 1;
const WRITES: i64 = 1 << 6 | 1 << 8;

/// WASI as preview-1 modules see it.
pub(crate) struct Preview1 {
    pub(crate) ctx: WasiP1Ctx,
    /// The go-between, once there is one.
    between: Option<Instance>,
}

impl Preview1 {
    pub(crate) fn new(ctx: WasiP1Ctx) -> Self {
        Self { ctx, between: None }
    }
}

/// A function of WASI that takes a path.
#[derive(Clone, Copy)]
pub(crate) struct Asks {
    name: &'static str,
    /// Its parameters: `i` for 32 bits, `l` for 64. All give an `errno`.
    parameters: &'static str,
    /// Which of them is the address of the path that a denial names; its length is the next.
    path: usize,
    /// Whether it changes what is there, whatever its flags.
    writes: bool,
}

const fn asks(name: &'static str, parameters: &'static str, path: usize, writes: bool) -> Asks {
    Asks { name, parameters, path, writes }
}

/// Their signatures are those of the specification (`wasi_snapshot_preview1.witx`).
const ASKS: [Asks; 10] = [
    asks("path_open", "iiiiillii", 2, false),
    asks("path_filestat_get", "iiiii", 2, false),
    asks("path_readlink", "iiiiii", 1, false),
    asks("path_create_directory", "iii", 1, true),
    asks("path_remove_directory", "iii", 1, true),
    asks("path_unlink_file", "iii", 1, true),
    asks("path_rename", "iiiiii", 1, true),
    asks("path_symlink", "iiiii", 3, true),
    asks("path_link", "iiiiiii", 2, true),
    asks("path_filestat_set_times", "iiiilli", 2, true),
];

/// What tells a folder's serial number, by which `listing` finds it. It takes no path; the go-between has it for that alone.
pub(crate) const FILESTAT: Asks = asks("fd_filestat_get", "ii", 0, false);

/// The function that lists folders.
const LIST: &str = "fd_readdir";

/// What a denial may show of a path, in bytes.
const MOST_SHOWN: usize = 4 * super::SHOWN;

type Host<'a> = Caller<'a, Sandbox<Preview1>>;

/// Puts itself before functions of WASI, which are in the linker already: those that take a path and that this module
/// imports; or, where no folder is granted, the one that tells which there are.
pub(crate) fn add(linker: &mut Linker<Sandbox<Preview1>>, module: &Module, has_folders: bool) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    if has_folders {
        paths(linker, module)?
    } else {
        folders(linker)?
    }
    linker.allow_shadowing(false);
    Ok(())
}

fn folders(linker: &mut Linker<Sandbox<Preview1>>) -> wasmtime::Result<()> {
    let told = Once::new();
    linker.func_wrap(WASI, "fd_prestat_get", move |host: Host<'_>, _: i32, _: i32| {
        super::no_folders(&told, &host.data().scope.denials);
        BAD_DESCRIPTOR
    })?;
    Ok(())
}

fn paths(linker: &mut Linker<Sandbox<Preview1>>, module: &Module) -> wasmtime::Result<()> {
    let imports = |name: &str| module.imports().any(|import| import.module() == WASI && import.name() == name);
    let asked: Vec<Asks> = ASKS.into_iter().filter(|asks| imports(asks.name)).collect();
    let lists = imports(LIST);
    let used: Vec<Asks> = asked.iter().copied().chain(lists.then_some(FILESTAT)).collect();
    if used.is_empty() {
        return Ok(());
    }
    let between = Between { module: Module::new(linker.engine(), text(&used))?, wasi: linker.clone(), used };
    // Shared, as a linker is a table that would be copied for each call.
    let between = Arc::new(between);
    if lists {
        let between = Arc::clone(&between);
        linker.func_wrap_async(WASI, LIST, move |mut host: Host<'_>, asked: listing::Asked| {
            let between = Arc::clone(&between);
            Box::new(async move { listing::read(&between, &mut host, asked).await })
        })?;
    }
    for asks in asked {
        let kinds = asks.parameters.chars().map(|kind| if kind == 'l' { ValType::I64 } else { ValType::I32 });
        let signature = FuncType::new(linker.engine(), kinds, [ValType::I32]);
        let between = Arc::clone(&between);
        linker.func_new_async(WASI, asks.name, signature, move |mut host, parameters, results| {
            let between = Arc::clone(&between);
            Box::new(async move {
                if asks.name == OPEN && !may_open(&mut host) {
                    results.iter_mut().for_each(|errno| *errno = Val::I32(TOO_MANY_FILES));
                    return Ok(());
                }
                between.call(&mut host, asks, parameters, results).await?;
                if asks.name == OPEN && results.first().and_then(Val::i32) == Some(IO) {
                    Limit::of_descriptors().into_iter().for_each(|limit| host.data().scope.reach(limit));
                }
                if results.first().and_then(Val::i32).is_some_and(|errno| DENIED.contains(&errno)) {
                    tell(&mut host, asks, parameters);
                }
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// Whether the guest may open another file; if not, the log tells why.
fn may_open(host: &mut Host<'_>) -> bool {
    let most = host.data().limits.files;
    let may_open = files::may_open(host.data_mut().wasi.ctx.ctx().table, most);
    if !may_open {
        files::tell(&host.data().scope.denials, most);
    }
    may_open
}

/// What makes go-betweens.
pub(crate) struct Between {
    module: Module,
    /// WASI itself.
    wasi: Linker<Sandbox<Preview1>>,
    used: Vec<Asks>,
}

impl Between {
    pub(crate) async fn call(
        &self,
        host: &mut Host<'_>,
        asks: Asks,
        parameters: &[Val],
        results: &mut [Val],
    ) -> wasmtime::Result<()> {
        let instance = match host.data().wasi.between {
            Some(instance) => instance,
            None => self.instantiate(host).await?,
        };
        let function = instance.get_func(&mut *host, asks.name);
        let function = function.ok_or_else(|| wasmtime::Error::msg(format!("the go-between lacks {}", asks.name)))?;
        function.call_async(&mut *host, parameters, results).await
    }

    async fn instantiate(&self, host: &mut Host<'_>) -> wasmtime::Result<Instance> {
        let mut imports = vec![Extern::from(memory(host)?)];
        for asks in &self.used {
            imports.extend(self.wasi.get(&mut *host, WASI, asks.name));
        }
        let instance = Instance::new_async(&mut *host, &self.module, &imports).await?;
        host.data_mut().wasi.between = Some(instance);
        Ok(instance)
    }
}

/// The go-between for these functions, in the text format of WebAssembly.
fn text(used: &[Asks]) -> String {
    let mut module = String::from("(module (import \"guest\" \"memory\" (memory 0)) (export \"memory\" (memory 0))\n");
    let types = |asks: &Asks| asks.parameters.replace('i', " i32").replace('l', " i64");
    for asks in used {
        let (name, types) = (asks.name, types(asks));
        let _ = writeln!(module, "(import \"{WASI}\" \"{name}\" (func ${name} (param{types}) (result i32)))");
    }
    for asks in used {
        let (name, types) = (asks.name, types(asks));
        let passed: String = (0..asks.parameters.len()).map(|at| format!(" (local.get {at})")).collect();
        let _ = writeln!(module, "(func (export \"{name}\") (param{types}) (result i32) (call ${name}{passed}))");
    }
    module + ")"
}

/// The guest's memory.
pub(crate) fn memory(host: &mut Host<'_>) -> wasmtime::Result<Memory> {
    let memory = host.get_export("memory").and_then(Extern::into_memory);
    memory.ok_or_else(|| wasmtime::Error::msg("the module does not export its memory as `memory`"))
}

/// Tells of a denial; of a path that is not in the guest's memory there is nothing to tell.
fn tell(host: &mut Host<'_>, asks: Asks, parameters: &[Val]) {
    let number = |at: usize| parameters.get(at).and_then(Val::i32);
    let place = |at: usize| number(at).and_then(|value| usize::try_from(value.cast_unsigned()).ok());
    let (Some(start), Some(length), Ok(memory)) = (place(asks.path), place(asks.path + 1), memory(host)) else {
        return;
    };
    let opens_to_write = asks.name == "path_open"
        && (number(4).is_some_and(|flags| flags & CREATE != 0)
            || parameters.get(5).and_then(Val::i64).is_some_and(|rights| rights & WRITES != 0));
    let end = start.saturating_add(length.min(MOST_SHOWN));
    if let Some(path) = memory.data(&*host).get(start..end) {
        let path = String::from_utf8_lossy(path);
        super::file(&host.data().scope.denials, &path, asks.writes || opens_to_write);
    }
}
