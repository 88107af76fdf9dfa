//! One crate parsed into its modules: what each defines, re-exports and refers to.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, Item, UseTree, Visibility, visit::Visit};

/// Names from the crate's root to a module or an item.
pub type ModulePath = Vec<String>;

/// Why a crate could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file cannot be read.
    #[error("{0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// A file is not Rust.
    #[error("{0}: {1}")]
    Parse(PathBuf, syn::Error),
}

/// Definitions and references of a module, without test code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Names of the items that it defines itself.
    pub defines: BTreeSet<String>,
    /// Imported names, with their paths as written.
    pub imports: BTreeMap<String, ModulePath>,
    /// Paths of `use …::*`.
    pub globs: Vec<ModulePath>,
    /// Paths in its code, as written, without re-exports.
    pub uses: BTreeSet<ModulePath>,
}

/// The modules of a crate by their path; the root's path is empty.
pub type Crate = BTreeMap<ModulePath, Module>;

/// Reads a crate from its root file on.
pub fn read(root: &Path) -> Result<Crate, SourceError> {
    let mut modules = Crate::new();
    let folder = root.parent().unwrap_or(Path::new("")).to_owned();
    read_file(root, &folder, &Vec::new(), &mut modules)?;
    Ok(modules)
}

/// `children`: the folder in which the files of the module's child modules are.
fn read_file(file: &Path, children: &Path, path: &ModulePath, modules: &mut Crate) -> Result<(), SourceError> {
    let text = fs::read_to_string(file).map_err(|e| SourceError::Read(file.into(), e))?;
    let parsed = syn::parse_file(&text).map_err(|e| SourceError::Parse(file.into(), e))?;
    read_items(&parsed.items, children, path, modules)
}

fn read_items(items: &[Item], children: &Path, path: &ModulePath, modules: &mut Crate) -> Result<(), SourceError> {
    let mut module = Module::default();
    for item in items.iter().filter(|item| !is_test(attributes(item))) {
        match item {
            Item::Mod(child) => {
                let name = child.ident.to_string();
                let below = [path.clone(), vec![name.clone()]].concat();
                let folder = children.join(&name);
                if let Some((_, items)) = &child.content {
                    read_items(items, &folder, &below, modules)?;
                    continue;
                }
                let (flat, nested) = (children.join(format!("{name}.rs")), folder.join("mod.rs"));
                let file = if flat.exists() { flat } else { nested };
                // generated modules have no file
                if file.exists() {
                    read_file(&file, &folder, &below, modules)?;
                }
            }
            Item::Use(item) => {
                let mut found = Vec::new();
                flatten(&item.tree, &mut Vec::new(), &mut found);
                for (name, target) in found {
                    if matches!(item.vis, Visibility::Inherited) {
                        module.uses.insert(target.clone());
                    }
                    match name {
                        Some(name) => drop(module.imports.insert(name, target)),
                        None => module.globs.push(target),
                    }
                }
            }
            item => {
                module.defines.extend(name_of(item));
                Paths(&mut module.uses).visit_item(item);
            }
        }
    }
    modules.insert(path.clone(), module);
    Ok(())
}

/// The leaves of a `use`: imported name (`None` for `*`) and path.
fn flatten(tree: &UseTree, prefix: &mut ModulePath, found: &mut Vec<(Option<String>, ModulePath)>) {
    match tree {
        UseTree::Path(tree) => {
            prefix.push(tree.ident.to_string());
            flatten(&tree.tree, prefix, found);
            prefix.pop();
        }
        UseTree::Name(leaf) if leaf.ident == "self" => found.push((prefix.last().cloned(), prefix.clone())),
        UseTree::Name(leaf) => {
            let name = leaf.ident.to_string();
            found.push((Some(name.clone()), [prefix.clone(), vec![name]].concat()));
        }
        UseTree::Rename(leaf) => {
            let target = [prefix.clone(), vec![leaf.ident.to_string()]].concat();
            found.push((Some(leaf.rename.to_string()), target));
        }
        UseTree::Glob(_) => found.push((None, prefix.clone())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, found)),
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .any(|a| a.path().is_ident("cfg") && a.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test"))
}

fn name_of(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(i) => i.ident.to_string(),
        Item::Enum(i) => i.ident.to_string(),
        Item::Fn(i) => i.sig.ident.to_string(),
        Item::Static(i) => i.ident.to_string(),
        Item::Struct(i) => i.ident.to_string(),
        Item::Trait(i) => i.ident.to_string(),
        Item::Type(i) => i.ident.to_string(),
        Item::Macro(i) => i.ident.as_ref()?.to_string(),
        _ => return None,
    })
}

/// Collects the paths of code, including arguments of macros.
struct Paths<'a>(&'a mut BTreeSet<ModulePath>);

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_mod(&mut self, _: &'ast syn::ItemMod) {}

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            syn::visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut found = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut found);
        self.0.extend(found.into_iter().map(|(_, target)| target));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.insert(path.segments.iter().map(|s| s.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        syn::visit::visit_macro(self, call);
    }
}

impl Paths<'_> {
    /// Identifiers joined by `::`.
    fn tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (ModulePath::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.0.insert(std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.0.insert(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.0.insert(path);
    }
}
