//! Packages and what they depend on, as `cargo metadata` tells them for one target.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::Command;

use serde_json::Value;
use toml_edit::DocumentMut;

use crate::Result;

/// One package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Cargo's unique name for it.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its licence expression.
    pub license: Option<String>,
    /// Where it comes from; `None` for one of this repository.
    pub source: Option<String>,
    /// Its own description.
    pub description: Option<String>,
    /// Whether it runs in the compiler.
    pub is_macro: bool,
}

/// How a package is used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Use {
    /// It is part of what is shipped.
    Shipped,
    /// It only makes what is shipped: a build script or a procedural macro uses it.
    Building,
}

/// The packages for one target.
#[derive(Debug)]
pub struct PackageGraph {
    /// All packages, tests' included.
    pub packages: Vec<Package>,
    /// Dependencies by package: those in its code, and those of its build script.
    edges: HashMap<String, Vec<(String, Use)>>,
}

impl PackageGraph {
    /// Asks Cargo. It downloads only packages that no build needed so far, of tests that are not
    /// built for instance; where all are here, no network is used.
    ///
    /// # Errors
    /// Cargo's own message; a package that is not here and cannot be downloaded is one.
    pub fn read(target: &str) -> Result<PackageGraph> {
        let arguments = ["metadata", "--format-version", "1", "--locked", "--filter-platform"];
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let output = Command::new(cargo).args(arguments).arg(target).output();
        let output = output.map_err(|error| format!("cannot run cargo: {error}"))?;
        if !output.status.success() {
            return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let metadata = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        PackageGraph::of(&metadata).ok_or_else(|| "cargo metadata has another form".into())
    }

    /// Reads the output of `cargo metadata`.
    pub fn of(metadata: &Value) -> Option<PackageGraph> {
        let nodes = metadata["resolve"]["nodes"].as_array()?;
        let edges = nodes.iter().map(|node| Some((text(&node["id"])?, edges(node)?)));
        let edges: HashMap<_, _> = edges.collect::<Option<_>>()?;
        let packages = metadata["packages"].as_array()?.iter();
        // Packages for other targets have no node.
        let packages =
            packages.filter(|package| package["id"].as_str().is_some_and(|id| edges.contains_key(id)));
        Some(PackageGraph { packages: packages.map(package).collect::<Option<_>>()?, edges })
    }

    /// Returns the packages that these packages use, except those that only their tests use.
    pub fn used_by(&self, roots: &[&str]) -> BTreeMap<String, Use> {
        let macros: BTreeSet<&str> =
            self.packages.iter().filter(|package| package.is_macro).map(|package| &*package.id).collect();
        let mut found: BTreeMap<String, Use> = BTreeMap::new();
        let of_roots = self.packages.iter().filter(|package| roots.contains(&&*package.name));
        let mut open: Vec<(String, Use)> =
            of_roots.map(|package| (package.id.clone(), Use::Shipped)).collect();
        while let Some((id, used)) = open.pop() {
            let used = if macros.contains(&*id) { Use::Building } else { used };
            if found.get(&id).is_some_and(|known| *known <= used) {
                continue;
            }
            for (to, kind) in self.edges.get(&id).into_iter().flatten() {
                open.push((to.clone(), used.max(*kind)));
            }
            found.insert(id, used);
        }
        found
    }

    /// Returns the packages that the code of `id` uses, or its build script.
    pub fn dependencies(&self, id: &str) -> Vec<&str> {
        self.edges.get(id).into_iter().flatten().map(|(to, _)| &**to).collect()
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn package(value: &Value) -> Option<Package> {
    let is_macro = |target: &Value| {
        target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "proc-macro"))
    };
    Some(Package {
        id: text(&value["id"])?,
        name: text(&value["name"])?,
        version: text(&value["version"])?,
        license: text(&value["license"]),
        source: text(&value["source"]),
        description: text(&value["description"]),
        is_macro: value["targets"].as_array()?.iter().any(is_macro),
    })
}

/// Returns the dependencies of a node, without those of tests.
fn edges(node: &Value) -> Option<Vec<(String, Use)>> {
    let mut edges = Vec::new();
    for dependency in node["deps"].as_array()? {
        let kinds = dependency["dep_kinds"].as_array()?.iter().map(|kind| kind["kind"].as_str());
        let used = kinds.filter_map(|kind| match kind {
            None => Some(Use::Shipped),
            Some("build") => Some(Use::Building),
            Some(_) => None,
        });
        if let Some(used) = used.min() {
            edges.push((text(&dependency["pkg"])?, used));
        }
    }
    Some(edges)
}

/// Returns the SHA-256 of packages, by name and version, as Cargo.lock has them.
///
/// # Errors
/// The text is no lock file.
pub fn checksums(lock: &str) -> Result<HashMap<(String, String), String>> {
    let lock: DocumentMut = lock.parse().map_err(|error| format!("Cargo.lock: {error}"))?;
    let packages = lock.get("package").and_then(|list| list.as_array_of_tables());
    let packages = packages.ok_or("Cargo.lock has no packages")?;
    let field = |table: &toml_edit::Table, name: &str| table.get(name)?.as_str().map(str::to_owned);
    let entry = |table| Some(((field(table, "name")?, field(table, "version")?), field(table, "checksum")?));
    Ok(packages.iter().filter_map(entry).collect())
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// A program, a library of it, a macro of that, and a library of the tests.
    pub fn example() -> Value {
        let package = |name: &str, kind: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": "registry+x", "targets": [{"kind": [kind]}]});
        let needs = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        json!({
            "packages": [package("program", "bin"), package("library", "lib"), package("macro", "proc-macro"),
                package("of-macro", "lib"), package("of-tests", "lib"), package("of-windows", "lib")],
            "resolve": {"nodes": [
                {"id": "program", "deps": [needs("library", Value::Null), needs("of-tests", json!("dev"))]},
                {"id": "library", "deps": [needs("macro", Value::Null), needs("of-macro", json!("build"))]},
                {"id": "macro", "deps": [needs("of-macro", Value::Null)]},
                {"id": "of-macro", "deps": []},
                {"id": "of-tests", "deps": []},
            ]},
        })
    }

    #[test]
    fn what_is_shipped_and_what_only_builds_it_are_told_apart() {
        let graph = PackageGraph::of(&example()).expect("a graph");
        assert_eq!(graph.packages.len(), 5, "none of another target");
        let used: Vec<(String, Use)> = graph.used_by(&["program"]).into_iter().collect();
        let wanted = [
            ("library", Use::Shipped),
            ("macro", Use::Building),
            ("of-macro", Use::Building),
            ("program", Use::Shipped),
        ];
        assert_eq!(used, wanted.map(|(name, used)| (name.to_owned(), used)));
    }

    #[test]
    fn sums_are_found_by_name_and_version() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1\"\nchecksum = \"ab\"\n[[package]]\nname = \"b\"\nversion = \"1\"\n";
        let sums = checksums(lock).expect("a lock file");
        assert_eq!(sums.len(), 1);
        assert_eq!(sums[&("a".to_owned(), "1".to_owned())], "ab");
    }
}
