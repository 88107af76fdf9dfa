//! Requests under another identity: agent, operator or a person.

use http::Request;
use kube::{Client, core::Status};
use serde_json::Value;

use crate::{Error, Result, objects::ensure, product};

/// The identity of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The administrator of the lab.
    Admin,
    /// The operator's `ServiceAccount`.
    Operator,
    /// The agent's `ServiceAccount`, with a token made for a pod on this node.
    Agent(&'static str),
    /// The agent's `ServiceAccount`, with a token that names no node.
    AgentWithoutNode,
    /// A `ServiceAccount`, by namespace and name.
    Account(&'static str, &'static str),
    /// A person, by name and groups.
    Person(&'static str, &'static [&'static str]),
}

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Create an object; the path is that of the collection.
    Create,
    /// Server-side apply.
    Apply,
    /// Merge patch.
    Merge,
    /// Delete.
    Delete,
}

impl Actor {
    fn headers(&self) -> Vec<(&'static str, String)> {
        let account = |name: &str| ("Impersonate-User", format!("system:serviceaccount:{}:{name}", product::NAMESPACE));
        let node = |node: &str| ("Impersonate-Extra-authentication.kubernetes.io%2Fnode-name", node.to_owned());
        match self {
            Self::Admin => vec![],
            Self::Operator => vec![account("gputenancy-operator")],
            Self::Agent(name) => vec![account("gputenancy-agent"), node(name)],
            Self::AgentWithoutNode => vec![account("gputenancy-agent")],
            Self::Account(namespace, name) => {
                vec![("Impersonate-User", format!("system:serviceaccount:{namespace}:{name}"))]
            }
            Self::Person(name, groups) => {
                let user = ("Impersonate-User", (*name).to_owned());
                std::iter::once(user).chain(groups.iter().map(|g| ("Impersonate-Group", (*g).to_owned()))).collect()
            }
        }
    }

    /// Sends a dry run: the object as it would be, or the API server's refusal.
    pub async fn may(
        &self,
        client: &Client,
        verb: Verb,
        path: &str,
        body: &Value,
    ) -> Result<std::result::Result<Value, Status>> {
        self.send(client, verb, &format!("{path}?dryRun=All"), body).await
    }

    /// Sends a request that must succeed, and returns its object.
    pub async fn does(&self, client: &Client, verb: Verb, path: &str, body: &Value) -> Result<Value> {
        let answer = self.send(client, verb, &format!("{path}?"), body).await?;
        answer.map_err(|status| Error::Wrong(format!("{self:?} {verb:?} {path}: {}", status.message)))
    }

    /// Sends a dry run and checks that it is refused with a message that contains `refusal`, or admitted if there is none.
    pub async fn check(
        &self,
        client: &Client,
        verb: Verb,
        path: &str,
        body: &Value,
        refusal: Option<&str>,
    ) -> Result<()> {
        let answer = self.may(client, verb, path, body).await?.map(drop).map_err(|status| status.message);
        let right = match (&answer, refusal) {
            (Ok(()), None) => true,
            (Err(message), Some(excerpt)) => message.contains(excerpt),
            _ => false,
        };
        ensure(right, format!("{self:?} {verb:?} {path}: expected {refusal:?}, got {answer:?}; body {body}"))
    }

    async fn send(
        &self,
        client: &Client,
        verb: Verb,
        path: &str,
        body: &Value,
    ) -> Result<std::result::Result<Value, Status>> {
        let (method, content, query) = match verb {
            Verb::Create => ("POST", "application/json", "&fieldValidation=Strict"),
            Verb::Apply => ("PATCH", "application/apply-patch+yaml", "&fieldManager=e2e&force=true"),
            Verb::Merge => ("PATCH", "application/merge-patch+json", ""),
            Verb::Delete => ("DELETE", "application/json", ""),
        };
        let mut request =
            Request::builder().method(method).uri(format!("{path}{query}")).header("Content-Type", content);
        for (name, value) in self.headers() {
            request = request.header(name, value);
        }
        let bytes = if verb == Verb::Delete { vec![] } else { body.to_string().into_bytes() };
        let request = request.body(bytes).map_err(|e| Error::Text { what: "a request".into(), why: e.to_string() })?;
        match client.request::<Value>(request).await {
            Ok(object) => Ok(Ok(object)),
            Err(kube::Error::Api(status)) => Ok(Err(*status)),
            Err(other) => Err(other.into()),
        }
    }
}

/// A request with a name: identity, request, and an excerpt of the refusal; `None`: admitted.
pub type Case = (&'static str, Actor, Verb, String, Value, Option<&'static str>);

/// Checks all cases and reports those that fail together.
pub async fn check_all(client: &Client, cases: Vec<Case>) -> Result<()> {
    let mut failures = Vec::new();
    for (name, actor, verb, path, body, refusal) in cases {
        if let Err(error) = actor.check(client, verb, &path, &body, refusal).await {
            failures.push(format!("{name}: {error}"));
        }
    }
    ensure(failures.is_empty(), failures.join("\n"))
}
