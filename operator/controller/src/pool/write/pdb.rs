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

use gputenancy_crds::ids::PodName;

/// Budgets that are read at once. Each object may have 1.5 MiB, and several evictions may be refused at the same time.
const PAGE: u32 = 10;
/// Most pages of budgets.
const MOST_PAGES: usize = 20;
/// Most budgets that are named.
const MOST_BUDGETS: usize = 4;
/// So many pods of a budget are read and named.
const MOST_NAMED: u32 = 5;

/// Name and labels of a pod.
#[derive(Resource, Serialize, Deserialize, Clone, Debug)]
#[resource(inherit = Pod)]
struct Named {
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
    metadata: ObjectMeta,
}

/// A budget that covers a pod, and its selector.
type Covering = (PodDisruptionBudget, Selector);

/// The budgets that cover a pod, each in a sentence. Read when an eviction was refused, and not watched: refusals are rare.
pub async fn behind(client: &Client, pod: &PodName) -> kube::Result<Vec<String>> {
    let found = Api::<Named>::namespaced(client.clone(), &pod.namespace).get(&pod.name).await?;
    let mut sentences = Vec::new();
    for (budget, selector) in covering(client, &pod.namespace, &found).await?.iter().take(MOST_BUDGETS) {
        // a tenant's namespace can hold more than fits into memory: metadata only, and a part of what the budget covers
        let some = ListParams::default().labels_from(selector).limit(MOST_NAMED);
        let request = Request::new(Pod::url_path(&(), Some(&pod.namespace))).list_metadata(&some);
        let pods = client.request::<ObjectList<Named>>(request.map_err(kube::Error::BuildRequest)?).await?;
        sentences.push(sentence(budget, &pods));
    }
    Ok(sentences)
}

/// The budgets of a namespace that cover a pod.
async fn covering(client: &Client, namespace: &str, pod: &Named) -> kube::Result<Vec<Covering>> {
    let budgets = Api::<Unmanaged<PodDisruptionBudget>>::namespaced(client.clone(), namespace);
    let (mut covering, mut page) = (Vec::new(), ListParams::default().limit(PAGE));
    for _ in 0..MOST_PAGES {
        let list = budgets.list(&page).await?;
        covering.extend(list.items.into_iter().filter_map(|Unmanaged(budget)| covers(budget, pod)));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    Ok(covering)
}

fn covers(budget: PodDisruptionBudget, pod: &Named) -> Option<Covering> {
    let selector: LabelSelector = budget.spec.as_ref()?.selector.clone()?;
    let selector = Selector::try_from(selector).ok()?;
    selector.matches(pod.labels()).then_some((budget, selector))
}

/// `pods`: the first of those that the budget covers.
fn sentence(budget: &PodDisruptionBudget, pods: &ObjectList<Named>) -> String {
    let mut covered: Vec<String> = pods.items.iter().map(ResourceExt::name_any).collect();
    covered.sort();
    let status = budget.status.clone().unwrap_or_default();
    let (healthy, needed) = (status.current_healthy.unwrap_or(0), status.desired_healthy.unwrap_or(0));
    let expected = usize::try_from(status.expected_pods.unwrap_or(0)).unwrap_or(0);
    let cut = pods.metadata.continue_.as_ref().is_some_and(|token| !token.is_empty());
    let more = match expected.saturating_sub(covered.len()) {
        _ if !cut => String::new(),
        0 => " and more".to_owned(),
        more => format!(" and {more} more"),
    };
    format!(
        "PodDisruptionBudget {} needs {needed} healthy of its pods {}{more}, and {healthy} are",
        budget.name_any(),
        covered.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use gputenancy_cluster::testing::{MockServer, Request};
    use serde_json::{Value, json};

    use super::*;

    const PODS: usize = 40;
    const BUDGETS: usize = 15;

    /// An API server whose namespace has pods `w-00`, `w-01`, ... and budgets; the last budget covers them.
    fn answer(request: &Request) -> Value {
        let path = &request.path;
        let from: usize = request.parameter("continue").map_or(0, |token| token.parse().unwrap());
        let pod = |n: usize| json!({"metadata": {"name": format!("w-{n:02}"), "labels": {"app": "w"}}});
        let budget = |n: usize| {
            let app = if n + 1 == BUDGETS { "w" } else { "x" };
            json!({
                "metadata": {"name": format!("b-{n}")}, "spec": {"selector": {"matchLabels": {"app": app}}},
                "status": {"currentHealthy": 40, "desiredHealthy": 40, "disruptionsAllowed": 0, "expectedPods": 40},
            })
        };
        let (total, item): (usize, &dyn Fn(usize) -> Value) =
            if path.contains("/poddisruptionbudgets") { (BUDGETS, &budget) } else { (PODS, &pod) };
        if let Some(name) = path.rsplit_once("/pods/w-") {
            return pod(name.1.parse().unwrap());
        }
        let until = total.min(from + request.parameter("limit").unwrap().parse::<usize>().unwrap());
        let token = if until < total { until.to_string() } else { String::new() };
        json!({"metadata": {"continue": token}, "items": (from..until).map(item).collect::<Vec<_>>()})
    }

    #[tokio::test]
    async fn refusal_names_the_budget_among_many_and_counts_all_its_pods() {
        let client = MockServer::new(answer).client();
        let pod = PodName { namespace: "team".into(), name: "w-31".into() };
        let expected = "PodDisruptionBudget b-14 needs 40 healthy of its pods w-00, w-01, w-02, w-03, w-04 and 35 more, and 40 are";
        assert_eq!(behind(&client, &pod).await.unwrap(), [expected]);
    }

    #[test]
    fn refusal_names_a_budget_that_covers_the_pod_and_no_other() {
        let pod: Named = serde_json::from_value(json!({"metadata": {"name": "w-0", "labels": {"app": "w"}}})).unwrap();
        let budget = |app: &str| -> PodDisruptionBudget {
            let spec = json!({"minAvailable": 2, "selector": {"matchLabels": {"app": app}}});
            let status = json!({"currentHealthy": 2, "desiredHealthy": 2, "disruptionsAllowed": 0, "expectedPods": 2});
            serde_json::from_value(json!({"metadata": {"name": app}, "spec": spec, "status": status})).unwrap()
        };
        assert!(covers(budget("x"), &pod).is_none());
        let (budget, _) = covers(budget("w"), &pod).unwrap();
        let pods = serde_json::from_value(json!({"metadata": {}, "items": [pod]})).unwrap();
        assert_eq!(sentence(&budget, &pods), "PodDisruptionBudget w needs 2 healthy of its pods w-0, and 2 are");
    }
}
