//! Follows a path from the module that mentions it to the file that defines its target.

use crate::crates::{Binding, Crate, ModuleId};

/// The target of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// An item in this file.
    Item(usize),
    /// A module itself: its name, and none of its contents.
    Module(ModuleId),
}

/// Largest depth of a search: longer than any chain of re-exports. It ends circles of globs.
const DEPTH: usize = 16;

/// Returns the target of `path`, mentioned in module `at`; `None` if it leads out of the crate or
/// to no item.
pub fn resolve(all: &Crate, at: ModuleId, path: &[String]) -> Option<Target> {
    follow(all, at, path, DEPTH)
}

fn follow(all: &Crate, at: ModuleId, path: &[String], depth: usize) -> Option<Target> {
    let (first, rest) = path.split_first()?;
    let depth = depth.checked_sub(1)?;
    match first.as_str() {
        "crate" => inside(all, 0, rest, depth),
        "self" => inside(all, at, rest, depth),
        "super" => inside(all, all.modules[at].parent, rest, depth),
        "Self" => None,
        _ => member(all, at, first, rest, depth),
    }
}

/// Resolves `rest` from within `module`.
fn inside(all: &Crate, module: ModuleId, rest: &[String], depth: usize) -> Option<Target> {
    match rest.split_first() {
        None => Some(Target::Module(module)),
        Some((first, _)) if first == "super" => follow(all, module, rest, depth),
        Some((first, rest)) => member(all, module, first, rest, depth),
    }
}

fn member(all: &Crate, module: ModuleId, name: &str, rest: &[String], depth: usize) -> Option<Target> {
    let scope = &all.modules[module];
    match scope.names.get(name) {
        Some(Binding::Item) => return Some(Target::Item(scope.file)),
        Some(Binding::Module(child)) => return inside(all, *child, rest, depth),
        Some(Binding::Use { path }) => {
            // `use name::…` of an outside crate of that name has no target here.
            if path.first().is_some_and(|first| first == name) && path.len() == 1 {
                return None;
            }
            let full: Vec<String> = path.iter().chain(rest).cloned().collect();
            return follow(all, module, &full, depth.checked_sub(1)?);
        }
        None => {}
    }
    let depth = depth.checked_sub(1)?;
    scope.globs.iter().find_map(|glob| {
        let Some(Target::Module(source)) = follow(all, module, glob, depth) else { return None };
        (source != module).then(|| member(all, source, name, rest, depth)).flatten()
    })
}
