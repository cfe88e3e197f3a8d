//! Dependencies: `check` compares them with `deny.toml`, `sbom` lists the shipped ones.
//!
//! `deny.toml` is in the form of cargo-deny, which reads it where it is installed. This tool needs
//! nothing but Cargo, and no network; it checks licences, bans and sources. It does not look for
//! advisories, whose database is on the network.
//!
//!     freehold-supply check     fails where a dependency breaks a rule, or an exception is not used
//!     freehold-supply sbom      prints a CycloneDX document about what is shipped
#![forbid(unsafe_code)]

mod licence;
mod packages;
mod rules;
mod sbom;

use std::path::Path;
use std::process::ExitCode;

use packages::PackageGraph;
use rules::DenyRules;

/// A message for the user.
pub type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let result = match wanted.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => check(),
        ["sbom"] => print_sbom(),
        _ => Err("usage: freehold-supply check|sbom".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("freehold-supply: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Reads the rules and the dependencies for all targets that they name.
fn read() -> Result<(DenyRules, Vec<PackageGraph>)> {
    let rules = DenyRules::read(Path::new("deny.toml"))?;
    let graphs = rules.targets.iter().map(|target| PackageGraph::read(target)).collect::<Result<_>>()?;
    Ok((rules, graphs))
}

fn check() -> Result<()> {
    let (rules, graphs) = read()?;
    let mut packages = std::collections::BTreeMap::new();
    for package in graphs.into_iter().flat_map(|graph| graph.packages) {
        packages.insert(package.id.clone(), package);
    }
    let packages: Vec<_> = packages.into_values().collect();
    let findings = rules.judge(&packages);
    for finding in &findings {
        eprintln!("freehold-supply: {finding}");
    }
    match findings.len() {
        0 => {
            let foreign = packages.iter().filter(|package| package.source.is_some()).count();
            println!(
                "freehold-supply: {foreign} dependencies: licences, versions and sources are as deny.toml wants"
            );
            Ok(())
        }
        count => Err(format!("{count} findings")),
    }
}

fn print_sbom() -> Result<()> {
    let (_, graphs) = read()?;
    let lock = std::fs::read_to_string("Cargo.lock").map_err(|error| format!("Cargo.lock: {error}"))?;
    let document = sbom::document(&graphs, &packages::checksums(&lock)?)?;
    let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
    println!("{text}");
    Ok(())
}
