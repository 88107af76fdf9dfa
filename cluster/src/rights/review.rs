//! Reviews by the API server of single rights.

use std::time::Duration;

use crate::error::sentence;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::{Api, Client, api::PostParams};

use super::Right;

/// Reviews in flight at once.
const AT_ONCE: usize = 8;
/// Deadline of one review.
const LIMIT: Duration = Duration::from_secs(10);

/// Result of the review of one right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The right is granted.
    Granted,
    /// The right is missing.
    Missing,
    /// The API server gave no verdict; why.
    Unknown(String),
}

/// Reviews these rights; one verdict for each, in the same order.
pub async fn review(client: &Client, rights: &[&Right]) -> Vec<Verdict> {
    let api = Api::<SelfSubjectAccessReview>::all(client.clone());
    let one = |right: &Right| {
        let (api, request) = (api.clone(), request(right));
        async move {
            match tokio::time::timeout(LIMIT, api.create(&PostParams::default(), &request)).await {
                Ok(Ok(reviewed)) => verdict(reviewed.status),
                Ok(Err(error)) => Verdict::Unknown(sentence(&error)),
                Err(_) => Verdict::Unknown(format!("no answer within {} s", LIMIT.as_secs())),
            }
        }
    };
    let reviews: Vec<_> = rights.iter().map(|right| one(right)).collect();
    stream::iter(reviews).buffered(AT_ONCE).collect().await
}

fn request(right: &Right) -> SelfSubjectAccessReview {
    let (resource, subresource) =
        right.resource.split_once('/').map_or((right.resource, None), |(r, s)| (r, Some(s.to_owned())));
    let attributes = ResourceAttributes {
        verb: Some(right.verb.to_owned()),
        group: Some(right.group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource,
        name: right.name.clone(),
        // `None` means all namespaces
        namespace: right.namespace.clone(),
        ..ResourceAttributes::default()
    };
    let spec =
        SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..SelfSubjectAccessReviewSpec::default() };
    SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() }
}

/// The failure of an authorizer is not a refusal.
fn verdict(status: Option<SubjectAccessReviewStatus>) -> Verdict {
    let Some(status) = status else { return Verdict::Unknown("the review has no status".to_owned()) };
    match (status.allowed, status.evaluation_error.filter(|e| !e.is_empty())) {
        (true, _) => Verdict::Granted,
        (false, None) => Verdict::Missing,
        // RBAC lists missing roles as an error, but has evaluated the others
        (false, Some(error)) if error.contains("not found") => Verdict::Missing,
        (false, Some(error)) => Verdict::Unknown(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::{Line, Place, Setting, table::rights};

    #[test]
    fn request_names_subresource_object_and_namespace() {
        let table = [Line::new(&["create"], "", "pods/eviction", "drains").at(Place::Home).named("x")];
        let setting = Setting { home: "home".into(), ..Setting::default() };
        let attributes = request(rights(&table, &setting).first().unwrap()).spec.resource_attributes.unwrap();
        assert_eq!(
            (attributes.resource.as_deref(), attributes.subresource.as_deref()),
            (Some("pods"), Some("eviction"))
        );
        assert_eq!((attributes.name.as_deref(), attributes.namespace.as_deref()), (Some("x"), Some("home")));
    }

    #[test]
    fn authorizer_failure_is_unknown_and_not_missing() {
        let status = |allowed, error: &str| {
            let evaluation_error = Some(error.to_owned());
            Some(SubjectAccessReviewStatus { allowed, evaluation_error, ..SubjectAccessReviewStatus::default() })
        };
        assert_eq!(verdict(status(true, "the webhook did not answer")), Verdict::Granted);
        assert_eq!(verdict(status(false, "")), Verdict::Missing);
        assert_eq!(verdict(status(false, "clusterrole \"x\" not found")), Verdict::Missing);
        assert!(matches!(verdict(status(false, "the webhook did not answer")), Verdict::Unknown(_)));
        assert!(matches!(verdict(None), Verdict::Unknown(_)));
    }
}
