//! Rights of teams: a `SubjectAccessReview` for every subject, namespace, resource and verb.

use std::{collections::BTreeSet, fmt};

use e2e::{
    Result, World,
    fixtures::tenant,
    objects::ensure,
    product,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    rbac::v1::ClusterRole,
};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

const READ: &[&str] = &["get", "list", "watch"];
pub(crate) const ALL: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// Rights of owners in their own namespaces. Resources are written `GROUP/RESOURCE`.
const OWN: &[(&str, &[&str])] = &[
    ("/pods", ALL),
    ("/pods/log", READ),
    ("/pods/exec", ALL),
    ("/pods/attach", ALL),
    ("/pods/portforward", ALL),
    ("/pods/eviction", &["create"]),
    ("/configmaps", ALL),
    ("/secrets", ALL),
    ("/services", ALL),
    ("/persistentvolumeclaims", ALL),
    (
        "/serviceaccounts",
        &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate"],
    ),
    ("/serviceaccounts/token", &["create"]),
    ("apps/deployments", ALL),
    ("apps/statefulsets", ALL),
    ("apps/daemonsets", ALL),
    ("apps/deployments/scale", ALL),
    ("batch/jobs", ALL),
    ("batch/cronjobs", ALL),
    ("autoscaling/horizontalpodautoscalers", ALL),
    ("networking.k8s.io/networkpolicies", READ),
    ("networking.k8s.io/ingresses", ALL),
    ("policy/poddisruptionbudgets", ALL),
    ("resource.k8s.io/resourceclaims", ALL),
    ("resource.k8s.io/resourceclaimtemplates", ALL),
    ("/resourcequotas", READ),
    ("/resourcequotas/status", READ),
    ("/limitranges", READ),
    ("gputenancy.io/gpugrants", READ),
    ("/namespaces", READ),
    ("/pods/status", READ),
    ("resource.k8s.io/resourceclaims/status", READ),
    ("rbac.authorization.k8s.io/roles", ALL),
    ("rbac.authorization.k8s.io/rolebindings", ALL),
    // part of `view`: without effect in a namespace, because these kinds are cluster-scoped
    ("gputenancy.io/gpupools", READ),
    ("gputenancy.io/gputenants", READ),
    ("gputenancy.io/gpunodes", READ),
    (CATALOG, READ),
];

/// Readable for every authenticated user (`tenants.catalogReaders`).
const CATALOG: &str = "gputenancy.io/gpuprofiles";

/// Resources on which teams have no right in any namespace.
const FORBIDDEN: &[&str] = &[
    "/nodes",
    "/nodes/proxy",
    "/nodes/status",
    "/pods/binding",
    "/persistentvolumes",
    "/users",
    "/groups",
    "rbac.authorization.k8s.io/clusterroles",
    "rbac.authorization.k8s.io/clusterrolebindings",
    "resource.k8s.io/resourceclaims/driver",
    "resource.k8s.io/resourceclaims/binding",
    "resource.k8s.io/resourceslices",
    "resource.k8s.io/deviceclasses",
    "scheduling.k8s.io/priorityclasses",
    "node.k8s.io/runtimeclasses",
    "storage.k8s.io/storageclasses",
    "certificates.k8s.io/certificatesigningrequests",
    "apiextensions.k8s.io/customresourcedefinitions",
    "admissionregistration.k8s.io/validatingadmissionpolicies",
    "admissionregistration.k8s.io/validatingadmissionpolicybindings",
    "admissionregistration.k8s.io/mutatingadmissionpolicies",
    "admissionregistration.k8s.io/validatingwebhookconfigurations",
    "gputenancy.io/gputenants/status",
    "gputenancy.io/gpunodes/status",
];

/// Verbs that are reviewed in addition to [`ALL`].
const RARE: &[&str] = &["impersonate", "bind", "escalate", "approve"];

/// Namespaces that are reviewed; `None`: the whole cluster.
const PLACES: &[Option<&str>] = &[Some("team-a"), Some("team-b"), Some("gputenancy-system"), Some("kube-system"), None];

/// A user with groups, as an authenticator reports them.
struct Subject {
    user: &'static str,
    groups: &'static [&'static str],
    owns: Option<&'static str>,
    views: Option<&'static str>,
}

const SUBJECTS: &[Subject] = &[
    Subject { user: "ann", groups: &["group-a", "system:authenticated"], owns: Some("team-a"), views: None },
    Subject { user: "bob", groups: &["group-b", "system:authenticated"], owns: Some("team-b"), views: None },
    Subject {
        user: "system:serviceaccount:team-a:default",
        groups: &["system:serviceaccounts", "system:serviceaccounts:team-a", "system:authenticated"],
        owns: None,
        views: None,
    },
    Subject { user: "vic", groups: &["guests", "system:authenticated"], owns: None, views: Some("team-a") },
    Subject { user: "eve", groups: &["system:authenticated"], owns: None, views: None },
];

/// Resources that owners may read and viewers may not: they expose credentials, processes, or the team's role bindings.
const SECRET: &[&str] = &[
    "/secrets",
    "/pods/exec",
    "/pods/attach",
    "/pods/portforward",
    "rbac.authorization.k8s.io/roles",
    "rbac.authorization.k8s.io/rolebindings",
];

/// One access review.
#[derive(Clone, Copy)]
struct Cell {
    subject: &'static Subject,
    place: Option<&'static str>,
    resource: &'static str,
    verb: &'static str,
}

impl Cell {
    fn expected(&self) -> bool {
        let (own, views) = (self.subject.owns == self.place, self.subject.views == self.place);
        let may_read = READ.contains(&self.verb) && !SECRET.contains(&self.resource);
        let catalog = self.resource == CATALOG && READ.contains(&self.verb);
        let here = self.place.is_some()
            && (own || (views && may_read))
            && OWN.iter().any(|(resource, verbs)| *resource == self.resource && verbs.contains(&self.verb));
        here || catalog
    }

    async fn allowed(&self, world: &World) -> Result<bool> {
        let Self { subject, place, resource, verb } = self;
        allowed(world, (subject.user, subject.groups), *place, resource, verb).await
    }
}

/// The answer of an access review; without a namespace for the whole cluster.
pub(crate) async fn allowed(
    world: &World,
    (user, groups): (&str, &[&str]),
    place: Option<&str>,
    resource: &str,
    verb: &str,
) -> Result<bool> {
    let (group, rest) = resource.split_once('/').unwrap_or(("", resource));
    let (resource, subresource) = rest.split_once('/').map_or((rest, None), |(r, s)| (r, Some(s.to_owned())));
    let attributes = ResourceAttributes {
        group: Some(group.into()),
        resource: Some(resource.into()),
        subresource,
        namespace: place.map(String::from),
        verb: Some(verb.into()),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: Some(user.into()),
        groups: Some(groups.iter().map(|g| (*g).to_owned()).collect()),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let api = Api::<SubjectAccessReview>::all(world.client.clone());
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|s| s.allowed))
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, place, resource, verb } = self;
        write!(f, "{} {verb} {resource} in {}", subject.user, place.unwrap_or("the whole cluster"))
    }
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for subject in SUBJECTS {
        for place in PLACES.iter().copied() {
            for resource in OWN.iter().map(|(resource, _)| *resource).chain(FORBIDDEN.iter().copied()) {
                let verbs = ALL.iter().chain(RARE);
                cells.extend(verbs.map(|verb| Cell { subject, place, resource, verb }));
            }
        }
    }
    cells
}

#[tokio::test]
async fn rbac_limits_owners_and_viewers_to_their_namespaces() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        for team in ["a", "b"] {
            let mut team_of = tenant(&format!("team-{team}"), &[]);
            team_of["spec"]["owners"] = json!([{"kind": "Group", "name": format!("group-{team}")}]);
            if team == "a" {
                team_of["spec"]["viewers"] = json!([{"kind": "Group", "name": "guests"}]);
            }
            world.set(&[team_of]).await?;
        }
        for team in ["team-a", "team-b"] {
            tenant_ready(&world, team).await?;
        }
        let cells = cells();
        let review = |cell: Cell| {
            let world = &world;
            async move { Ok::<_, e2e::Error>((cell, cell.allowed(world).await?)) }
        };
        let answers: Vec<(Cell, bool)> = stream::iter(cells).map(review).buffer_unordered(32).try_collect().await?;
        let allowed = answers.iter().filter(|(_, allowed)| *allowed).count();
        println!("access: {} reviews, {allowed} allowed", answers.len());
        let wrong: Vec<String> = answers
            .iter()
            .filter(|(cell, allowed)| cell.expected() != *allowed)
            .map(|(cell, allowed)| format!("{cell}: {}", if *allowed { "allowed" } else { "refused" }))
            .collect();
        ensure(wrong.is_empty(), wrong.join("\n"))
    };
    world.keeping_evidence("access", body).await;
}

/// Rights of a cluster role as (group, resource, verb).
async fn rights(world: &World, role: &str) -> Result<BTreeSet<(String, String, String)>> {
    let role = Api::<ClusterRole>::all(world.client.clone()).get(role).await?;
    let mut rights = BTreeSet::new();
    for rule in role.rules.iter().flatten() {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                rights.extend(rule.verbs.iter().map(|verb| (group.clone(), resource.clone(), verb.clone())));
            }
        }
    }
    Ok(rights)
}

#[tokio::test]
async fn owner_role_equals_edit_without_network_policy_writes() {
    let world = World::enter_api().await.unwrap();
    let body = eventually("the aggregated roles", PATIENCE, || async {
        let (edit, owner) = (rights(&world, "edit").await?, rights(&world, "gputenancy:tenant-owner").await?);
        // the API group `extensions` no longer has these resources
        let kept = |(group, resource, verb): &&(String, String, String)| {
            group != "extensions" && (resource != "networkpolicies" || READ.contains(&verb.as_str()))
        };
        let lost: Vec<_> = edit.iter().filter(kept).filter(|right| !owner.contains(*right)).collect();
        let won: Vec<_> =
            owner.iter().filter(|(_, r, v)| r == "networkpolicies" && !READ.contains(&v.as_str())).collect();
        let fine = lost.is_empty() && won.is_empty() && edit.len() > 100;
        Ok(if fine { Ok(()) } else { Err(format!("edit has {}; missing {lost:?}; excess {won:?}", edit.len())) })
    });
    world.keeping_evidence("owner-role", body).await;
}

/// Pairs of resource and verb in a table of Markdown: resources in backticks in the first column, verbs in the second.
fn listed_rights(page: &str, heading: &str) -> BTreeSet<(String, String)> {
    let section = page.split(heading).nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.flat_map(|row| {
        let mut cells = row.split('|').skip(1).map(str::trim);
        let (resources, verbs) = (cells.next().unwrap(), cells.next().unwrap());
        let resources: Vec<&str> = resources.split(", ").map(|r| r.trim_matches('`')).collect();
        let verbs: Vec<&str> = verbs.split(", ").collect();
        let pairs = resources.into_iter().flat_map(move |r| verbs.clone().into_iter().map(move |v| (r, v)));
        pairs.map(|(r, v)| (r.to_owned(), v.to_owned())).collect::<Vec<_>>()
    })
    .collect()
}

/// Tests that need no cluster.
mod offline {
    use super::*;

    #[test]
    fn page_lists_the_rights_that_the_chart_gives_owners() {
        let page = std::fs::read_to_string(product::root().join("docs/tenancy.md")).unwrap();
        let roles: Vec<Value> =
            serde_saphyr::from_multiple(&crate::offline::chart::rendered("tenant-roles.yaml", &[])).unwrap();
        let of_owners = |role: &&Value| {
            let name = role["metadata"]["name"].as_str().unwrap_or_default();
            role["kind"] == "ClusterRole"
                && ["gputenancy:tenant-owner-base", "gputenancy:tenant-owner-roles"].contains(&name)
        };
        let texts = |list: &Value| -> Vec<String> { serde_json::from_value(list.clone()).unwrap() };
        let granting =
            roles.iter().filter(of_owners).flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default());
        let granted: BTreeSet<(String, String)> = granting
            .flat_map(|rule| {
                let verbs = texts(&rule["verbs"]);
                texts(&rule["resources"])
                    .into_iter()
                    .flat_map(move |r| verbs.clone().into_iter().map(move |v| (r.clone(), v)))
            })
            .collect();
        let listed = listed_rights(&page, "## What owners may do");
        let missing: Vec<_> = granted.difference(&listed).collect();
        let surplus: Vec<_> = listed.difference(&granted).collect();
        assert!(
            granted.len() > 100 && missing.is_empty() && surplus.is_empty(),
            "missing {missing:?}, too much {surplus:?}"
        );
    }
}
