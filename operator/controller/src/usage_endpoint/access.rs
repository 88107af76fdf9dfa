//! Who calls, and whether they may read the tenant: both are the API server's answers, so that one rule of RBAC serves `kubectl get gputenant` and
//! this endpoint.

use std::time::Duration;

use axum::{
    extract::{FromRequestParts, Path},
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use gputenancy_cluster::error::sentence;
use gputenancy_crds::GROUP;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::Semaphore, time::timeout};

use crate::object_name::ObjectName;

/// Longest token that is sent to the API server, in bytes; one of a `ServiceAccount` has about 1,000.
const LONGEST: usize = 16 << 10;
/// Longest time of both reviews, with the wait for those of other requests: a scrape ends after 10 s.
const LONGEST_REVIEW: Duration = Duration::from_secs(5);

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No `GpuTenant` can have the name in the path. The message does not repeat it: it may be long, or contain line breaks.
    #[error("the path has no valid name of a GpuTenant: send GET /tenants/NAME/metrics")]
    InvalidName,
    /// The request has no token.
    #[error(
        "no bearer token: send the header Authorization: Bearer TOKEN, such as the output of kubectl create token SERVICEACCOUNT"
    )]
    NoToken,
    /// The API server does not know the token.
    #[error("the API server does not accept the token: make a new one, without --audience")]
    InvalidToken,
    /// The right is missing, or the tenant does not exist: which of both is not shown to others.
    #[error(
        "{user} may not get gputenants.gputenancy.io \"{tenant}\": name it in spec.owners or spec.viewers of the GpuTenant, or bind a ClusterRole with that right"
    )]
    Forbidden {
        /// The caller.
        user: String,
        /// The tenant's name in the path.
        tenant: ObjectName,
    },
    /// The API server does not answer.
    #[error("{}", sentence(.0))]
    ApiServer(#[from] kube::Error),
    /// The API server is too slow, or has too many reviews of this endpoint.
    #[error("the API server has not reviewed the token within {} s: repeat later", LONGEST_REVIEW.as_secs())]
    SlowReview,
    /// The caller may read the tenant, but there is none.
    #[error("GpuTenant {0} does not exist")]
    NoTenant(String),
    /// Nothing is known of the agents.
    #[error("the operator does not watch the agents' pods: set AGENT_SELECTOR, as the chart does")]
    NoAgents,
    /// Another request for the tenant is being answered by this replica.
    #[error("another request for this tenant is being answered: repeat after it")]
    Busy,
    /// This replica is answering requests for as many other tenants as it may at once.
    #[error("this replica is answering requests for other tenants: repeat later")]
    Full,
    /// The answer would be too long.
    #[error("the tenant has more than {0} series: read them from the platform's Prometheus")]
    TooLong(usize),
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::NoToken | Self::InvalidToken => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::InvalidName | Self::NoTenant(_) => StatusCode::NOT_FOUND,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::TooLong(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::ApiServer(_) | Self::SlowReview | Self::Full | Self::NoAgents => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, format!("{self}\n")).into_response()
    }
}

/// The tenant's name in the path, decoded. Only a name that an object can have is reviewed: a review without a name is one of all tenants.
#[derive(Debug)]
pub struct TenantName(pub ObjectName);

impl<S: Send + Sync> FromRequestParts<S> for TenantName {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let name = path.ok().and_then(|Path(name)| ObjectName::parse(&name));
        name.map(Self).ok_or(Refusal::InvalidName)
    }
}

/// The token of the request.
pub fn token(headers: &HeaderMap) -> Result<&str, Refusal> {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let (scheme, token) = value.and_then(|value| value.split_once(' ')).ok_or(Refusal::NoToken)?;
    let token = token.trim();
    let good = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty();
    match (good, token.len() <= LONGEST) {
        (false, _) => Err(Refusal::NoToken),
        (true, false) => Err(Refusal::InvalidToken),
        (true, true) => Ok(token),
    }
}

/// The caller may read this tenant. `reviews` bounds the requests that are reviewed at once; others wait.
pub async fn review(client: &Client, reviews: &Semaphore, token: &str, tenant: &ObjectName) -> Result<(), Refusal> {
    let reviewed = async {
        // never closed
        let _review = reviews.acquire().await.ok();
        check(client, token, tenant).await
    };
    timeout(LONGEST_REVIEW, reviewed).await.unwrap_or(Err(Refusal::SlowReview))
}

async fn check(client: &Client, token: &str, tenant: &ObjectName) -> Result<(), Refusal> {
    let user = caller(client, token).await?;
    let name = user.username.clone().unwrap_or_default();
    if may_read(client, user, tenant).await? {
        return Ok(());
    }
    Err(Refusal::Forbidden { user: name, tenant: tenant.clone() })
}

async fn caller(client: &Client, token: &str) -> Result<UserInfo, Refusal> {
    let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
    let review = TokenReview { spec, ..TokenReview::default() };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
    let status = answer.status.unwrap_or_default();
    match (status.authenticated, status.user) {
        (Some(true), Some(user)) => Ok(user),
        _ => Err(Refusal::InvalidToken),
    }
}

async fn may_read(client: &Client, user: UserInfo, tenant: &ObjectName) -> Result<bool, Refusal> {
    let UserInfo { username, uid, groups, extra } = user;
    let attributes = ResourceAttributes {
        group: Some(GROUP.to_owned()),
        resource: Some("gputenants".to_owned()),
        name: Some(tenant.as_str().to_owned()),
        verb: Some("get".to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        user: username,
        uid,
        groups,
        extra,
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use axum::{
        Router,
        body::{Body, to_bytes},
        http::Request,
        routing::get,
    };
    use gputenancy_cluster::testing::{self, Answer, MockServer};
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;
    use serde_json::json;

    use super::*;

    fn of(value: &str) -> HeaderMap {
        [(header::AUTHORIZATION, value.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn only_a_bearer_token_of_a_sensible_length_is_a_token() {
        assert_eq!(token(&of("Bearer abc")).unwrap(), "abc");
        assert_eq!(token(&of("bearer  abc ")).unwrap(), "abc");
        for none in ["Basic abc", "Bearer", "Bearer ", ""] {
            assert!(matches!(token(&of(none)), Err(Refusal::NoToken)), "{none}");
        }
        assert!(matches!(token(&HeaderMap::new()), Err(Refusal::NoToken)));
        assert!(matches!(token(&of(&format!("Bearer {}", "a".repeat(LONGEST + 1)))), Err(Refusal::InvalidToken)));
    }

    /// Status and text of the answer to `GET /tenants/NAME/metrics`, which is the name where it is valid.
    async fn answer(name: &str) -> (StatusCode, String) {
        let echo = |TenantName(name): TenantName| async move { name.to_string() };
        let router: Router = Router::new().route("/tenants/{tenant}/metrics", get(echo));
        let request = Request::get(format!("/tenants/{name}/metrics")).body(Body::empty()).unwrap();
        let response = TowerToHyperService::new(router).call(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 16).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn name_that_no_tenant_can_have_is_not_found_and_not_repeated() {
        let long = "a".repeat(9000);
        for name in ["", &long, "Team-A", "a%0Ab", "a%0A", "%00", "%20", "%FF", "%zz", "%2E%2E", "a%2Fb", "a%3Fb"] {
            let (status, text) = answer(name).await;
            assert_eq!((status, text), (StatusCode::NOT_FOUND, format!("{}\n", Refusal::InvalidName)), "{name}");
        }
    }

    #[tokio::test]
    async fn name_of_a_tenant_is_decoded() {
        for name in ["team-a", "team%2Da", "%74eam-a"] {
            assert_eq!(answer(name).await, (StatusCode::OK, "team-a".to_owned()), "{name}");
        }
    }

    async fn reviewed(server: &MockServer) -> Result<(), Refusal> {
        review(&server.client(), &Semaphore::new(1), "token", &ObjectName::parse("team-a").unwrap()).await
    }

    #[tokio::test]
    async fn review_has_the_name_of_the_tenant_and_the_answer_is_the_api_servers() {
        for allowed in [true, false] {
            let server = MockServer::new(move |request: &testing::Request| {
                let mut object = request.body.clone();
                object["status"] = match request.name() {
                    "tokenreviews" => json!({"authenticated": true, "user": {"username": "reader"}}),
                    _ => json!({"allowed": allowed}),
                };
                object
            });
            let result = reviewed(&server).await;
            assert_eq!(result.is_ok(), allowed, "{result:?}");
            assert!(matches!(result, Ok(()) | Err(Refusal::Forbidden { .. })), "{result:?}");
            let requests = server.take();
            assert_eq!(requests.len(), 2, "{requests:?}");
            assert_eq!(requests[1].body["spec"]["resourceAttributes"]["name"], "team-a");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn review_ends_when_the_api_server_does_not_answer() {
        let server = MockServer::new(|_: &testing::Request| Answer::Never);
        let result = reviewed(&server).await;
        assert!(matches!(result, Err(Refusal::SlowReview)), "{result:?}");
        assert_eq!(Refusal::SlowReview.into_response().status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
