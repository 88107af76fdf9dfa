//! Which disruption budgets stand behind a refused eviction, and which pods they cover: the API server names neither pods nor
//! always the budget.

use gputenancy_crds::metadata::Unmanaged;
use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::PodDisruptionBudget},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, ObjectMeta},
    core::{ObjectList, Request, Selector, SelectorExt as _},
};
use serde::{Deserialize, Serialize};

use crate::plan::PodName;

/// So many pods of a namespace are read. Each object may have 1.5 MiB, and several evictions may be refused at the same time.
const MOST_PODS: u32 = 20;
/// So many budgets of a namespace are read.
const MOST_BUDGETS: u32 = 10;
/// So many pods of a budget are named.
const MOST_NAMED: usize = 5;

/// Name and labels of a pod.
#[derive(Resource, Serialize, Deserialize, Clone, Debug)]
#[resource(inherit = Pod)]
struct Named {
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
    metadata: ObjectMeta,
}

/// The budgets that cover a pod, each in a sentence. Read when an eviction was refused, and not watched: refusals are rare.
pub async fn behind(client: &Client, pod: &PodName) -> kube::Result<Vec<String>> {
    // a tenant's namespace can hold more than fits into memory: metadata only, and a part of it
    let some = |most| ListParams::default().limit(most);
    let request = Request::new(Pod::url_path(&(), Some(&pod.namespace))).list_metadata(&some(MOST_PODS));
    let request = request.map_err(kube::Error::BuildRequest)?;
    let mut pods = client.request::<ObjectList<Named>>(request).await?.items;
    if !pods.iter().any(|found| found.name_any() == pod.name) {
        pods.push(Api::<Named>::namespaced(client.clone(), &pod.namespace).get(&pod.name).await?);
    }
    let budgets = Api::<Unmanaged<PodDisruptionBudget>>::namespaced(client.clone(), &pod.namespace);
    let budgets = budgets.list(&some(MOST_BUDGETS)).await?.items.into_iter().map(|Unmanaged(budget)| budget);
    let budgets: Vec<PodDisruptionBudget> = budgets.collect();
    Ok(describe(&pod.name, &pods, &budgets))
}

fn describe(pod: &str, pods: &[impl ResourceExt], budgets: &[PodDisruptionBudget]) -> Vec<String> {
    let Some(labels) = pods.iter().find(|p| p.name_any() == pod).map(|p| p.labels().clone()) else { return Vec::new() };
    let selector = |budget: &PodDisruptionBudget| {
        let selector: LabelSelector = budget.spec.as_ref()?.selector.clone()?;
        Selector::try_from(selector).ok()
    };
    let covers = budgets.iter().filter_map(|b| Some((b, selector(b)?))).filter(|(_, s)| s.matches(&labels));
    covers.map(|(budget, selector)| sentence(budget, &selector, pods)).collect()
}

fn sentence(budget: &PodDisruptionBudget, selector: &Selector, pods: &[impl ResourceExt]) -> String {
    let mut covered: Vec<String> =
        pods.iter().filter(|p| selector.matches(p.labels())).map(ResourceExt::name_any).collect();
    covered.sort();
    let more = covered.len().saturating_sub(MOST_NAMED);
    covered.truncate(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let status = budget.status.clone().unwrap_or_default();
    let (healthy, needed) = (status.current_healthy.unwrap_or(0), status.desired_healthy.unwrap_or(0));
    format!(
        "PodDisruptionBudget {} needs {needed} healthy of its pods {}{more}, and {healthy} are",
        budget.name_any(),
        covered.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_names_the_budget_and_its_pods() {
        let pod = |name: &str, app: &str| {
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {"app": app}}})).unwrap()
        };
        let budget = |name: &str, app: &str| {
            serde_json::from_value(json!({
                "metadata": {"name": name}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": app}}},
                "status": {"currentHealthy": 2, "desiredHealthy": 2, "disruptionsAllowed": 0, "expectedPods": 2},
            }))
            .unwrap()
        };
        let pods: Vec<Pod> = vec![pod("w-1", "w"), pod("w-0", "w"), pod("x-0", "x")];
        let budgets = vec![budget("of-w", "w"), budget("of-x", "x")];
        assert_eq!(
            describe("w-0", &pods, &budgets),
            ["PodDisruptionBudget of-w needs 2 healthy of its pods w-0, w-1, and 2 are"]
        );
        assert!(describe("gone", &pods, &budgets).is_empty());
    }
}
