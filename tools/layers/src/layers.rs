//! The list of layers, and the comparison of arrows with it.
//!
//! The list's form, one word after another, `#` begins a comment:
//!
//! ```text
//! rank                        # from high to low
//! layer calls  syscall task::calls
//! rank                        # layers of one rank are siblings
//! layer fs     fs::tmpfs
//! layer net    socket
//!
//! hooks 2                     # traits of lower layers that higher ones implement, at most
//! circle 3                    # files in the largest circle, at most
//! allow fs -> calls 2         # arrows up or sideways that are still there
//! ```
//!
//! A module belongs to the layer that lists it or, by the longest match, a module around it.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::graph::{Arrow, Graph};

/// The index of a layer in [`Layers::layers`].
type LayerId = usize;

#[derive(Debug)]
struct Layer {
    name: String,
    /// Rank of the layer; 0 is the highest.
    rank: usize,
}

/// The contents of the list.
#[derive(Default, Debug)]
pub struct Layers {
    layers: Vec<Layer>,
    /// By module path.
    members: BTreeMap<String, LayerId>,
    circle: usize,
    hooks: Option<usize>,
    allowed: BTreeMap<(LayerId, LayerId), usize>,
}

/// Comparison of a graph with the list.
#[derive(Debug)]
pub struct LayersVerdict<'a> {
    layers: &'a Layers,
    /// The layer of each file.
    of: Vec<LayerId>,
    /// The arrows that point up or sideways, by their layers.
    wrong: BTreeMap<(LayerId, LayerId), Vec<Arrow>>,
    circle: usize,
}

impl Layers {
    /// Reads a list.
    ///
    /// # Errors
    /// A sentence with the number of the wrong line.
    pub fn parse(text: &str) -> Result<Layers, String> {
        let mut all = Layers::default();
        let mut ranks = 0;
        for (at, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
            let tell = |problem: &str| format!("line {}: {problem}", at + 1);
            match words[..] {
                [] => {}
                ["rank"] => ranks += 1,
                ["layer", name, ref modules @ ..] if ranks > 0 => {
                    let id = all.layers.len();
                    all.layers.push(Layer { name: name.into(), rank: ranks });
                    for module in modules {
                        if all.members.insert((*module).into(), id).is_some() {
                            return Err(tell(&format!("{module} is listed twice")));
                        }
                    }
                }
                ["circle", files] => {
                    all.circle = files.parse().map_err(|_| tell("circle takes a number of files"))?;
                }
                ["hooks", traits] => {
                    all.hooks = Some(traits.parse().map_err(|_| tell("hooks takes a number of traits"))?);
                }
                ["allow", from, "->", to, count] => {
                    let find = |name: &str| all.find(name).ok_or_else(|| tell(&format!("no layer {name}")));
                    let pair = (find(from)?, find(to)?);
                    let count = count.parse().map_err(|_| tell("allow takes a number of arrows"))?;
                    all.allowed.insert(pair, count);
                }
                _ => {
                    return Err(tell(
                        "expected rank, layer NAME MODULE…, circle N, hooks N or allow FROM -> TO N",
                    ));
                }
            }
        }
        Ok(all)
    }

    fn find(&self, name: &str) -> Option<LayerId> {
        self.layers.iter().position(|layer| layer.name == name)
    }

    /// Returns the layer of the module `path`.
    fn layer_of(&self, path: &str) -> Option<LayerId> {
        let mut rest = path;
        loop {
            if let Some(&id) = self.members.get(rest) {
                return Some(id);
            }
            rest = rest.rsplit_once("::")?.0;
        }
    }

    /// Compares `graph` with the list.
    ///
    /// # Errors
    /// A sentence that names the files which belong to no layer.
    pub fn judge(&self, graph: &Graph) -> Result<LayersVerdict<'_>, String> {
        let mut of = Vec::new();
        let mut homeless = Vec::new();
        for file in &graph.files {
            // The root declares the modules and belongs to no layer: nothing below may use it.
            match self.layer_of(if file.module.is_empty() { "crate" } else { &file.module }) {
                Some(id) => of.push(id),
                None => homeless.push(file.name.as_str()),
            }
        }
        if !homeless.is_empty() {
            return Err(format!("in no layer: {}", homeless.join(" ")));
        }
        let mut wrong: BTreeMap<_, Vec<Arrow>> = BTreeMap::new();
        for &arrow in graph.arrows.keys() {
            let (from, to) = (of[arrow.from], of[arrow.to]);
            if from != to && self.layers[to].rank <= self.layers[from].rank {
                wrong.entry((from, to)).or_default().push(arrow);
            }
        }
        Ok(LayersVerdict { layers: self, of, wrong, circle: graph.largest_circle().len() })
    }
}

impl LayersVerdict<'_> {
    fn name(&self, id: LayerId) -> &str {
        &self.layers.layers[id].name
    }

    fn count(&self, matches: impl Fn(usize, usize) -> bool) -> usize {
        let rank = |id: LayerId| self.layers.layers[id].rank;
        self.wrong
            .iter()
            .filter(|((from, to), _)| matches(rank(*from), rank(*to)))
            .map(|(_, arrows)| arrows.len())
            .sum()
    }

    /// Returns the number of arrows that point to a higher layer.
    pub fn up(&self) -> usize {
        self.count(|from, to| to < from)
    }

    /// Returns the number of arrows between layers of one rank.
    pub fn sideways(&self) -> usize {
        self.count(|from, to| to == from)
    }

    /// Returns the arrows from the layer `from` to the layer `to` that point up or sideways.
    pub fn arrows_between(&self, from: &str, to: &str) -> impl Iterator<Item = Arrow> {
        let pair = self.layers.find(from).zip(self.layers.find(to));
        pair.and_then(|pair| self.wrong.get(&pair)).into_iter().flatten().copied()
    }

    /// Returns the traits of a lower layer that a higher one implements: the ways in which a lower
    /// layer calls a higher one.
    pub fn hooks(&self, graph: &Graph) -> Vec<String> {
        let rank = |file: usize| self.layers.layers[self.of[file]].rank;
        let mut names: Vec<String> = graph
            .implements
            .iter()
            .filter(|(arrow, _)| rank(arrow.from) < rank(arrow.to))
            .map(|(arrow, place)| {
                let name = place.path.rsplit("::").next().unwrap_or(&place.path);
                format!("{} ({})", name, graph.files[arrow.to].name)
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Returns the differences from the list: numbers above its limits, and limits that can be
    /// lowered.
    pub fn complaints(&self) -> Vec<String> {
        let mut all = Vec::new();
        let nothing = Vec::new();
        let pairs = self.wrong.keys().chain(self.layers.allowed.keys());
        let mut pairs: Vec<_> = pairs.copied().collect();
        pairs.sort_unstable();
        pairs.dedup();
        for pair in pairs {
            let now = self.wrong.get(&pair).unwrap_or(&nothing).len();
            let most = self.layers.allowed.get(&pair).copied().unwrap_or(0);
            let (from, to) = (self.name(pair.0), self.name(pair.1));
            if now > most {
                all.push(format!(
                    "{now} arrows from {from} to {to}, which is not below it; {most} are allowed (--arrows {from} {to} lists them)"
                ));
            } else if now < most {
                all.push(format!(
                    "{now} arrows from {from} to {to}, {most} are allowed: --write stores the smaller number"
                ));
            }
        }
        match self.circle.cmp(&self.layers.circle) {
            std::cmp::Ordering::Greater => all.push(format!(
                "the largest circle has {} files, {} are allowed (--circle lists them)",
                self.circle, self.layers.circle
            )),
            std::cmp::Ordering::Less => all.push(format!(
                "the largest circle has {} files, {} are allowed: --write stores the smaller number",
                self.circle, self.layers.circle
            )),
            std::cmp::Ordering::Equal => {}
        }
        all
    }

    /// Returns a complaint if higher layers implement more traits of lower ones than `hooks`
    /// allows.
    pub fn too_many_hooks(&self, graph: &Graph) -> Option<String> {
        let (most, now) = (self.layers.hooks?, self.hooks(graph).len());
        (now > most).then(|| format!("{now} traits of a lower layer are implemented in a higher one, {most} are allowed (--hooks lists them)"))
    }

    /// Returns the list `text` with today's numbers. A list without numbers gets its first ones.
    ///
    /// # Errors
    /// A sentence, if a number would grow or a pair of layers is new.
    pub fn rewritten(&self, text: &str) -> Result<String, String> {
        let is_first = self.layers.circle == 0;
        let most = |pair| self.layers.allowed.get(pair).copied().unwrap_or(0);
        let worse = self.wrong.iter().find(|(pair, arrows)| arrows.len() > most(pair));
        if let Some((&(from, to), _)) = worse
            && !is_first
        {
            return Err(format!(
                "the number of arrows from {} to {} would grow",
                self.name(from),
                self.name(to)
            ));
        }
        if self.circle > self.layers.circle && !is_first {
            return Err("the largest circle would grow".into());
        }
        let mut kept: Vec<&str> = text
            .lines()
            .filter(|line| !matches!(line.split_whitespace().next(), Some("allow" | "circle")))
            .collect();
        while kept.last().is_some_and(|line| line.is_empty()) {
            kept.pop();
        }
        let mut written = kept.join("\n");
        written.push_str("\n\n");
        let _ = writeln!(written, "circle {}", self.circle);
        for (&(from, to), arrows) in &self.wrong {
            let _ = writeln!(written, "allow {} -> {} {}", self.name(from), self.name(to), arrows.len());
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crates::File;
    use crate::graph::ImportSite;

    const LIST: &str =
        "rank\nlayer calls calls\nrank\nlayer fs fs\nlayer net net\nrank\nlayer abi abi fs::flags\n";

    fn graph(arrows: &[(usize, usize)]) -> Graph {
        let modules = ["calls", "fs", "net", "abi", "fs::flags"];
        Graph {
            files: modules
                .map(|module| File { name: module.replace("::", "/"), module: module.into() })
                .into(),
            arrows: arrows
                .iter()
                .map(|&(from, to)| (Arrow { from, to }, ImportSite { line: 1, path: "x".into() }))
                .collect(),
            implements: BTreeMap::new(),
        }
    }

    #[test]
    fn an_arrow_down_is_free_and_one_up_or_sideways_is_not() {
        let layers = Layers::parse(&format!("{LIST}circle 1")).expect("a good list");
        let good = graph(&[(0, 1), (1, 3), (0, 3), (1, 4)]);
        assert_eq!(layers.judge(&good).expect("all have layers").complaints(), Vec::<String>::new());
        let bad = graph(&[(1, 0), (1, 2), (4, 1)]);
        let verdict = layers.judge(&bad).expect("all have layers");
        assert_eq!((verdict.up(), verdict.sideways()), (2, 1));
        assert_eq!(verdict.complaints().len(), 3);
    }

    #[test]
    fn a_number_may_shrink_and_may_not_grow() {
        let text = format!("{LIST}circle 1\nallow fs -> calls 1\n");
        let layers = Layers::parse(&text).expect("a good list");
        let same = layers.judge(&graph(&[(1, 0)])).map(|verdict| verdict.complaints().len());
        assert_eq!(same, Ok(0));
        let graph_without = graph(&[]);
        let verdict = layers.judge(&graph_without).expect("all have layers");
        assert_eq!(verdict.complaints().len(), 1, "a smaller number is to be stored");
        assert!(!verdict.rewritten(&text).expect("nothing grows").contains("allow"));
        let graph_more = graph(&[(1, 0), (4, 0)]);
        let verdict = layers.judge(&graph_more).expect("all have layers");
        assert_eq!(verdict.complaints().len(), 1);
        assert!(verdict.rewritten(&text).is_err(), "a pair of layers is new");
        let graph_circle = graph(&[(0, 1), (1, 0)]);
        let verdict = layers.judge(&graph_circle).expect("all have layers");
        assert!(verdict.rewritten(&text).is_err_and(|why| why.contains("circle")));
    }

    #[test]
    fn a_file_without_a_layer_and_a_wrong_line_are_named() {
        let layers = Layers::parse("rank\nlayer calls calls\n").expect("a good list");
        let problem = layers.judge(&graph(&[])).expect_err("most have no layer");
        assert!(problem.contains("net"), "{problem}");
        assert!(Layers::parse("rank\nlayer a b\nallow a -> c 1").is_err_and(|why| why.starts_with("line 3")));
        assert!(Layers::parse("layer a b").is_err(), "a layer has a rank");
    }
}
