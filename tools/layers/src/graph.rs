//! The graph of files: their uses of each other, and their circles.

use std::collections::BTreeMap;
use std::path::Path;

use crate::crates::{Crate, File};
use crate::names::{self, Target};

/// One file uses another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Arrow {
    /// The file with the mention.
    pub from: usize,
    /// The file with the definition.
    pub to: usize,
}

/// The first place behind an arrow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportSite {
    /// The line, from 1.
    pub line: usize,
    /// The path as written.
    pub path: String,
}

/// All files and arrows of a crate.
#[derive(Debug)]
pub struct Graph {
    pub files: Vec<File>,
    /// Each arrow once, with its first place.
    pub arrows: BTreeMap<Arrow, ImportSite>,
    /// The same for traits that a file implements and another one declares.
    pub implements: BTreeMap<Arrow, ImportSite>,
}

impl Graph {
    /// Reads the crate with the root file `root`.
    ///
    /// # Errors
    /// A sentence that names the file which cannot be read or parsed.
    pub fn read(root: &Path) -> Result<Graph, String> {
        let all = Crate::read(root)?;
        let mut arrows = BTreeMap::new();
        let mut implements = BTreeMap::new();
        for (id, module) in all.modules.iter().enumerate() {
            for mention in &module.mentions {
                let Some(Target::Item(to)) = names::resolve(&all, id, &mention.path) else { continue };
                if to == module.file {
                    continue;
                }
                let arrow = Arrow { from: module.file, to };
                let place = ImportSite { line: mention.line, path: mention.path.join("::") };
                if mention.implements {
                    implements.entry(arrow).or_insert_with(|| place.clone());
                }
                arrows.entry(arrow).or_insert(place);
            }
        }
        Ok(Graph { files: all.files, arrows, implements })
    }

    /// Describes an arrow for a person.
    pub fn describe(&self, arrow: Arrow) -> String {
        let place = &self.arrows[&arrow];
        let (from, to) = (&self.files[arrow.from].name, &self.files[arrow.to].name);
        format!("{from}:{} -> {to} ({})", place.line, place.path)
    }

    /// Returns the files of the largest strongly connected component, in order.
    ///
    /// Tarjan, "Depth-first search and linear graph algorithms", 1972, with a stack of its own.
    pub fn largest_circle(&self) -> Vec<usize> {
        let mut next = vec![Vec::new(); self.files.len()];
        self.arrows.keys().for_each(|arrow| next[arrow.from].push(arrow.to));
        let mut search = Search {
            next: &next,
            index: vec![None; next.len()],
            low: vec![0; next.len()],
            open: vec![false; next.len()],
            stack: Vec::new(),
            count: 0,
            largest: Vec::new(),
        };
        (0..next.len()).for_each(|file| search.from(file));
        search.largest.sort_unstable();
        search.largest
    }
}

struct Search<'a> {
    next: &'a [Vec<usize>],
    index: Vec<Option<usize>>,
    low: Vec<usize>,
    open: Vec<bool>,
    stack: Vec<usize>,
    count: usize,
    largest: Vec<usize>,
}

impl Search<'_> {
    fn from(&mut self, start: usize) {
        if self.index[start].is_some() {
            return;
        }
        let mut path = vec![(start, 0)];
        while let Some(&(file, at)) = path.last() {
            if at == 0 && self.index[file].is_none() {
                self.enter(file);
            }
            let Some(&to) = self.next[file].get(at) else {
                path.pop();
                self.leave(file);
                if let Some(&(parent, _)) = path.last() {
                    self.low[parent] = self.low[parent].min(self.low[file]);
                }
                continue;
            };
            path.last_mut().expect("it was read above").1 += 1;
            match self.index[to] {
                None => path.push((to, 0)),
                Some(index) if self.open[to] => self.low[file] = self.low[file].min(index),
                Some(_) => {}
            }
        }
    }

    fn enter(&mut self, file: usize) {
        self.index[file] = Some(self.count);
        self.low[file] = self.count;
        self.count += 1;
        self.stack.push(file);
        self.open[file] = true;
    }

    fn leave(&mut self, file: usize) {
        if self.index[file] != Some(self.low[file]) {
            return;
        }
        let start =
            self.stack.iter().rposition(|&other| other == file).expect("an open file is on the stack");
        let circle = self.stack.split_off(start);
        circle.iter().for_each(|&member| self.open[member] = false);
        if circle.len() > self.largest.len() {
            self.largest = circle;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let folder = tempfile::tempdir().expect("temporary folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("inside")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        Graph::read(&folder.path().join("lib.rs")).expect("it parses")
    }

    fn arrows(graph: &Graph) -> Vec<String> {
        graph.arrows.keys().map(|arrow| graph.describe(*arrow)).collect()
    }

    #[test]
    fn a_re_export_leads_to_the_file_that_defines_the_name() {
        let graph = graph(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::Deep;\nfn f(_: Deep) {}"),
            ("b/mod.rs", "mod inner; pub use inner::*;"),
            ("b/inner.rs", "pub struct Deep;"),
        ]);
        assert_eq!(arrows(&graph), ["a.rs:1 -> b/inner.rs (crate::b::Deep)"]);
    }

    #[test]
    fn inline_paths_super_and_macros_are_followed() {
        let graph = graph(&[
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod child; use crate::b;\nfn f() { log!(b::now()); }"),
            ("a/child.rs", "fn f() { super::super::b::now(); }"),
            ("b.rs", "pub fn now() {}"),
        ]);
        assert_eq!(
            arrows(&graph),
            ["a/mod.rs:2 -> b.rs (b::now)", "a/child.rs:1 -> b.rs (super::super::b::now)"]
        );
    }

    #[test]
    fn tests_and_host_stand_ins_do_not_count() {
        let graph = graph(&[
            (
                "lib.rs",
                "mod b; mod a; #[cfg(not(target_os = \"none\"))] pub mod mem { pub struct Space; }\n\
                 #[cfg(target_os = \"none\")] pub mod mem;",
            ),
            ("a.rs", "use crate::mem::Space; #[cfg(test)] mod tests { use crate::b::now; }"),
            ("b.rs", "pub fn now() {}"),
            ("mem.rs", "pub struct Space;"),
        ]);
        assert_eq!(arrows(&graph), ["a.rs:1 -> mem.rs (crate::mem::Space)"]);
    }

    #[test]
    fn the_largest_circle_is_found() {
        let graph = graph(&[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::c::C; pub struct B;"),
            ("c.rs", "use crate::{a::A, d::D}; pub struct C;"),
            ("d.rs", "pub struct D;"),
        ]);
        let names: Vec<&str> =
            graph.largest_circle().iter().map(|&file| graph.files[file].name.as_str()).collect();
        assert_eq!(names, ["a.rs", "b.rs", "c.rs"]);
    }

    #[test]
    fn an_unreadable_module_is_named() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let root = folder.path().join("lib.rs");
        std::fs::write(&root, "mod gone;").expect("a file");
        let problem = Graph::read(&root).expect_err("there is no such file");
        assert!(problem.contains("gone"), "{problem}");
    }
}
