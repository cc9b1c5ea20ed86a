//! Finds the functions that a component exports for a contract, and checks their types.

use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, ComponentNamedList, Lift, Lower};

use super::WIT;
use super::guest::{Export, Guest};
use super::load_error::LoadError;

/// An interface that a component may export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: &'static str,
    /// The version that this host supports.
    pub(super) version: &'static str,
    /// Location of the interface's WIT, for error messages.
    pub(super) wit: &'static str,
}

impl Interface {
    /// Returns the full name under which the component exports this interface. `None`: the component does not export it
    /// in a supported version.
    ///
    /// An exported version is supported if its major and minor version are equal to those of the interface, because
    /// this is how semver defines compatibility for 0.x. For a draft, the whole version must be equal. An export
    /// without a version is always supported.
    pub(super) fn of(&self, component: &Component) -> Option<String> {
        export_names(component).into_iter().find(|export| match export.split_once('@') {
            Some((name, version)) => name == self.name && self.speaks(version),
            None => export == self.name,
        })
    }

    fn speaks(&self, version: &str) -> bool {
        let is_draft = self.version.contains('-');
        let minor = |version: &str| version.rsplit_once('.').map(|(minor, _)| minor.to_owned());
        version == self.version || (!is_draft && minor(version) == minor(self.version))
    }

    /// Returns `true` if the interface belongs to hostler's own contract.
    pub(super) fn is_own(&self) -> bool {
        self.wit == WIT
    }

    /// Returns the name of the interface's package, without the version.
    pub(super) fn package(&self) -> Option<&'static str> {
        self.name.split('/').next()
    }
}

/// Returns the names of a component's exports.
pub(super) fn export_names(component: &Component) -> Vec<String> {
    component.component_type().exports(component.engine()).map(|(name, _)| name.to_owned()).collect()
}

/// A function of a contract.
pub(super) struct Function {
    pub(super) interface: Interface,
    pub(super) name: &'static str,
    /// Set if the interface must not have any other functions. Several drafts of an interface may have the same name
    /// and version. This check and the types of the functions tell the drafts apart.
    pub(super) alone: bool,
}

impl Function {
    /// Finds the function and checks its type. Fails if the component does not export the function, or exports it with
    /// another type. Without this check, such a component would load, but every message would fail.
    pub(super) fn required<P, R>(&self, guest: &Guest) -> Result<Export, LoadError>
    where
        P: ComponentNamedList + Lower,
        R: ComponentNamedList + Lift,
    {
        let (pre, Interface { name, wit, .. }) = (guest.pre(), self.interface);
        let refused = |what: String| LoadError::new(guest.source(), what, format!("build it against {wit}"));
        let missing = || refused(format!("`{name}` lacks the function `{}`", self.name));
        let component = pre.component();
        let full = self.interface.of(component).ok_or_else(missing)?;
        let Some((ComponentItem::ComponentInstance(instance), index)) = component.get_export(None, &*full) else {
            return Err(missing());
        };
        let mut functions = instance.exports(pre.engine());
        let mut other = || functions.find(|(name, item)| *name != self.name && is_function(&item.ty));
        if let Some((other, _)) = self.alone.then(&mut other).flatten() {
            return Err(refused(format!("`{full}` is of another draft: it has the function `{other}`")));
        }
        match component.get_export(Some(&index), self.name) {
            Some((ComponentItem::ComponentFunc(function), export)) => {
                let misfit =
                    |error| format!("`{full}` does not fit: its `{}` is of another type: {error:#}", self.name);
                function.typecheck::<P, R>(&pre.instance_type()).map_err(|error| refused(misfit(error)))?;
                Ok(export)
            }
            _ => Err(missing()),
        }
    }

    /// Finds the function like [`Self::required`]. Returns `None` if the component does not export the interface.
    pub(super) fn optional<P, R>(&self, guest: &Guest) -> Result<Option<Export>, LoadError>
    where
        P: ComponentNamedList + Lower,
        R: ComponentNamedList + Lift,
    {
        self.interface.of(guest.pre().component()).map(|_| self.required::<P, R>(guest)).transpose()
    }
}

fn is_function(item: &ComponentItem) -> bool {
    matches!(item, ComponentItem::ComponentFunc(_))
}
