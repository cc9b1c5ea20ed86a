//! Rules of this repository that the compiler does not check: no dependency cycle between the files of a crate, and no dependency
//! between crates that the map in ARCHITECTURE.md lacks.

mod uses;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Path of a module within its crate: `["http", "upload"]` for `src/http/upload.rs`. Empty for the crate root.
pub type Module = Vec<String>;

/// Modules of a crate, each in a separate file, with the modules that each uses. Leaves out arrows between a module and its
/// descendants: a parent may use its children, and children may use items of their parent.
#[derive(Debug, Default)]
pub struct Arrows(BTreeMap<Module, BTreeSet<Module>>);

impl Arrows {
    /// Reads all files in the `src` folder of a crate.
    ///
    /// # Errors
    /// The path of a file that cannot be read or parsed, and the reason.
    pub fn of(src: &Path) -> Result<Self, String> {
        let mut files = BTreeMap::new();
        collect(src, src, &mut files)?;
        let modules: BTreeSet<Module> = files.keys().cloned().collect();
        let arrows = files.into_iter().map(|(module, file)| {
            let targets = uses::of(&module, &file).into_iter().map(|path| nearest(&modules, path));
            let targets = targets.filter(|target| !module.starts_with(target) && !target.starts_with(&module));
            (module.clone(), targets.collect())
        });
        Ok(Self(arrows.collect()))
    }

    /// Returns every pair of modules that use each other, directly or indirectly.
    pub fn circles(&self) -> Vec<String> {
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.0.keys().map(|from| (from, self.reached(from))).collect();
        let reaches = |from: &Module, to: &Module| reached.get(from).is_some_and(|all| all.contains(to));
        let arrows = self.0.iter().flat_map(|(from, targets)| targets.iter().map(move |to| (from, to)));
        arrows
            .filter(|(from, to)| reaches(to, from))
            .map(|(from, to)| format!("{} → {}", shown(from), shown(to)))
            .collect()
    }

    fn reached<'a>(&'a self, from: &Module) -> BTreeSet<&'a Module> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&Module> = self.0.get(from).into_iter().flatten().collect();
        while let Some(module) = next.pop() {
            if reached.insert(module) {
                next.extend(self.0.get(module).into_iter().flatten());
            }
        }
        reached
    }
}

fn collect(src: &Path, folder: &Path, into: &mut BTreeMap<Module, syn::File>) -> Result<(), String> {
    let failed = |path: &Path, error: String| format!("{}: {error}", path.display());
    for entry in fs::read_dir(folder).map_err(|error| failed(folder, error.to_string()))? {
        let path = entry.map_err(|error| failed(folder, error.to_string()))?.path();
        if path.is_dir() {
            collect(src, &path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).map_err(|error| failed(&path, error.to_string()))?;
            let file = syn::parse_file(&text).map_err(|error| failed(&path, error.to_string()))?;
            into.insert(module_of(src, &path), file);
        }
    }
    Ok(())
}

fn module_of(src: &Path, file: &Path) -> Module {
    let inside = file.strip_prefix(src).unwrap_or(file).with_extension("");
    let mut module: Module = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        module.pop();
    }
    module
}

/// Returns the module that contains a path: `http::upload::Body` is in `http/upload.rs`.
fn nearest(modules: &BTreeSet<Module>, mut path: Module) -> Module {
    while !modules.contains(&path) && path.pop().is_some() {}
    path
}

fn shown(module: &Module) -> String {
    module.join("::")
}

/// Returns the folders with a `src` folder: the root package and every crate.
///
/// # Errors
/// A folder cannot be read.
pub fn packages(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut packages = vec![root.to_owned()];
    for entry in fs::read_dir(root.join("crates"))? {
        packages.push(entry?.path());
    }
    packages.sort();
    Ok(packages)
}

#[cfg(test)]
mod tests;
