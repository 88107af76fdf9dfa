//! Questions to the API server.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::{Api, Client, api::PostParams};

use crate::Right;

/// Questions at once.
const AT_ONCE: usize = 8;
/// The longest wait for one answer.
const LIMIT: Duration = Duration::from_secs(10);

/// What the API server says about a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is there.
    Yes,
    /// It is missing.
    No,
    /// There was no answer, and why.
    Unknown(String),
}

/// Asks about each of these rights; as many answers, in the same order.
pub async fn ask(client: &Client, rights: &[&Right]) -> Vec<Answer> {
    let api = Api::<SelfSubjectAccessReview>::all(client.clone());
    let one = |right: &Right| {
        let (api, review) = (api.clone(), review(right));
        async move {
            match tokio::time::timeout(LIMIT, api.create(&PostParams::default(), &review)).await {
                Ok(Ok(answered)) => judged(answered.status),
                Ok(Err(error)) => Answer::Unknown(error.to_string()),
                Err(_) => Answer::Unknown(format!("no answer within {} s", LIMIT.as_secs())),
            }
        }
    };
    let questions: Vec<_> = rights.iter().map(|right| one(right)).collect();
    stream::iter(questions).buffered(AT_ONCE).collect().await
}

fn review(right: &Right) -> SelfSubjectAccessReview {
    let (resource, subresource) =
        right.resource.split_once('/').map_or((right.resource, None), |(r, s)| (r, Some(s.to_owned())));
    let attributes = ResourceAttributes {
        verb: Some(right.verb.to_owned()),
        group: Some(right.group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource,
        name: right.name.clone(),
        // none: all namespaces
        namespace: right.namespace.clone(),
        ..ResourceAttributes::default()
    };
    let spec =
        SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..SelfSubjectAccessReviewSpec::default() };
    SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() }
}

/// An authorizer that failed has not said no.
fn judged(status: Option<SubjectAccessReviewStatus>) -> Answer {
    let Some(status) = status else { return Answer::Unknown("the API server said nothing".to_owned()) };
    match (status.allowed, status.evaluation_error.filter(|e| !e.is_empty())) {
        (true, _) => Answer::Yes,
        (false, None) => Answer::No,
        // RBAC says with every refusal which roles it did not find, and has judged by the others
        (false, Some(error)) if error.contains("not found") => Answer::No,
        (false, Some(error)) => Answer::Unknown(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Line, Place, Setting, rights};

    #[test]
    fn a_question_names_subresource_object_and_namespace() {
        let table = [Line::new(&["create"], "", "pods/eviction", "drains").at(Place::Home).named("x")];
        let setting = Setting { home: "home".into(), ..Setting::default() };
        let asked = review(rights(&table, &setting).first().unwrap()).spec.resource_attributes.unwrap();
        assert_eq!((asked.resource.as_deref(), asked.subresource.as_deref()), (Some("pods"), Some("eviction")));
        assert_eq!((asked.name.as_deref(), asked.namespace.as_deref()), (Some("x"), Some("home")));
    }

    #[test]
    fn an_authorizer_that_failed_has_not_said_no() {
        let status = |allowed, error: &str| {
            let evaluation_error = Some(error.to_owned());
            Some(SubjectAccessReviewStatus { allowed, evaluation_error, ..SubjectAccessReviewStatus::default() })
        };
        assert_eq!(judged(status(true, "the webhook did not answer")), Answer::Yes);
        assert_eq!(judged(status(false, "")), Answer::No);
        assert_eq!(judged(status(false, "clusterrole \"x\" not found")), Answer::No);
        assert!(matches!(judged(status(false, "the webhook did not answer")), Answer::Unknown(_)));
        assert!(matches!(judged(None), Answer::Unknown(_)));
    }
}
