//! Modules of the same crate that a file uses.

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, Path, UseTree};

use crate::Module;

/// Returns every path within the crate that a file names outside of its tests, relative to the crate root. Paths inside macro
/// calls are not detected.
pub fn of(module: &Module, file: &syn::File) -> Vec<Module> {
    let mut uses = Uses { module: module.clone(), found: Vec::new() };
    uses.visit_file(file);
    uses.found
}

struct Uses {
    module: Module,
    found: Vec<Module>,
}

impl Uses {
    /// Records a path that begins with `crate`, `self` or `super`. Other paths lead to a child module or out of the crate.
    fn name(&mut self, path: &[String]) {
        let mut place = self.module.clone();
        let mut rest = path.iter().peekable();
        match path.first().map(String::as_str) {
            Some("crate") => place.clear(),
            Some("self" | "super") => {}
            _ => return,
        }
        while let Some(first) = rest.next_if(|part| ["crate", "self", "super"].contains(&part.as_str())) {
            if first == "super" {
                place.pop();
            }
        }
        place.extend(rest.cloned());
        self.found.push(place);
    }

    fn tree(&mut self, tree: &UseTree, prefix: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.tree(&path.tree, prefix);
                prefix.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, prefix)),
            UseTree::Name(syn::UseName { ident }) | UseTree::Rename(syn::UseRename { ident, .. }) => {
                prefix.push(ident.to_string());
                self.name(prefix);
                prefix.pop();
            }
            UseTree::Glob(_) => self.name(prefix),
        }
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item(&mut self, item: &'ast Item) {
        if attributes(item).iter().any(is_for_tests) {
            return;
        }
        if let Item::Mod(module) = item
            && module.content.is_some()
        {
            self.module.push(module.ident.to_string());
            visit::visit_item(self, item);
            self.module.pop();
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.name(&names);
        visit::visit_path(self, path);
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns true for `#[cfg(test)]`, alone or combined with other conditions.
fn is_for_tests(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let words = list.tokens.to_string();
    list.path.is_ident("cfg")
        && !words.contains("not")
        && words.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
}
