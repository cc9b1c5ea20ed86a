//! Functions that a component exports, found and checked: the type of each as text, in the words of WIT, to compare it with
//! what a contract says, and to show the difference.

use wasmtime::component::Component;
use wasmtime::component::types::{ComponentFunc, ComponentInstance, ComponentItem, Type};

use super::artifact::{LoadError, find, interface};
use super::component::Export;
use super::engine::Engine;
use super::source::Source;

/// A function of a contract.
pub(super) struct Function {
    /// The interface that exports it, without a version.
    pub(super) interface: &'static str,
    /// Its name.
    pub(super) name: &'static str,
    /// Its type.
    pub(super) ty: &'static str,
    /// Where its WIT is to be had, for people.
    pub(super) wit: &'static str,
}

impl Function {
    /// Finds it; refuses a component that exports the interface without it, or with another type, as each message would
    /// otherwise fail for it.
    pub(super) fn required(
        &self,
        engine: &Engine,
        component: &Component,
        source: &Source,
    ) -> Result<Export, LoadError> {
        let missing =
            || LoadError::new(source, format!("`{}` lacks the function `{}`", self.interface, self.name), self.cure());
        let (name, instance) = exported(engine, component, self.interface).ok_or_else(missing)?;
        match instance.get_export(engine.inner(), self.name).map(|item| item.ty) {
            Some(ComponentItem::ComponentFunc(found)) => {
                let found = describe(&found);
                if found != self.ty {
                    let what = format!("`{name}` does not fit: its `{}` is {found}, not {}", self.name, self.ty);
                    return Err(LoadError::new(source, what, self.cure()));
                }
            }
            _ => return Err(missing()),
        }
        find(engine, component, self.interface, self.name).ok_or_else(missing)
    }

    /// The same, where the component need not export the interface at all.
    pub(super) fn optional(
        &self,
        engine: &Engine,
        component: &Component,
        source: &Source,
    ) -> Result<Option<Export>, LoadError> {
        match interface(engine, component, self.interface) {
            Some(_) => self.required(engine, component, source).map(Some),
            None => Ok(None),
        }
    }

    /// The same, where the interface must have no other function: its drafts share its name and version, so only its types
    /// tell them apart.
    pub(super) fn only(&self, engine: &Engine, component: &Component, source: &Source) -> Result<Export, LoadError> {
        if let Some((name, instance)) = exported(engine, component, self.interface) {
            let functions = instance.exports(engine.inner());
            let mut functions = functions.filter(|(_, item)| matches!(item.ty, ComponentItem::ComponentFunc(_)));
            if let Some((other, _)) = functions.find(|(other, _)| *other != self.name) {
                let what = format!("`{name}` is of another draft: it has the function `{other}`");
                return Err(LoadError::new(source, what, self.cure()));
            }
        }
        self.required(engine, component, source)
    }

    fn cure(&self) -> String {
        format!("build it against {}", self.wit)
    }
}

/// The full name of an interface that the component exports, and what is in it.
fn exported(engine: &Engine, component: &Component, interface_name: &str) -> Option<(String, ComponentInstance)> {
    let name = interface(engine, component, interface_name)?;
    let ty = component.component_type();
    match ty.get_export(engine.inner(), &name)?.ty {
        ComponentItem::ComponentInstance(instance) => Some((name, instance)),
        _ => None,
    }
}

/// `func(…) -> …`, with all types spelled out.
fn describe(function: &ComponentFunc) -> String {
    let params: Vec<_> = function.params().map(|(_, ty)| text(&ty)).collect();
    let results = function.results().map(|ty| format!(" -> {}", text(&ty)));
    format!("func({}){}", params.join(", "), results.collect::<String>())
}

fn text(ty: &Type) -> String {
    let of = |ty: Option<Type>| ty.map_or_else(|| "_".to_owned(), |ty| text(&ty));
    let payload = |name: &str, ty: Option<Type>| match ty {
        Some(ty) => format!("{name}({})", text(&ty)),
        None => name.to_owned(),
    };
    let joined = |parts: Vec<String>| parts.join(", ");
    match ty {
        Type::String => "string".to_owned(),
        Type::U8 => "u8".to_owned(),
        Type::U32 => "u32".to_owned(),
        Type::U64 => "u64".to_owned(),
        Type::Own(_) => "own<resource>".to_owned(),
        Type::Borrow(_) => "borrow<resource>".to_owned(),
        Type::List(list) => format!("list<{}>", text(&list.ty())),
        Type::Option(option) => format!("option<{}>", text(&option.ty())),
        Type::Tuple(tuple) => format!("tuple<{}>", joined(tuple.types().map(|ty| text(&ty)).collect())),
        Type::Result(result) => format!("result<{}, {}>", of(result.ok()), of(result.err())),
        Type::Record(record) => {
            let fields = record.fields().map(|field| format!("{}: {}", field.name, text(&field.ty)));
            format!("record {{ {} }}", joined(fields.collect()))
        }
        Type::Variant(variant) => {
            let cases = variant.cases().map(|case| payload(case.name, case.ty));
            format!("variant {{ {} }}", joined(cases.collect()))
        }
        Type::Enum(cases) => format!("enum {{ {} }}", cases.names().collect::<Vec<_>>().join(", ")),
        // No contract has any other; their names in Rust will do.
        other => format!("{other:?}").to_lowercase(),
    }
}
