//! Reads a crate: its modules, the names in each, and the paths that each file mentions.
//!
//! A module is compiled or it is not: `cfg` attributes are evaluated for the bare-metal target
//! without tests. A file's `use` lines inside functions count as its module's, which is close
//! enough for a graph of files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, UseTree, Visibility};

/// The number of a module in [`Crate::modules`]; 0 is the crate's root.
pub type ModuleId = usize;

/// A name in a module.
#[derive(Clone, Debug)]
pub enum Binding {
    /// Defined here.
    Item,
    /// A child module.
    Module(ModuleId),
    /// Another name for a path.
    Use { path: Vec<String> },
}

/// A path that a file mentions.
#[derive(Debug)]
pub struct Mention {
    /// Its segments, as written; a leading `::` or `$crate` is left out.
    pub path: Vec<String>,
    /// The line, from 1.
    pub line: usize,
    /// Whether it is the trait of an `impl` block.
    pub implements: bool,
}

/// One module.
#[derive(Debug)]
pub struct Module {
    /// The module that contains it; the root contains itself.
    pub parent: ModuleId,
    /// The file that its text is in.
    pub file: usize,
    /// Names that the scope binds.
    pub names: HashMap<String, Binding>,
    /// Paths whose names are all visible here (`use path::*`).
    pub globs: Vec<Vec<String>>,
    /// Mentions of other names.
    pub mentions: Vec<Mention>,
}

/// A file of the crate.
#[derive(Debug)]
pub struct File {
    /// Path relative to the root's folder, as `task/exit.rs`.
    pub name: String,
    /// The path of its module, as `task::exit`; empty for the root.
    pub module: String,
}

/// The whole crate.
#[derive(Default, Debug)]
pub struct Crate {
    pub files: Vec<File>,
    pub modules: Vec<Module>,
}

impl Crate {
    /// Reads the crate with the root file `root`.
    ///
    /// # Errors
    /// A sentence that names the file which cannot be read or parsed.
    pub fn read(root: &Path) -> Result<Crate, String> {
        let mut all = Crate::default();
        let folder = root.parent().unwrap_or(Path::new("")).to_path_buf();
        let mut reader = Reader { all: &mut all, top: folder.clone() };
        reader.file(root, &folder, 0, String::new())?;
        Ok(all)
    }
}

struct Reader<'a> {
    all: &'a mut Crate,
    top: PathBuf,
}

impl Reader<'_> {
    /// Reads the module in `path`, whose children are below `folder`.
    fn file(
        &mut self,
        path: &Path,
        folder: &Path,
        parent: ModuleId,
        module: String,
    ) -> Result<ModuleId, String> {
        let tell = |problem: &dyn std::fmt::Display| format!("{}: {problem}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| tell(&error))?;
        let parsed = syn::parse_file(&text).map_err(|error| tell(&error))?;
        let name = path.strip_prefix(&self.top).unwrap_or(path).display().to_string();
        self.all.files.push(File { name, module: module.clone() });
        let place = ModuleText { file: self.all.files.len() - 1, folder, module: &module };
        self.module(&parsed.items, parent, &place)
    }

    fn module(
        &mut self,
        items: &[Item],
        parent: ModuleId,
        place: &ModuleText<'_>,
    ) -> Result<ModuleId, String> {
        let &ModuleText { file, folder, module: path } = place;
        let id = self.all.modules.len();
        self.all.modules.push(Module {
            parent,
            file,
            names: HashMap::new(),
            globs: Vec::new(),
            mentions: Vec::new(),
        });
        for item in items.iter().filter(|item| is_compiled(attributes(item))) {
            if let Item::Mod(child) = item {
                let name = child.ident.to_string();
                let inner = folder.join(&name);
                let full = if path.is_empty() { name.clone() } else { format!("{path}::{name}") };
                let child = match &child.content {
                    Some((_, items)) => {
                        self.module(items, id, &ModuleText { file, folder: &inner, module: &full })?
                    }
                    None => {
                        let beside = folder.join(format!("{name}.rs"));
                        let source = if beside.exists() { beside } else { inner.join("mod.rs") };
                        self.file(&source, &inner, id, full)?
                    }
                };
                self.all.modules[id].names.insert(name, Binding::Module(child));
            } else {
                let mut collector = Collector { module: &mut self.all.modules[id] };
                if let Some(name) = defined(item) {
                    collector.module.names.insert(name, Binding::Item);
                }
                collector.visit_item(item);
            }
        }
        Ok(id)
    }
}

/// The place of a module's text: its file, the folder of its modules, and its path from the crate's
/// root.
struct ModuleText<'a> {
    file: usize,
    folder: &'a Path,
    module: &'a str,
}

struct Collector<'a> {
    module: &'a mut Module,
}

impl Collector<'_> {
    fn mention(&mut self, path: Vec<String>, line: usize) {
        self.module.mentions.push(Mention { path, line, implements: false });
    }

    fn tree(&mut self, tree: &UseTree, before: &mut Vec<String>, exported: bool, line: usize) {
        match tree {
            UseTree::Path(inner) => {
                before.push(inner.ident.to_string());
                self.tree(&inner.tree, before, exported, line);
                before.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|inner| self.tree(inner, before, exported, line));
            }
            UseTree::Glob(_) => self.module.globs.push(before.clone()),
            UseTree::Name(_) | UseTree::Rename(_) => {
                let (target, name) = match tree {
                    UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
                    UseTree::Rename(rename) => (rename.ident.to_string(), rename.rename.to_string()),
                    _ => return,
                };
                let mut path = before.clone();
                // `use path::{self}` names the path itself.
                let name = if target == "self" { path.last().cloned().unwrap_or_default() } else { name };
                if target != "self" {
                    path.push(target);
                }
                if !exported {
                    self.mention(path.clone(), line);
                }
                self.module.names.insert(name, Binding::Use { path });
            }
        }
    }

    /// Collects the paths in a macro's arguments: identifiers joined by `::`.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(word) => {
                    if colons != 2 {
                        self.finish(&mut path, line);
                        line = word.span().start().line;
                    }
                    path.push(word.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.finish(&mut path, line);
                    colons = 0;
                    self.tokens(group.stream());
                }
                _ => {
                    self.finish(&mut path, line);
                    colons = 0;
                }
            }
        }
        self.finish(&mut path, line);
    }

    fn finish(&mut self, path: &mut Vec<String>, line: usize) {
        if !path.is_empty() {
            self.mention(std::mem::take(path), line);
        }
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_compiled(&item.attrs) {
            let exported = !matches!(item.vis, Visibility::Inherited);
            let line = item.use_token.span.start().line;
            self.tree(&item.tree, &mut Vec::new(), exported, line);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some((_, path, _)) = &item.trait_ {
            let line = path.segments.first().map_or(0, |first| first.ident.span().start().line);
            self.module.mentions.push(Mention { path: segments(path), line, implements: true });
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if is_compiled(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_mod(&mut self, _: &'ast syn::ItemMod) {
        // A module inside a function would be a module of its own; there is none.
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let line = path.segments.first().map_or(0, |first| first.ident.span().start().line);
        self.mention(segments(path), line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

/// Returns the name that an item defines.
fn defined(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        Item::Macro(item) => item.ident.as_ref()?.to_string(),
        _ => return None,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether the bare-metal target compiles an item with these attributes.
fn is_compiled(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).all(|attribute| {
        let Meta::List(list) = &attribute.meta else { return true };
        list.parse_args::<Meta>().map_or(true, |condition| holds(&condition))
    })
}

fn holds(condition: &Meta) -> bool {
    match condition {
        // test, loom, kani: never in the image.
        Meta::Path(_) => false,
        Meta::NameValue(pair) => {
            let syn::Expr::Lit(value) = &pair.value else { return true };
            let syn::Lit::Str(value) = &value.lit else { return true };
            if pair.path.is_ident("target_os") {
                value.value() == "none"
            } else if pair.path.is_ident("target_arch") {
                value.value() == "x86_64"
            } else {
                // A feature: its code counts.
                true
            }
        }
        Meta::List(list) => {
            let parser = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
            let Ok(inner) = list.parse_args_with(parser) else { return true };
            if list.path.is_ident("not") {
                !inner.iter().all(holds)
            } else if list.path.is_ident("any") {
                inner.iter().any(holds)
            } else {
                inner.iter().all(holds)
            }
        }
    }
}
