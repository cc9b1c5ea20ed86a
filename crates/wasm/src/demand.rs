//! Checks the resources that a handler needs from a sandbox, because the engine does not check all of them at load
//! time. This module adds up the needs of all instances in a sandbox: initial memory, initial table elements, and
//! elements in passive segments, which the engine copies for each instance.
//!
//! A component refers to modules, components and instances by their indices in index spaces. Each section may add items
//! to the index spaces, and inner components may refer to the index spaces of outer components. This module therefore
//! processes the sections of a component in the same order as the engine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::rc::Rc;

use wasmparser::{
    BinaryReader, BinaryReaderError, ComponentAlias, ComponentExport, ComponentExternalKind, ComponentImport,
    ComponentInstance, ComponentOuterAliasKind, Element, ElementItems, ElementKind, FromReader, Instance, MemoryType,
    SectionLimited, Table,
};

use super::componentize::is_component;
use super::limits::{PASSIVE_ELEMENTS, TABLE_ELEMENTS};
use super::load_error::LoadError;
use super::source::Source;

/// Length in bytes of a WASM binary's preamble, which precedes the first section.
const PREAMBLE: usize = 8;

/// Binary logarithm of the default memory page size (64 KiB).
const PAGE: u32 = 16;

/// Section ids of a core module.
const TABLES: u8 = 4;
const MEMORIES: u8 = 5;
const ELEMENTS: u8 = 9;

/// Section ids of a component.
const CORE_MODULE: u8 = 1;
const CORE_INSTANCES: u8 = 2;
const COMPONENT: u8 = 4;
const INSTANCES: u8 = 5;
const ALIASES: u8 = 6;
const IMPORTS: u8 = 10;
const EXPORTS: u8 = 11;

type Result<T> = std::result::Result<T, BinaryReaderError>;

/// Returns the initial memory of a sandbox in bytes, which the caller must compare with `limits.memory`. Fails if a
/// sandbox would need more table elements or passive elements than it may have. `binary` must be valid WASM.
///
/// # Errors
/// [`LoadError`] names the limit that the handler exceeds.
pub(super) fn check(source: &Source, binary: &[u8]) -> std::result::Result<u64, LoadError> {
    let Demand { memory, tables, passive } = of_binary(binary).unwrap_or_default();
    let refuse = |what: String| {
        let cure = "build it with smaller tables, or of fewer parts; the file is sound, and no key raises this limit";
        Err(LoadError::new(source, what, cure))
    };
    if tables > TABLE_ELEMENTS as u64 {
        return refuse(format!("its tables start with {tables} elements together; a sandbox has {TABLE_ELEMENTS}"));
    }
    if passive > PASSIVE_ELEMENTS {
        return refuse(format!(
            "its passive element segments have {passive} elements in all of its instances; a sandbox has {PASSIVE_ELEMENTS}"
        ));
    }
    Ok(memory)
}

/// The resources that a sandbox needs at its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Demand {
    /// Total size of the memories in bytes.
    memory: u64,
    /// Total number of elements in the tables.
    tables: u64,
    /// Total number of elements in passive segments, which the engine copies for each instance.
    passive: u64,
}

impl AddAssign for Demand {
    fn add_assign(&mut self, other: Self) {
        self.memory = self.memory.saturating_add(other.memory);
        self.tables = self.tables.saturating_add(other.tables);
        self.passive = self.passive.saturating_add(other.passive);
    }
}

fn of_binary(binary: &[u8]) -> Result<Demand> {
    if !is_component(binary) {
        return of_module(binary);
    }
    let mut demand = Demand::default();
    instantiate(&Inner { binary, outer: None }, &Exports::new(), &mut demand)?;
    Ok(demand)
}

/// Returns the demand of one instance of a core module.
fn of_module(binary: &[u8]) -> Result<Demand> {
    let mut demand = Demand::default();
    for (id, content) in sections(binary)? {
        match id {
            TABLES => {
                for table in items::<Table<'_>>(content)? {
                    demand += Demand { tables: table?.ty.initial, ..Demand::default() };
                }
            }
            MEMORIES => {
                for memory in items::<MemoryType>(content)? {
                    let MemoryType { initial, page_size_log2, .. } = memory?;
                    let page = 1_u64.checked_shl(page_size_log2.unwrap_or(PAGE)).unwrap_or(u64::MAX);
                    demand += Demand { memory: initial.saturating_mul(page), ..Demand::default() };
                }
            }
            ELEMENTS => {
                for element in items::<Element<'_>>(content)? {
                    let Element { kind: ElementKind::Passive, items, .. } = element? else { continue };
                    let count = match items {
                        ElementItems::Functions(items) => items.count(),
                        ElementItems::Expressions(_, items) => items.count(),
                    };
                    demand += Demand { passive: count.into(), ..Demand::default() };
                }
            }
            _ => {}
        }
    }
    Ok(demand)
}

/// Returns the id and the content of each section of a module or component.
fn sections(binary: &[u8]) -> Result<Vec<(u8, &[u8])>> {
    let mut reader = BinaryReader::new(binary, 0);
    reader.read_bytes(PREAMBLE)?;
    let mut sections = Vec::new();
    while !reader.eof() {
        let (id, size) = (reader.read_u8()?, reader.read_var_u32()?);
        sections.push((id, reader.read_bytes(size as usize)?));
    }
    Ok(sections)
}

fn items<'a, T: FromReader<'a>>(content: &'a [u8]) -> Result<SectionLimited<'a, T>> {
    SectionLimited::new(BinaryReader::new(content, 0))
}

/// An item in one of a component's index spaces.
#[derive(Clone)]
enum Item<'a> {
    /// A module, with the demand of each of its instances.
    Module(Demand),
    Component(Rc<Inner<'a>>),
    Instance(Rc<Exports<'a>>),
    /// An item that is not in the file, because the host provides it.
    Foreign,
}

/// Items by name: the exports of an instance, or the arguments with which a component is instantiated.
type Exports<'a> = BTreeMap<&'a str, Item<'a>>;

/// A component. It may refer to items of the enclosing component, whose scope is `outer`.
struct Inner<'a> {
    binary: &'a [u8],
    outer: Option<Rc<Scope<'a>>>,
}

/// The index spaces of a component. They contain only the items from sections that have already been processed.
struct Scope<'a> {
    modules: RefCell<Vec<Item<'a>>>,
    components: RefCell<Vec<Item<'a>>>,
    instances: RefCell<Vec<Item<'a>>>,
    outer: Option<Rc<Scope<'a>>>,
}

impl<'a> Scope<'a> {
    fn items(&self, kind: ComponentExternalKind) -> Option<&RefCell<Vec<Item<'a>>>> {
        match kind {
            ComponentExternalKind::Module => Some(&self.modules),
            ComponentExternalKind::Component => Some(&self.components),
            ComponentExternalKind::Instance => Some(&self.instances),
            ComponentExternalKind::Func | ComponentExternalKind::Value | ComponentExternalKind::Type => None,
        }
    }

    fn get(&self, kind: ComponentExternalKind, index: u32) -> Item<'a> {
        let item = self.items(kind).and_then(|items| items.borrow().get(index as usize).cloned());
        item.unwrap_or(Item::Foreign)
    }

    fn push(&self, kind: ComponentExternalKind, item: Item<'a>) {
        if let Some(items) = self.items(kind) {
            items.borrow_mut().push(item);
        }
    }

    fn named(&self, exports: &[ComponentExport<'a>]) -> Exports<'a> {
        exports.iter().map(|export| (export.name.name, self.get(export.kind, export.index))).collect()
    }

    fn alias(&self, alias: &ComponentAlias<'a>) {
        match alias {
            ComponentAlias::InstanceExport { kind, instance_index, name } => {
                let item = match self.get(ComponentExternalKind::Instance, *instance_index) {
                    Item::Instance(exports) => exports.get(name).cloned(),
                    Item::Module(_) | Item::Component(_) | Item::Foreign => None,
                };
                self.push(*kind, item.unwrap_or(Item::Foreign));
            }
            ComponentAlias::Outer { kind, count, index } => {
                let kind = match kind {
                    ComponentOuterAliasKind::CoreModule => ComponentExternalKind::Module,
                    ComponentOuterAliasKind::Component => ComponentExternalKind::Component,
                    ComponentOuterAliasKind::CoreType | ComponentOuterAliasKind::Type => return,
                };
                let mut scope = Some(self);
                for _ in 0..*count {
                    scope = scope.and_then(|scope| scope.outer.as_deref());
                }
                self.push(kind, scope.map_or(Item::Foreign, |scope| scope.get(kind, *index)));
            }
            ComponentAlias::CoreInstanceExport { .. } => {}
        }
    }
}

/// Processes a component that is instantiated with `arguments`. Adds the demand of the component's core instances to
/// `demand`. Returns the exports of the instance.
fn instantiate<'a>(inner: &Inner<'a>, arguments: &Exports<'a>, demand: &mut Demand) -> Result<Exports<'a>> {
    let none = || RefCell::new(Vec::new());
    let scope = Scope { modules: none(), components: none(), instances: none(), outer: inner.outer.clone() };
    let (scope, mut exports) = (Rc::new(scope), Exports::new());
    for (id, content) in sections(inner.binary)? {
        match id {
            CORE_MODULE => scope.push(ComponentExternalKind::Module, Item::Module(of_module(content)?)),
            CORE_INSTANCES => {
                for instance in items::<Instance<'_>>(content)? {
                    let Instance::Instantiate { module_index, .. } = instance? else { continue };
                    if let Item::Module(needed) = scope.get(ComponentExternalKind::Module, module_index) {
                        *demand += needed;
                    }
                }
            }
            COMPONENT => {
                let component = Inner { binary: content, outer: Some(Rc::clone(&scope)) };
                scope.push(ComponentExternalKind::Component, Item::Component(Rc::new(component)));
            }
            INSTANCES => {
                for instance in items::<ComponentInstance<'_>>(content)? {
                    let item = Item::Instance(Rc::new(instance_of(&scope, &instance?, demand)?));
                    scope.push(ComponentExternalKind::Instance, item);
                }
            }
            ALIASES => {
                for alias in items::<ComponentAlias<'_>>(content)? {
                    scope.alias(&alias?);
                }
            }
            IMPORTS => {
                for import in items::<ComponentImport<'_>>(content)? {
                    let import = import?;
                    let item = arguments.get(import.name.name).cloned().unwrap_or(Item::Foreign);
                    scope.push(import.ty.kind(), item);
                }
            }
            EXPORTS => {
                for export in items::<ComponentExport<'_>>(content)? {
                    let export = export?;
                    let item = scope.get(export.kind, export.index);
                    exports.insert(export.name.name, item.clone());
                    // An export also adds a new item to the index space.
                    scope.push(export.kind, item);
                }
            }
            _ => {}
        }
    }
    Ok(exports)
}

fn instance_of<'a>(scope: &Scope<'a>, instance: &ComponentInstance<'a>, demand: &mut Demand) -> Result<Exports<'a>> {
    match instance {
        ComponentInstance::Instantiate { component_index, args } => {
            let Item::Component(component) = scope.get(ComponentExternalKind::Component, *component_index) else {
                return Ok(Exports::new());
            };
            let arguments = args.iter().map(|argument| (argument.name, scope.get(argument.kind, argument.index)));
            instantiate(&component, &arguments.collect(), demand)
        }
        ComponentInstance::FromExports(exports) => Ok(scope.named(exports)),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::build::build;
    use crate::engine::Engine;
    use crate::source::Fetched;
    use crate::{CpuBaseline, Recipe, compile};

    fn demand(text: &str) -> (u64, u64) {
        let Demand { tables, passive, .. } = of_binary(&wat::parse_str(text).unwrap()).unwrap();
        (tables, passive)
    }

    /// A module with tables of 10 and 5 elements, and 3 elements in passive segments. The engine does not copy the
    /// active segment.
    const MODULE: &str =
        "(table 10 funcref) (table 5 funcref) (func $f) (elem func $f $f) (elem funcref (ref.null func))
        (elem (i32.const 0) func $f $f $f) (elem declare func $f)";

    #[test]
    fn a_module_needs_what_it_starts_with() {
        assert_eq!(demand(&format!("(module {MODULE})")), (15, 3));
        assert_eq!(demand("(module (import \"x\" \"t\" (table 10 funcref)))"), (0, 0), "another has it");
    }

    #[test]
    fn a_sandbox_starts_with_the_memories_of_all_instances() {
        let memory = |text: &str| of_binary(&wat::parse_str(text).unwrap()).unwrap().memory;
        assert_eq!(memory("(module (memory 3) (memory 2))"), 5 << 16);
        assert_eq!(memory("(module (import \"x\" \"m\" (memory 3)))"), 0, "another has it");
        let twice = "(core instance (instantiate $m)) (core instance (instantiate $m))";
        assert_eq!(memory(&format!("(component (core module $m (memory 3)) {twice})")), 6 << 16);
        assert_eq!(memory(&format!("(component (component (core module $m (memory 3)) {twice}))")), 0);
    }

    #[test]
    fn a_component_needs_what_all_of_its_instances_need() {
        let none = format!("(component (core module {MODULE}))");
        assert_eq!(demand(&none), (0, 0));
        let twice = "(core instance (instantiate $m)) (core instance (instantiate $m))";
        assert_eq!(demand(&format!("(component (core module $m {MODULE}) {twice})")), (30, 6));
        // A module in an outer component, instantiated by an inner component.
        let inner = format!(
            "(component (core module $m {MODULE})
               (component $c (alias outer 1 $m (core module $mine)) (core instance (instantiate $mine)))
               (instance (instantiate $c)) (instance (instantiate $c)) (core instance (instantiate $m)))"
        );
        assert_eq!(demand(&inner), (45, 9));
        // A module that is passed to a component. The component exports the module, and the export is instantiated.
        let passed = format!(
            "(component (core module $m {MODULE})
               (component $c (import \"m\" (core module $mine)) (export \"n\" (core module $mine)))
               (instance $i (instantiate $c (with \"m\" (core module $m))))
               (alias export $i \"n\" (core module $n)) (core instance (instantiate $n)))"
        );
        assert_eq!(demand(&passed), (15, 3));
        // A component that is passed to another component.
        let made = format!(
            "(component (component $c (core module $m {MODULE}) (core instance (instantiate $m)))
               (component $d (import \"c\" (component $c)) (instance (instantiate $c)) (instance (instantiate $c)))
               (instance (instantiate $d (with \"c\" (component $c)))))"
        );
        assert_eq!(demand(&made), (30, 6));
    }

    #[test]
    fn a_handler_that_needs_too_much_is_refused_when_it_is_loaded_and_when_it_is_compiled() {
        let tables = |of: &[usize]| {
            let modules = of.iter().map(|elements| {
                format!(
                    "(core module $m{elements} (table {elements} funcref)) (core instance (instantiate $m{elements}))"
                )
            });
            format!("(component {})", modules.collect::<String>())
        };
        let passive = |times: u64| {
            let elements = "$f ".repeat(usize::try_from(PASSIVE_ELEMENTS / 8).unwrap());
            let instances = "(core instance (instantiate $m))".repeat(usize::try_from(times).unwrap());
            format!("(component (core module $m (func $f) (elem func {elements})) {instances})")
        };
        let cases = [
            (tables(&[TABLE_ELEMENTS - 1, 1]), None),
            (tables(&[TABLE_ELEMENTS - 1, 2]), Some("its tables start with 100001 elements together")),
            (passive(8), None),
            (passive(9), Some("its passive element segments have 36864 elements in all of its instances")),
        ];
        for (text, refusal) in cases {
            let bytes = Bytes::from(text);
            let source = Source::Fetched(Fetched { reference: "it".into(), bytes: bytes.clone(), pinned: true });
            let recipe = Recipe { target: None, baseline: CpuBaseline::Generic, with_source: false };
            let loaded = build(&Engine::on_demand().unwrap(), &source, &bytes).err().map(|error| error.to_string());
            let compiled = compile(&source, recipe).err().map(|error| error.to_string());
            assert_eq!(loaded, compiled);
            let told = loaded.as_deref().unwrap_or_default();
            assert!(told.contains(refusal.unwrap_or_default()) && loaded.is_some() == refusal.is_some(), "{loaded:?}");
        }
    }
}
