//! Documents as objects of the kinds that a plan depends on.

use gputenancy_crds::{GpuNode, GpuPool, GpuProfile, GpuTenant};
use gputenancy_operator::cache::{SlimNode, SlimSlice};
use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::{
    InputError, InputErrors, Text, schema,
    tree::{self, Step, Tree},
};
use crate::records::{BudgetRecord, PodRecord};

const GROUP: &str = "gputenancy.io";
const VERSION: &str = "gputenancy.io/v1alpha1";

/// An object and its place.
#[derive(Clone, Debug)]
pub struct Document {
    /// The file.
    pub file: String,
    /// Line on which it begins, from 1.
    pub line: u64,
    /// The object.
    pub object: Object,
}

/// An object that a plan depends on.
#[derive(Clone, Debug)]
pub enum Object {
    /// A `GpuProfile`.
    Profile(Box<GpuProfile>),
    /// A `GpuPool`.
    Pool(Box<GpuPool>),
    /// A `GpuTenant`.
    Tenant(Box<GpuTenant>),
    /// A `GpuNode`.
    GpuNode(Box<GpuNode>),
    /// A Node.
    Node(Box<SlimNode>),
    /// Devices of a DRA driver.
    Slice(Box<SlimSlice>),
    /// A pod.
    Pod(Box<PodRecord>),
    /// A `PodDisruptionBudget`.
    Budget(Box<BudgetRecord>),
}

/// Objects of files.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The objects, in the order of the input.
    pub documents: Vec<Document>,
    /// Time of a snapshot among them.
    pub taken_at: Option<Timestamp>,
    /// Objects of other kinds, as `kind name`; a plan does not depend on them.
    pub ignored: Vec<String>,
}

/// A document with its place.
#[derive(Clone, Debug)]
pub struct Other {
    /// The file.
    pub file: String,
    /// Its content.
    pub tree: Tree,
}

/// All documents of files, sorted by their use.
#[derive(Debug, Default)]
pub struct Sifted {
    /// Objects that a plan depends on, but for pods.
    pub reading: Reading,
    /// The same documents as trees.
    pub ours: Vec<Other>,
    /// Documents of other kinds.
    pub others: Vec<Other>,
    /// Mistakes.
    pub errors: Vec<InputError>,
    /// Documents without a kind.
    pub unknown: usize,
}

/// Reads all documents of all files, as [`documents`] does, and continues after a mistake.
pub fn sift(texts: &[Text]) -> Sifted {
    let mut sifted = Sifted::default();
    for text in texts {
        match trees(text) {
            Ok(trees) => trees.into_iter().for_each(|tree| sort(text, tree, &mut sifted)),
            Err(error) => sifted.errors.push(error),
        }
    }
    sifted
}

fn sort(text: &Text, tree: Tree, sifted: &mut Sifted) {
    let (kind, version) = (tree.text("kind"), tree.text("apiVersion").unwrap_or_default());
    let planned = [("v1", "Node"), ("resource.k8s.io/v1", "ResourceSlice")];
    match kind {
        Some("List") if version == "v1" => {
            let items = tree.field("items").map(Tree::items).unwrap_or_default();
            for item in items {
                sort(text, item.clone(), sifted);
            }
        }
        Some(kind) if planned.contains(&(version, kind)) || version.starts_with(GROUP) => {
            open(text, &tree, &mut sifted.reading, &mut sifted.errors);
            sifted.ours.push(Other { file: text.name.clone(), tree });
        }
        Some(_) => sifted.others.push(Other { file: text.name.clone(), tree }),
        None => sifted.unknown += 1,
    }
}

fn trees(text: &Text) -> Result<Vec<Tree>, InputError> {
    // a snapshot of a large fleet is larger than the parser's limits for configuration files
    let options = serde_saphyr::options! { budget: None, with_snippet: false };
    serde_saphyr::from_multiple_with_options::<Tree>(&text.text, options).map_err(|error| InputError::Syntax {
        file: text.name.clone(),
        line: error.location().map_or(1, |l| l.line()),
        what: error.without_snippet().to_string(),
    })
}

/// All documents of all files as plain values.
pub fn values(texts: &[Text]) -> Result<Vec<Value>, InputErrors> {
    let mut values = Vec::new();
    for text in texts {
        values.extend(trees(text)?.iter().map(Tree::value));
    }
    Ok(values)
}

/// Reads all documents of all files, lists and snapshots opened up; or every mistake in them.
pub fn documents(texts: &[Text]) -> Result<Reading, InputErrors> {
    let (mut reading, mut errors) = (Reading::default(), Vec::new());
    for text in texts {
        match trees(text) {
            Ok(trees) => trees.iter().for_each(|tree| open(text, tree, &mut reading, &mut errors)),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(reading) } else { Err(InputErrors(errors)) }
}

fn open(text: &Text, tree: &Tree, reading: &mut Reading, errors: &mut Vec<InputError>) {
    let place = Place { file: &text.name, tree };
    let (Some(kind), Some(version)) = (tree.text("kind"), tree.text("apiVersion")) else {
        let missing = if tree.text("kind").is_none() { "kind" } else { "apiVersion" };
        errors.push(place.wrong(&[], missing, "is missing: write the object as kubectl takes it"));
        return;
    };
    let ours = version == GROUP || version.starts_with(&format!("{GROUP}/"));
    if ours && version != VERSION {
        errors.push(place.wrong(
            &[Step::Field("apiVersion".into())],
            "apiVersion",
            &format!("\"{version}\" is not known: write {VERSION}"),
        ));
        return;
    }
    let object = match (version, kind) {
        (VERSION, "PlanSnapshot") | ("v1", "List") => {
            match tree.text("takenAt").map(str::parse) {
                None => {}
                Some(Ok(time)) => reading.taken_at = Some(time),
                Some(Err(_)) => {
                    let path = [Step::Field("takenAt".into())];
                    errors.push(place.wrong(&path, "takenAt", "is no time: write it like 2026-11-21T08:00:00Z"));
                }
            }
            let items = tree.field("items").map(Tree::items).unwrap_or_default();
            for item in items {
                open(text, item, reading, errors);
            }
            return;
        }
        (VERSION, "GpuProfile") => place.typed().map(Object::Profile),
        (VERSION, "GpuPool") => place.typed().map(Object::Pool),
        (VERSION, "GpuTenant") => place.typed().map(Object::Tenant),
        (VERSION, "GpuNode") => place.typed().map(Object::GpuNode),
        ("v1", "Node") => place.typed().map(Object::Node),
        ("resource.k8s.io/v1", "ResourceSlice") => place.typed().map(Object::Slice),
        ("v1", "Pod") => place.typed().map(Object::Pod),
        ("policy/v1", "PodDisruptionBudget") => place.typed().map(Object::Budget),
        _ if ours => Err(place.wrong(
            &[Step::Field("kind".into())],
            "kind",
            &format!("\"{kind}\" is not known: write GpuProfile, GpuPool or GpuTenant"),
        )),
        _ => {
            reading.ignored.push(place.object());
            return;
        }
    };
    let limits = schema::check(kind, &tree.value());
    errors.extend(limits.into_iter().map(|m| place.wrong(&m.path, &tree::written(&m.path), &m.what)));
    match object {
        Ok(object) => reading.documents.push(Document { file: text.name.clone(), line: tree.line, object }),
        Err(error) => errors.push(error),
    }
}

/// A document being read.
struct Place<'a> {
    file: &'a str,
    tree: &'a Tree,
}

impl Place<'_> {
    fn object(&self) -> String {
        let name = self.tree.field("metadata").and_then(|m| m.text("name")).unwrap_or("(no name)");
        format!("{} {name}", self.tree.text("kind").unwrap_or("object"))
    }

    fn wrong(&self, path: &[Step], field: &str, what: &str) -> InputError {
        InputError::Field {
            file: self.file.to_owned(),
            line: self.tree.line_of(path),
            object: self.object(),
            field: field.to_owned(),
            what: what.to_owned(),
        }
    }

    fn typed<K: DeserializeOwned>(&self) -> Result<Box<K>, InputError> {
        let name = self.tree.field("metadata").and_then(|m| m.text("name")).unwrap_or_default();
        if name.is_empty() {
            return Err(self.wrong(
                &[Step::Field("metadata".into())],
                "metadata.name",
                "is missing, or no text: words like n and on need quotes",
            ));
        }
        let read: Result<K, _> = serde_path_to_error::deserialize(self.tree.value());
        read.map(Box::new).map_err(|error| {
            let path: Vec<Step> = error.path().iter().filter_map(step).collect();
            let field = error.path().to_string();
            self.wrong(&path, &field, &error.inner().to_string())
        })
    }
}

fn step(segment: &Segment) -> Option<Step> {
    match segment {
        Segment::Map { key } => Some(Step::Field(key.clone())),
        Segment::Enum { variant } => Some(Step::Field(variant.clone())),
        Segment::Seq { index } => Some(Step::Item(*index)),
        Segment::Unknown => None,
    }
}
