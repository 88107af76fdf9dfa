//! Least privilege: the roles grant what the programs list and nothing else, and whatever is taken away is named.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Output},
};

use e2e::{
    Error, Result, World,
    objects::ensure,
    product::{self, NAMESPACE},
    scene::tenant,
    story::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_operator::locations::{LEASE, Locations};
use gputenancy_rights::Right;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::chart::rendered;

/// A role of the chart that a program runs with.
struct Role {
    /// Such as `ClusterRole gputenancy-agent`.
    name: String,
    rules: Vec<Value>,
}

/// Every role in these documents.
fn roles(documents: &str) -> Vec<Role> {
    let all: Vec<Value> = serde_saphyr::from_multiple(documents).unwrap();
    let role = |object: &Value| {
        let kind = object["kind"].as_str().filter(|k| ["ClusterRole", "Role"].contains(k))?;
        let place = object["metadata"]["namespace"].as_str().map(|n| format!(" of namespace {n}")).unwrap_or_default();
        let name = format!("{kind} {}{place}", object["metadata"]["name"].as_str()?);
        Some(Role { name, rules: object["rules"].as_array().cloned().unwrap_or_default() })
    };
    all.iter().filter_map(role).collect()
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|w| w.as_str().map(str::to_owned)).collect()
}

/// What a rule grants: verb, resource and object, one for each.
fn granted(rule: &Value) -> BTreeSet<String> {
    let mut granted = BTreeSet::new();
    let names = words(&rule["resourceNames"]);
    let names: Vec<Option<String>> = if names.is_empty() { vec![None] } else { names.into_iter().map(Some).collect() };
    for verb in words(&rule["verbs"]) {
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                granted.extend(names.iter().map(|name| grant(&verb, &group, &resource, name.as_deref())));
            }
        }
    }
    granted
}

fn grant(verb: &str, group: &str, resource: &str, name: Option<&str>) -> String {
    format!("{verb} {group}/{resource} {}", name.unwrap_or_default()).trim_end().to_owned()
}

fn needed(right: &Right) -> String {
    grant(right.verb, right.group, right.resource, right.name.as_deref())
}

/// Value of the chart by which the operator gets rights on Secrets, and what it then says.
const PULLS: (&str, &[&str]) = ("tenants.imagePullSecrets={registry,mirror}", &["registry", "mirror"]);

/// What operator and agent list, as the chart installs them with these Secrets.
fn listed(pull_secrets: &[&str], wake_controllers: bool) -> Vec<Right> {
    let locations = Locations {
        namespace: NAMESPACE.into(),
        mig_config_namespace: None,
        lease_name: LEASE.into(),
        pull_secrets: pull_secrets.iter().map(|n| (*n).to_owned()).collect(),
        wake_controllers,
    };
    let operator = gputenancy_operator::rights::rights(&locations);
    operator.into_iter().chain(gputenancy_agent::rights::rights()).collect()
}

fn installed(sets: &[&str]) -> Vec<Role> {
    ["operator-rbac.yaml", "mig-manager.yaml", "agent-rbac.yaml"]
        .iter()
        .flat_map(|f| roles(&rendered(f, sets)))
        .collect()
}

#[test]
fn the_roles_grant_what_the_programs_list_and_nothing_else() {
    let (set, names) = PULLS;
    let unwoken = installed(&["budget.wakeControllers=false"]);
    for (roles, listed) in
        [(installed(&[]), listed(&[], true)), (installed(&[set]), listed(names, true)), (unwoken, listed(&[], false))]
    {
        let wrong = differences(&roles, &listed);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn the_operator_may_read_no_secret_unless_the_chart_names_it() {
    let on =
        |role: &Role, resource: &str| role.rules.iter().any(|r| words(&r["resources"]).iter().any(|w| w == resource));
    for role in installed(&[]) {
        assert!(!on(&role, "secrets") && !on(&role, "serviceaccounts"), "{}", role.name);
    }
    for role in installed(&[PULLS.0]) {
        let nameless =
            |r: &&Value| words(&r["resourceNames"]).is_empty() && words(&r["resources"]).contains(&"secrets".into());
        assert_eq!(role.rules.iter().find(nameless), None, "{}", role.name);
    }
}

fn differences(roles: &[Role], listed: &[Right]) -> Vec<String> {
    let mut wrong = Vec::new();
    for right in listed {
        let role = roles.iter().find(|r| r.name == right.role);
        if !role.is_some_and(|r| r.rules.iter().flat_map(granted).any(|g| g == needed(right))) {
            wrong.push(format!("{} lacks {} ({})", right.role, right.rule(), right.why));
        }
    }
    for role in roles {
        let table = if role.name.contains("agent") { "agent" } else { "operator" };
        for one in role.rules.iter().flat_map(granted) {
            if !listed.iter().any(|right| right.role == role.name && needed(right) == one) {
                let (verb, rest) = one.split_once(' ').unwrap_or_default();
                let (resource, name) = rest.split_once(' ').map_or((rest, None), |(r, n)| (r, Some(n)));
                let (group, resource) = resource.split_once('/').unwrap_or_default();
                let place = if role.name.starts_with("ClusterRole") { "" } else { ".at(Place::…)" };
                let name = name.map(|n| format!(".named(\"{n}\")")).unwrap_or_default();
                let line = format!("Line::new(&[\"{verb}\"], \"{group}\", \"{resource}\", \"what for\"){place}{name},");
                wrong.push(format!(
                    "{} grants what {table}/src/rights.rs does not list: take it out of the chart, or add {line}",
                    role.name
                ));
            }
        }
    }
    wrong
}

#[test]
fn no_role_of_the_chart_has_a_wildcard() {
    let roles = roles(&rendered("", &[PULLS.0]));
    assert!(roles.len() > 5, "the chart has its roles");
    for role in roles {
        for one in role.rules.iter().flat_map(granted) {
            assert!(!one.contains('*'), "{}: {one}", role.name);
        }
        assert!(!json!(role.rules).to_string().contains("nonResourceURLs"), "{}", role.name);
    }
}

/// The programs on this machine, with the tokens of their accounts in the cluster.
struct Programs {
    folder: tempfile::TempDir,
}

impl Programs {
    async fn new(world: &World) -> Result<Self> {
        let io = |source| Error::Io { what: "kubeconfigs".into(), source };
        let folder = tempfile::tempdir().map_err(io)?;
        let text = world.kubectl(&["config", "view", "--raw", "--minify", "-o", "json"]).await?;
        let mut config: Value =
            serde_json::from_str(&text).map_err(|e| Error::Text { what: "kubeconfig".into(), why: e.to_string() })?;
        for program in ["operator", "agent"] {
            let account = format!("gputenancy-{program}");
            let token = world.kubectl(&["create", "token", &account, "-n", NAMESPACE]).await?;
            config["users"][0]["user"] = json!({"token": token.trim()});
            std::fs::write(folder.path().join(program), config.to_string()).map_err(io)?;
        }
        Ok(Self { folder })
    }

    /// What the program says about its rights.
    async fn run(&self, program: &'static str) -> Result<Output> {
        let path = product::root().join(format!("target/debug/gputenancy-{program}"));
        let kubeconfig = self.folder.path().join(program);
        let run = move || output(&path, &kubeconfig, program);
        tokio::task::spawn_blocking(run).await.map_err(|e| Error::Wrong(e.to_string()))?
    }

    /// The rights that a program says are missing, in the words of [`grant`].
    async fn missing(&self, program: &'static str) -> Result<BTreeSet<String>> {
        let output = self.run(program).await?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let missing: Vec<Right> = listed(PULLS.1, true)
            .into_iter()
            .filter(|right| {
                right.role.contains(program) || (program == "operator" && right.role.contains("mig-config"))
            })
            .filter(|right| told.contains(&right.missing()))
            .collect();
        let lines = told.lines().count();
        ensure(lines == missing.len(), format!("{lines} lines for {} rights: {told}", missing.len()))?;
        ensure(output.status.success() == missing.is_empty(), format!("exit code {:?}: {told}", output.status.code()))?;
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        let noes = table.lines().filter(|line| line.contains("  no ")).count();
        ensure(noes == missing.len() && table.contains("  yes "), format!("the table has {noes} noes: {table}"))?;
        Ok(missing.iter().map(needed).collect())
    }
}

fn output(program: &Path, kubeconfig: &Path, name: &str) -> Result<Output> {
    let args: &[&str] = if name == "agent" { &["--rights", "--node-name", "gpu-1"] } else { &["rights"] };
    let io = |source| Error::Io { what: program.display().to_string(), source };
    Command::new(program)
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .env("PULL_SECRETS", PULLS.1.join(","))
        .output()
        .map_err(io)
}

/// Writes the rules of an installed role.
async fn write(world: &World, role: &Role, rules: &[Value]) -> Result<()> {
    let mut words = role.name.split(' ');
    let (kind, name) = (words.next().unwrap_or_default().to_lowercase(), words.next().unwrap_or_default());
    let patch = json!({"rules": rules}).to_string();
    // "Role NAME of namespace NAMESPACE"
    let namespace = words.next_back().unwrap_or_default();
    let place: &[&str] = if kind == "role" { &["-n", namespace] } else { &[] };
    world.kubectl(&[&["patch", &kind, name, "--type=merge", "-p", &patch], place].concat()).await.map(drop)
}

/// Takes each rule away in turn, and gives it back.
async fn one_rule_after_the_other(world: &World, programs: &Programs) -> Result<usize> {
    let mut count = 0;
    for role in installed(&[PULLS.0]) {
        let program = if role.name.contains("agent") { "agent" } else { "operator" };
        for (index, rule) in role.rules.iter().enumerate() {
            let rest: Vec<Value> =
                role.rules.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, r)| r.clone()).collect();
            let kept: BTreeSet<String> = rest.iter().flat_map(granted).collect();
            // every authenticated user may read the catalog (`tenants.catalogReaders`)
            let catalog = ["get", "list", "watch"].map(|verb| format!("{verb} gputenancy.io/gpuprofiles"));
            let lost = granted(rule).into_iter().filter(|one| !kept.contains(one));
            let expected: BTreeSet<String> = lost.filter(|one| !catalog.contains(one)).collect();
            write(world, &role, &rest).await?;
            let what = format!("{} without {rule} named", role.name);
            let named = eventually(&what, PATIENCE, || async {
                let missing = programs.missing(program).await?;
                Ok(if missing == expected { Ok(()) } else { Err(format!("expected {expected:?}, named {missing:?}")) })
            })
            .await;
            write(world, &role, &role.rules).await?;
            named?;
            count += 1;
        }
    }
    Ok(count)
}

#[tokio::test]
async fn every_rule_that_is_taken_away_is_named() {
    let world = World::enter().await.unwrap();
    let body = async {
        product::install(&world.lab, &[PULLS.0]).await?;
        let outcome = taken_away_and_named(&world).await;
        // the roles are helm's again: the next test installs them with other rules
        product::take_back(&world.lab).await?;
        outcome
    };
    world.keeping_evidence("rights", body).await;
}

async fn taken_away_and_named(world: &World) -> Result<()> {
    let programs = Programs::new(world).await?;
    for program in ["operator", "agent"] {
        let missing = programs.missing(program).await?;
        ensure(missing.is_empty(), format!("{program} lacks {missing:?}"))?;
    }
    let count = one_rule_after_the_other(world, &programs).await?;
    println!("{count} rules were taken away and named");
    eventually("everything given back", PATIENCE, || async {
        let missing = programs.missing("operator").await?;
        Ok(if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) })
    })
    .await?;
    running_programs_are_ready(world).await
}

async fn running_programs_are_ready(world: &World) -> Result<()> {
    for program in ["deployment/gputenancy-operator", "daemonset/gputenancy-agent"] {
        world.kubectl(&["rollout", "status", "-n", NAMESPACE, program, "--timeout=240s"]).await?;
    }
    Ok(())
}

/// A client that takes "not ready" (503) for an answer, and does not ask again and again by itself.
async fn plain_client(world: &World) -> Result<Client> {
    let wrong = |why: String| Error::Text { what: "kubeconfig".into(), why };
    let file = Kubeconfig::read_from(world.lab.kubeconfig_path()).map_err(|e| wrong(e.to_string()))?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(file, &options).await.map_err(|e| wrong(e.to_string()))?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// What the pods of a program answer, one after the other.
async fn answers(world: &World, program: &str, port: u16, path: &str) -> Result<Vec<String>> {
    let client = plain_client(world).await?;
    let labels = ListParams::default().labels(&format!("app.kubernetes.io/name=gputenancy-{program}"));
    let pods = Api::<Pod>::namespaced(world.client.clone(), NAMESPACE).list(&labels).await?;
    let mut answers = Vec::new();
    for pod in pods.iter().filter(|p| p.metadata.deletion_timestamp.is_none()) {
        let uri = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}:{port}/proxy/{path}", pod.name_any());
        let request = http::Request::get(uri).body(Vec::new());
        let request = request.map_err(|e| Error::Text { what: "a request".into(), why: e.to_string() })?;
        answers.push(match client.request_text(request).await {
            Ok(text) => text,
            // "not ready" is an answer too
            Err(kube::Error::Api(status)) => status.message,
            Err(other) => return Err(other.into()),
        });
    }
    Ok(answers)
}

/// Waits until a pod of the program says this.
async fn says(world: &World, program: &str, port: u16, path: &str, what: &str) -> Result<()> {
    eventually(&format!("{program} says {what}"), PATIENCE, || async {
        let answers = answers(world, program, port, path).await?;
        Ok(if answers.iter().any(|a| a.contains(what)) { Ok(()) } else { Err(answers.join("; ")) })
    })
    .await
}

/// The installed role of this name, without the rules that name this resource.
async fn without(world: &World, name: &str, resource: &str) -> Result<Role> {
    let role = installed(&[]).into_iter().find(|r| r.name == name).ok_or_else(|| Error::Wrong(name.into()))?;
    let speaks = |rule: &&Value| words(&rule["resources"]).iter().any(|r| r == resource);
    let rest: Vec<Value> = role.rules.iter().filter(|r| !speaks(r)).cloned().collect();
    write(world, &role, &rest).await?;
    Ok(role)
}

#[tokio::test]
async fn programs_that_run_find_out_by_a_refusal_and_are_ready_again_once_it_is_given_back() {
    let world = World::enter().await.unwrap();
    let body = async {
        let outcome = found_out_and_ready_again(&world).await;
        product::take_back(&world.lab).await?;
        outcome
    };
    world.keeping_evidence("refused", Box::pin(body)).await;
}

async fn found_out_and_ready_again(world: &World) -> Result<()> {
    let role = without(world, "ClusterRole gputenancy-operator", "namespaces").await?;
    let named = async {
        world.set(&[tenant("late", &[])]).await?;
        let words = "may not create namespaces, needed for the namespaces of tenants: ClusterRole gputenancy-operator lacks \
                         {apiGroups: [\"\"], resources: [namespaces], verbs: [create]}";
        says(world, "operator", 8080, "readyz", words).await?;
        let metric = "gputenancy_operator_missing_rights{verb=\"create\",resource=\"namespaces\",feature=\"\"} 1";
        says(world, "operator", 8080, "metrics", metric).await
    };
    let named = named.await;
    write(world, &role, &role.rules).await?;
    named?;
    tenant_ready(world, "late").await?;

    // what an agent lacks it says from its start on
    let role = without(world, "ClusterRole gputenancy-agent", "gpunodes/status").await?;
    let named = async {
        let pods = ["delete", "pod", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=gputenancy-agent"];
        world.kubectl(&[&pods[..], &["--field-selector", "spec.nodeName=gpu-1"]].concat()).await?;
        let words = "may not patch gpunodes.gputenancy.io/status, needed for reporting what NVML shows";
        says(world, "agent", 9410, "readyz", words).await?;
        says(world, "agent", 9410, "metrics", "gputenancy_agent_missing_rights{verb=\"patch\"").await
    };
    let named = named.await;
    write(world, &role, &role.rules).await?;
    named?;
    running_programs_are_ready(world).await
}
