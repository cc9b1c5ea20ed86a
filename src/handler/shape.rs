//! The type of a component's function as text, in the words of WIT: to compare it with what a contract says, and to show
//! the difference.

use wasmtime::component::Component;
use wasmtime::component::types::{ComponentFunc, ComponentItem, Type};

use super::artifact::{LoadError, interface};
use super::engine::Engine;
use super::source::Source;

/// Refuses a component whose exported `interface` has anything but one function of this name and type.
///
/// Drafts of an interface share its name and version, so only its types tell them apart.
pub(super) fn check(
    engine: &Engine,
    component: &Component,
    source: &Source,
    interface_name: &str,
    (function, expected): (&str, &str),
    wit: &str,
) -> Result<(), LoadError> {
    let Some(name) = interface(engine, component, interface_name) else {
        return Err(LoadError::missing_function(source, interface_name, function));
    };
    let ty = component.component_type();
    let Some(ComponentItem::ComponentInstance(instance)) = ty.get_export(engine.inner(), &name).map(|item| item.ty)
    else {
        return Err(LoadError::missing_function(source, interface_name, function));
    };
    for (other, item) in instance.exports(engine.inner()) {
        let ComponentItem::ComponentFunc(found) = item.ty else { continue };
        let found = describe(&found);
        let what = match other == function {
            true if found == expected => continue,
            true => format!("`{name}` is of another draft: its `{function}` is {found}, not {expected}"),
            false => format!("`{name}` is of another draft: it has the function `{other}`"),
        };
        return Err(LoadError::new(source, what, format!("build it against {wit}")));
    }
    Ok(())
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
        // No draft has any other; their names in Rust will do.
        other => format!("{other:?}").to_lowercase(),
    }
}
