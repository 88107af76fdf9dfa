//! A mock of an API server, for tests: a function answers each request, and all requests are kept.

use std::{
    convert::Infallible,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::body::Body;
use futures::{StreamExt as _, stream};
use http::{HeaderMap, Response, StatusCode};
use kube::{Client, client};
use serde_json::{Value, json};

/// A request, as the server has received it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: String,
    /// Path of its URL.
    pub path: String,
    /// Query of its URL, without the question mark.
    pub query: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its object; null where it has none.
    pub body: Value,
}

impl Request {
    /// Method and path.
    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// The last part of the path: the name of an object, or the plural name of its type.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// A parameter of the query, as it is encoded there.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }

    /// Does it change an object?
    pub fn is_write(&self) -> bool {
        self.method != "GET"
    }

    async fn read(request: http::Request<client::Body>) -> Self {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.unwrap_or_default();
        Self {
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            headers: parts.headers,
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
        }
    }
}

/// How the server answers.
pub enum Answer {
    /// With this status code and object.
    Object(u16, Value),
    /// With this status code and text, as for a path that it does not know.
    Text(u16, String),
    /// With these lines of a watch, which then stays open.
    Watch(Box<dyn Iterator<Item = String> + Send>),
    /// It does what was asked, and the answer is lost.
    Lost,
    /// Never.
    Never,
}

impl Answer {
    /// The answer to a deletion.
    pub fn success() -> Self {
        Self::Object(200, json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"}))
    }

    /// These objects.
    pub fn list(items: impl IntoIterator<Item = Value>) -> Self {
        let items: Vec<Value> = items.into_iter().collect();
        Self::Object(200, json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}))
    }

    /// A refusal.
    pub fn failure(code: u16, reason: &str, message: &str) -> Self {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
            "code": code, "reason": reason, "message": message,
        });
        Self::Object(code, status)
    }

    /// The object does not exist.
    pub fn not_found() -> Self {
        Self::failure(404, "NotFound", "not found")
    }

    async fn response(self) -> Result<Response<Body>, io::Error> {
        let (code, body) = match self {
            Self::Object(code, object) => (code, Body::from(object.to_string().into_bytes())),
            Self::Text(code, text) => (code, Body::from(text.into_bytes())),
            Self::Watch(lines) => {
                let open = stream::iter(lines.map(Ok::<_, Infallible>)).chain(stream::pending());
                (200, Body::from_stream(open))
            }
            Self::Lost => return Err(io::Error::other("connection reset")),
            Self::Never => return std::future::pending().await,
        };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(code).map_err(io::Error::other)?;
        Ok(response)
    }
}

impl From<Value> for Answer {
    fn from(object: Value) -> Self {
        Self::Object(200, object)
    }
}

/// The server. A clone is the same server.
#[derive(Clone)]
pub struct MockServer {
    answer: Arc<dyn Fn(&Request) -> Answer + Send + Sync>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl fmt::Debug for MockServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MockServer").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl MockServer {
    /// A server that answers by this function.
    pub fn new<A: Into<Answer>>(answer: impl Fn(&Request) -> A + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(move |request| answer(request).into()), requests: Arc::default() }
    }

    /// A client of it, whose own namespace is `default`.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let serve = move |request| {
            let server = server.clone();
            async move {
                let request = Request::read(request).await;
                let answer = (server.answer)(&request);
                server.kept().push(request);
                answer.response().await
            }
        };
        Client::new(tower::service_fn(serve), "default")
    }

    /// All requests since the last call.
    pub fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *self.kept())
    }

    /// Number of requests that match.
    pub fn count(&self, matches: impl Fn(&Request) -> bool) -> usize {
        self.kept().iter().filter(|request| matches(request)).count()
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::{Api, api::ListParams};

    use super::*;

    #[tokio::test]
    async fn answers_are_those_of_the_function_and_requests_are_kept() {
        let server = MockServer::new(|request: &Request| match request.name() {
            "pods" => Answer::list([json!({"metadata": {"name": "a"}})]),
            "lost" => Answer::Lost,
            _ => Answer::not_found(),
        });
        let pods = Api::<Pod>::namespaced(server.client(), "team");
        assert_eq!(pods.list(&ListParams::default().limit(7)).await.unwrap().items.len(), 1);
        assert!(pods.get_opt("b").await.unwrap().is_none());
        assert!(pods.get("lost").await.unwrap_err().to_string().contains("reset"));
        assert_eq!(server.count(Request::is_write), 0);
        let requests = server.take();
        assert_eq!(requests[0].line(), "GET /api/v1/namespaces/team/pods");
        assert_eq!((requests[0].parameter("limit"), requests[0].parameter("lim")), (Some("7"), None));
        assert_eq!((requests.len(), server.take().len()), (3, 0));
    }
}
