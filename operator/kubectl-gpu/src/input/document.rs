//! Documents as objects of the kinds that a plan depends on.

use gputenancy_crds::{
    GpuNode, GpuPool, GpuProfile, GpuTenant,
    manifest::USERS_WRITE,
    projection::{SlimNode, SlimSlice},
};
use gputenancy_decisions::maintenance::MaintenanceRequest;
use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::{Finding, Located, Text, error::InputError, located::token, schema, structure};
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
    /// Maintenance of a node that is announced to `NVSentinel`.
    Maintenance(Box<MaintenanceRequest>),
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

/// Where an object comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A manifest, which the API server will check.
    Manifest,
    /// A snapshot, of objects that the API server has accepted, by this or an earlier version of the rules.
    Snapshot,
}

/// All documents of files, sorted by their use.
#[derive(Debug, Default)]
pub struct Classified {
    /// Objects that a plan depends on; outside snapshots, pods are not among them.
    pub reading: Reading,
    /// The profiles, pools and tenants of `reading` as they are written.
    pub ours: Vec<Located>,
    /// The same with those that cannot be read, outside snapshots.
    pub written: Vec<Located>,
    /// Documents of other kinds.
    pub others: Vec<Located>,
    /// Mistakes.
    pub errors: Vec<Finding>,
    /// Documents without a kind.
    pub unknown: usize,
    /// All documents of the files; a list counts as its items.
    pub count: usize,
}

/// Reads all documents of all files, as [`documents`] does, and continues after a mistake.
pub fn classify(texts: &[Text]) -> Classified {
    let mut classified = Classified::default();
    classified.each(texts, Classified::sort);
    classified
}

/// All documents of all files as plain values.
pub fn values(texts: &[Text]) -> Result<Vec<Value>, InputError> {
    let mut classified = Classified::default();
    classified.each(texts, |classified, document| classified.others.push(document));
    classified.checked().map(|read| read.others.into_iter().map(|d| d.value).collect())
}

/// Reads all documents of all files, lists and snapshots opened up; or every mistake in them.
pub fn documents(texts: &[Text]) -> Result<Reading, InputError> {
    let mut classified = Classified::default();
    classified.each(texts, |classified, document| classified.open(document, Source::Manifest));
    classified.checked().map(|read| read.reading)
}

impl Classified {
    fn checked(self) -> Result<Self, InputError> {
        if self.errors.is_empty() { Ok(self) } else { Err(InputError::Mistakes(self.errors)) }
    }

    fn each(&mut self, texts: &[Text], take: impl Fn(&mut Self, Located)) {
        let mut nothing = true;
        for text in texts {
            match Located::read(text) {
                Ok(documents) => {
                    nothing &= documents.iter().all(|document| document.value.is_null());
                    for document in documents {
                        take(self, document);
                    }
                }
                Err(error) => {
                    nothing = false;
                    self.errors.push(error);
                }
            }
        }
        // a pipe whose first program failed must not look like manifests without a mistake
        if let (true, Some(text)) = (nothing, texts.first()) {
            self.errors.push(Finding {
                file: text.name.clone(),
                line: 1,
                object: String::new(),
                field: String::new(),
                message: "there is no object in the input: name files with manifests, or see why the command before the pipe wrote none"
                    .to_owned(),
            });
        }
    }

    fn sort(&mut self, document: Located) {
        let (version, kind) = (document.text("/apiVersion").unwrap_or_default(), document.text("/kind"));
        if (version, kind) == ("v1", Some("List")) {
            document.into_items().for_each(|item| self.sort(item));
            return;
        }
        if document.value.is_null() {
            return;
        }
        self.count += 1;
        match (version, kind) {
            ("v1", Some("Node")) | ("resource.k8s.io/v1", Some("ResourceSlice")) => {
                self.open(document, Source::Manifest);
            }
            (version, Some(_)) if version.starts_with(GROUP) => self.open(document, Source::Manifest),
            (_, Some(_)) => self.others.push(document),
            (_, None) if document.value.is_object() => self.unknown += 1,
            (_, None) => {
                let message = "is no object: write apiVersion, kind, metadata and spec, as kubectl takes it";
                self.errors.push(Finding { object: String::new(), ..document.finding("", message) });
            }
        }
    }

    fn open(&mut self, document: Located, source: Source) {
        if let Err(error) = self.try_open(document, source) {
            self.errors.push(error);
        }
    }

    fn try_open(&mut self, document: Located, source: Source) -> Result<(), Finding> {
        let text = |field: &str| {
            let missing = || document.finding(field, "is missing: write the object as kubectl takes it");
            document.text(field).ok_or_else(missing)
        };
        let (kind, version) = (text("/kind")?, text("/apiVersion")?);
        let ours = version == GROUP || version.starts_with(&format!("{GROUP}/"));
        if ours && version != VERSION {
            return Err(document.finding("/apiVersion", format!("\"{version}\" is not known: write {VERSION}")));
        }
        let object = match (version, kind) {
            (VERSION, "PlanSnapshot") | ("v1", "List") => {
                match document.text("/takenAt").map(str::parse) {
                    None => {}
                    Some(Ok(time)) => self.reading.taken_at = Some(time),
                    Some(Err(_)) => {
                        let message = "is no time: write it like 2026-11-21T08:00:00Z";
                        self.errors.push(document.finding("/takenAt", message));
                    }
                }
                let source = if kind == "PlanSnapshot" { Source::Snapshot } else { source };
                document.into_items().for_each(|item| self.open(item, source));
                return Ok(());
            }
            (VERSION, "GpuProfile") => typed(&document).map(Object::Profile),
            (VERSION, "GpuPool") => typed(&document).map(Object::Pool),
            (VERSION, "GpuTenant") => typed(&document).map(Object::Tenant),
            (VERSION, "GpuNode") => typed(&document).map(Object::GpuNode),
            ("v1", "Node") => typed(&document).map(Object::Node),
            ("resource.k8s.io/v1", "ResourceSlice") => typed(&document).map(Object::Slice),
            (MaintenanceRequest::API_VERSION, "MaintenanceRequest") => typed(&document).map(Object::Maintenance),
            ("v1", "Pod") => typed(&document).map(Object::Pod),
            ("policy/v1", "PodDisruptionBudget") => typed(&document).map(Object::Budget),
            _ if ours => {
                let message = format!("\"{kind}\" is not known: write GpuProfile, GpuPool or GpuTenant");
                return Err(document.finding("/kind", message));
            }
            _ => {
                self.reading.ignored.push(document.object());
                return Ok(());
            }
        };
        let users_write = USERS_WRITE.contains(&kind);
        let nameless = document.text("/metadata/name").is_none_or(str::is_empty);
        let mut refused = Vec::new();
        if nameless {
            let message = "is missing, or no text: words like n and on need quotes";
            refused.push(("/metadata/name".to_owned(), message.to_owned()));
        }
        if users_write && source == Source::Manifest {
            refused.extend(structure::metadata(&document.value));
        }
        if source == Source::Manifest {
            refused.extend(schema::check(kind, &document.value));
        }
        if users_write && source == Source::Manifest {
            self.written.push(document.clone());
        }
        let found = !refused.is_empty();
        self.errors.extend(refused.into_iter().map(|(pointer, message)| document.finding(&pointer, message)));
        let object = match object {
            // there is already a finding about it
            Err(_) if found => return Ok(()),
            object => object?,
        };
        if nameless {
            return Ok(());
        }
        self.reading.documents.push(Document { file: document.file.clone(), line: document.line(""), object });
        if users_write {
            self.ours.push(document);
        }
        Ok(())
    }
}

fn typed<K: DeserializeOwned>(document: &Located) -> Result<Box<K>, Finding> {
    serde_path_to_error::deserialize(&document.value).map(Box::new).map_err(|error| {
        let pointer: String = error.path().iter().filter_map(segment).collect();
        document.finding(&pointer, error.inner().to_string())
    })
}

fn segment(segment: &Segment) -> Option<String> {
    match segment {
        Segment::Map { key: name } | Segment::Enum { variant: name } => Some(format!("/{}", token(name))),
        Segment::Seq { index } => Some(format!("/{index}")),
        Segment::Unknown => None,
    }
}
