//! Requests as another identity: what the API server lets an agent, the operator or a person do.

use http::Request;
use kube::{Client, core::Status};
use serde_json::Value;

use crate::{Error, Result, product};

/// The identity that asks.
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
    /// A person, by name and groups.
    Person(&'static str, &'static [&'static str]),
}

/// What is asked.
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
            Self::Person(name, groups) => {
                let user = ("Impersonate-User", (*name).to_owned());
                std::iter::once(user).chain(groups.iter().map(|g| ("Impersonate-Group", (*g).to_owned()))).collect()
            }
        }
    }

    /// Asks, without changing anything (`dryRun=All`): the object as it would be, or the API server's refusal.
    pub async fn may(
        &self,
        client: &Client,
        verb: Verb,
        path: &str,
        body: &Value,
    ) -> Result<std::result::Result<Value, Status>> {
        self.ask(client, verb, &format!("{path}?dryRun=All"), body).await
    }

    /// Asks and means it.
    pub async fn does(
        &self,
        client: &Client,
        verb: Verb,
        path: &str,
        body: &Value,
    ) -> Result<std::result::Result<Value, Status>> {
        self.ask(client, verb, &format!("{path}?"), body).await
    }

    async fn ask(
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
