//! The rules of `deny.toml`, and violations of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml_edit::{DocumentMut, Item, Value};

use crate::packages::Package;
use crate::{Result, licence};

/// The rules.
#[derive(Debug, Default)]
pub struct DenyRules {
    /// Targets whose dependencies are checked.
    pub targets: Vec<String>,
    /// Licences that are allowed.
    licences: Vec<String>,
    /// Crates that may not be used.
    banned: Vec<String>,
    /// Versions, `NAME@VERSION`, that may exist beside another version of the crate.
    skipped: Vec<String>,
    /// Registries that packages may come from.
    registries: Vec<String>,
}

impl DenyRules {
    /// Reads the file.
    ///
    /// # Errors
    /// The file does not exist, is not TOML, or lacks a rule.
    pub fn read(path: &Path) -> Result<DenyRules> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        DenyRules::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn parse(text: &str) -> Result<DenyRules> {
        let document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
        let list = |section: &str, name: &str| -> Result<Vec<String>> {
            let missing = || format!("[{section}] has no list {name}");
            let item = document.get(section).and_then(|section| section.get(name)).ok_or_else(missing)?;
            words(item).ok_or_else(missing)
        };
        Ok(DenyRules {
            targets: list("graph", "targets")?,
            licences: list("licenses", "allow")?,
            banned: list("bans", "deny")?,
            skipped: list("bans", "skip")?,
            registries: list("sources", "allow-registry")?,
        })
    }

    /// Returns a line for each violation, and for each exception that is not needed.
    pub fn judge(&self, packages: &[Package]) -> Vec<String> {
        let mut findings = Vec::new();
        for package in packages {
            let named = format!("{} {}", package.name, package.version);
            match package.license.as_deref().map(|license| licence::is_allowed(license, &self.licences)) {
                None => findings.push(format!("{named} has no licence")),
                Some(Ok(true)) => {}
                Some(Ok(false)) => {
                    let license = package.license.as_deref().unwrap_or_default();
                    findings.push(format!("{named}: the licence {license} is not allowed"));
                }
                Some(Err(error)) => findings.push(format!("{named}: {error}")),
            }
            if self.banned.contains(&package.name) {
                findings.push(format!("{named} is banned"));
            }
            let is_known = |source: &String| {
                let address = source.strip_prefix("registry+");
                address.is_some_and(|address| self.registries.iter().any(|known| known == address))
            };
            if let Some(source) = package.source.as_ref().filter(|source| !is_known(source)) {
                findings.push(format!("{named} comes from {source}"));
            }
        }
        findings.extend(self.versions(packages));
        findings
    }

    /// Returns a line for each crate with several versions, and each exception that is not used.
    fn versions(&self, packages: &[Package]) -> Vec<String> {
        let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for package in packages {
            versions.entry(&package.name).or_default().insert(&package.version);
        }
        let is_skipped = |name: &str, version: &str| self.skipped.contains(&format!("{name}@{version}"));
        let mut findings = Vec::new();
        for (name, versions) in &versions {
            let counted: Vec<&str> =
                versions.iter().copied().filter(|version| !is_skipped(name, version)).collect();
            if counted.len() > 1 {
                findings.push(format!("{name} is there in the versions {}", counted.join(", ")));
            }
        }
        for skipped in &self.skipped {
            let (name, version) = skipped.split_once('@').unwrap_or((skipped, ""));
            if !versions.get(name).is_some_and(|versions| versions.len() > 1 && versions.contains(version)) {
                findings.push(format!("the exception for {skipped} is not used"));
            }
        }
        findings
    }
}

/// Returns a list of texts, or of tables whose `crate` is the text.
fn words(item: &Item) -> Option<Vec<String>> {
    let word = |value: &Value| {
        let text = value.as_inline_table().map_or(Some(value), |table| table.get("crate"));
        text?.as_str().map(str::to_owned)
    };
    item.as_array()?.iter().map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "
        graph.targets = ['x']
        licenses.allow = ['MIT']
        bans.deny = [{ crate = 'openssl', reason = 'why' }]
        bans.skip = [{ crate = 'twice@1.0.0', reason = 'why' }]
        sources.allow-registry = ['https://crates']
    ";

    fn package(name: &str, version: &str) -> Package {
        Package {
            id: format!("{name} {version}"),
            name: name.into(),
            version: version.into(),
            license: Some("MIT".into()),
            source: Some("registry+https://crates".into()),
            description: None,
            is_macro: false,
        }
    }

    #[test]
    fn each_breach_is_told_and_nothing_else() {
        let rules = DenyRules::parse(RULES).expect("rules");
        let twice = [package("twice", "1.0.0"), package("twice", "2.0.0")];
        assert_eq!(rules.judge(&twice), [String::new(); 0]);
        let mut own = package("own", "0.1.0");
        own.source = None;
        let mut from_git = package("odd", "1.0.0");
        from_git.source = Some("git+https://elsewhere".into());
        let mut copyleft = package("copyleft", "1.0.0");
        copyleft.license = Some("GPL-3.0".into());
        let mut without = package("without", "1.0.0");
        without.license = None;
        let all = [own, from_git, copyleft, without, package("openssl", "1.0.0"), package("twice", "3.0.0")];
        let findings = rules.judge(&[&twice[..], &all].concat());
        for part in [
            "odd 1.0.0 comes from git+https://elsewhere",
            "copyleft 1.0.0: the licence GPL-3.0 is not allowed",
            "without 1.0.0 has no licence",
            "openssl 1.0.0 is banned",
            "twice is there in the versions 2.0.0, 3.0.0",
        ] {
            assert!(findings.iter().any(|finding| finding == part), "{part} is not in {findings:?}");
        }
        assert_eq!(findings.len(), 5, "{findings:?}");
        assert_eq!(rules.judge(&twice[..1]), ["the exception for twice@1.0.0 is not used"]);
    }

    #[test]
    fn a_missing_rule_is_an_error() {
        let message = DenyRules::parse("graph.targets = []").expect_err("incomplete");
        assert_eq!(message, "[licenses] has no list allow");
    }
}
