//! The software bill of materials: a CycloneDX 1.5 document in JSON. The same sources give the same
//! bytes: there is no time and no serial number in it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

use crate::Result;
use crate::packages::{Package, PackageGraph, Use};

/// Packages whose files are shipped: the command, the microscope, the kernel.
const SHIPPED: [&str; 3] = ["freehold", "freehold-scope-plugin", "freehold-kernel-image"];

/// Returns the document about `graphs`; `sums` are the packages' SHA-256.
///
/// # Errors
/// A shipped package is in none of them.
pub fn document(graphs: &[PackageGraph], sums: &HashMap<(String, String), String>) -> Result<Value> {
    let mut used: BTreeMap<String, Use> = BTreeMap::new();
    let mut packages: BTreeMap<&str, &Package> = BTreeMap::new();
    let mut needs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for graph in graphs {
        packages.extend(graph.packages.iter().map(|package| (&*package.id, package)));
        for (id, how) in graph.used_by(&SHIPPED) {
            needs
                .entry(id.clone())
                .or_default()
                .extend(graph.dependencies(&id).into_iter().map(str::to_owned));
            let known = used.entry(id).or_insert(how);
            *known = how.min(*known);
        }
    }
    let of_name = |name: &str| packages.values().copied().find(|package| package.name == name);
    let roots = SHIPPED.iter().map(|name| of_name(name).ok_or_else(|| format!("there is no package {name}")));
    let roots: Vec<&Package> = roots.collect::<Result<_>>()?;
    let listed = || used.iter().filter_map(|(id, how)| Some((*packages.get(&**id)?, *how)));
    let components: Vec<Value> = listed().map(|(package, how)| component(package, how, sums)).collect();
    let mut dependencies = vec![json!({
        "ref": "freehold",
        "dependsOn": roots.iter().map(|package| reference(package)).collect::<Vec<_>>(),
    })];
    for (package, _) in listed() {
        let to = needs.get(&package.id).into_iter().flatten();
        let to = to.filter(|id| used.contains_key(*id)).filter_map(|id| packages.get(&**id).copied());
        let to: BTreeSet<String> = to.map(reference).collect();
        dependencies.push(json!({"ref": reference(package), "dependsOn": to}));
    }
    let version = &roots[0].version;
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": "freehold", "name": "freehold", "version": version},
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// Returns the name of a package in the document.
fn reference(package: &Package) -> String {
    match package.source {
        Some(_) => format!("pkg:cargo/{}@{}", package.name, package.version),
        None => format!("own:{}@{}", package.name, package.version),
    }
}

fn component(package: &Package, used: Use, sums: &HashMap<(String, String), String>) -> Value {
    let scope = match used {
        Use::Shipped => "required",
        Use::Building => "excluded",
    };
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
        "scope": scope,
    });
    if let Some(description) = &package.description {
        component["description"] = json!(description);
    }
    if let Some(license) = &package.license {
        // The older form of crates is no SPDX expression.
        component["licenses"] = json!([{"expression": license.replace(" / ", " OR ").replace('/', " OR ")}]);
    }
    if package.source.is_some() {
        component["purl"] = json!(reference(package));
    }
    if let Some(sum) = sums.get(&(package.name.clone(), package.version.clone())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages;

    #[test]
    fn what_is_shipped_is_listed_with_its_sum_and_what_it_needs() {
        let mut metadata = packages::tests::example();
        // One program for all that is shipped.
        let renamed = metadata.to_string().replace("\"program\"", "\"freehold\"");
        metadata = serde_json::from_str(&renamed).expect("JSON");
        for name in &SHIPPED[1..] {
            let mut package = metadata["packages"][0].clone();
            (package["id"], package["name"]) = (json!(name), json!(name));
            metadata["packages"].as_array_mut().expect("a list").push(package);
            let node = json!({"id": name, "deps": []});
            metadata["resolve"]["nodes"].as_array_mut().expect("a list").push(node);
        }
        let graph = PackageGraph::of(&metadata).expect("a graph");
        let sums = HashMap::from([(("library".to_owned(), "1.0.0".to_owned()), "ab".to_owned())]);
        let document = document(&[graph], &sums).expect("a document");
        let components = document["components"].as_array().expect("a list");
        let of = |name: &str| components.iter().find(|component| component["name"] == name);
        let library = of("library").expect("it is shipped");
        assert_eq!(library["hashes"][0]["content"], "ab");
        assert_eq!(
            (&library["scope"], &library["purl"]),
            (&json!("required"), &json!("pkg:cargo/library@1.0.0"))
        );
        assert_eq!(of("macro").expect("it builds")["scope"], "excluded");
        assert_eq!(of("of-tests"), None);
        let needs = document["dependencies"].as_array().expect("a list");
        let library =
            needs.iter().find(|entry| entry["ref"] == "pkg:cargo/library@1.0.0").expect("it has needs");
        assert_eq!(library["dependsOn"], json!(["pkg:cargo/macro@1.0.0", "pkg:cargo/of-macro@1.0.0"]));
    }
}
