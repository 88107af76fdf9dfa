//! Who calls, and whether they may read the tenant: both are the API server's answers, so that one rule of RBAC serves `kubectl get gputenant` and
//! this endpoint.

use axum::{
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use gputenancy_cluster::error::sentence;
use gputenancy_crds::GROUP;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};

/// Longest token that is sent to the API server, in bytes; one of a `ServiceAccount` has about 1,000.
const LONGEST: usize = 16 << 10;

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
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
        /// The tenant's name as asked for.
        tenant: String,
    },
    /// The API server does not answer.
    #[error("{}", sentence(.0))]
    ApiServer(#[from] kube::Error),
    /// The caller may read the tenant, but there is none.
    #[error("GpuTenant {0} does not exist")]
    NoTenant(String),
    /// Nothing is known of the agents.
    #[error("the operator does not watch the agents' pods: set AGENT_SELECTOR, as the chart does")]
    NoAgents,
    /// Another request for the tenant is being answered by this replica.
    #[error("another request for this tenant is being answered: repeat after it")]
    Busy,
    /// The answer would be too long.
    #[error("the tenant has more than {0} series: read them from the platform's Prometheus")]
    TooLong(usize),
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::NoToken | Self::InvalidToken => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::NoTenant(_) => StatusCode::NOT_FOUND,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::TooLong(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::ApiServer(_) | Self::NoAgents => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, format!("{self}\n")).into_response()
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

/// The caller may read this tenant.
pub async fn check(client: &Client, token: &str, tenant: &str) -> Result<(), Refusal> {
    let user = caller(client, token).await?;
    let name = user.username.clone().unwrap_or_default();
    if may_read(client, user, tenant).await? {
        return Ok(());
    }
    Err(Refusal::Forbidden { user: name, tenant: tenant.to_owned() })
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

async fn may_read(client: &Client, user: UserInfo, tenant: &str) -> Result<bool, Refusal> {
    let UserInfo { username, uid, groups, extra } = user;
    let attributes = ResourceAttributes {
        group: Some(GROUP.to_owned()),
        resource: Some("gputenants".to_owned()),
        name: Some(tenant.to_owned()),
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
}
