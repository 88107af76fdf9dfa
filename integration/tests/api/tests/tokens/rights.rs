//! Least privilege: the chart's roles grant exactly the rights that the programs list, and a missing right is reported.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Output},
};

use e2e::{
    Error, Result, World,
    fixtures::tenant,
    objects::ensure,
    product::{self, NAMESPACE},
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_cluster::rights::{
    Right, agent,
    operator::{self, LEASE, Locations},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::offline::chart::rendered;

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

/// The single rights of a rule, as `VERB GROUP/RESOURCE NAME`.
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

/// The chart value that gives the operator rights on Secrets, and their names.
const PULLS: (&str, &[&str]) = ("tenants.imagePullSecrets={registry,mirror}", &["registry", "mirror"]);

/// The operator's flags with default values of the chart.
fn defaults() -> Locations {
    Locations {
        namespace: NAMESPACE.into(),
        mig_config_namespace: None,
        device_plugin_config_namespace: None,
        lease_name: LEASE.into(),
        pull_secrets: Vec::new(),
        wake_controllers: true,
        owners_read_tenant: true,
        usage_endpoint: false,
        virtual_clusters: false,
        kueue: false,
        agent_selector: String::new(),
    }
}

/// Those with the Secrets of [`PULLS`].
fn pulling() -> Locations {
    Locations { pull_secrets: PULLS.1.iter().map(|n| (*n).to_owned()).collect(), ..defaults() }
}

/// Rights that operator and agent list for these settings.
fn listed(locations: &Locations) -> Vec<Right> {
    operator::rights(locations).into_iter().chain(agent::rights()).collect()
}

fn installed(sets: &[&str]) -> Vec<Role> {
    ["operator-rbac.yaml", "mig-manager.yaml", "device-plugin.yaml", "agent-rbac.yaml"]
        .iter()
        .flat_map(|f| roles(&rendered(f, sets)))
        .collect()
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

    /// The output of the program's rights command.
    async fn run(&self, program: &'static str) -> Result<Output> {
        let path = product::root().join(format!("target/debug/gputenancy-{program}"));
        let kubeconfig = self.folder.path().join(program);
        let run = move || output(&path, &kubeconfig, program);
        tokio::task::spawn_blocking(run).await.map_err(|e| Error::Wrong(e.to_string()))?
    }

    /// The rights that a program reports as missing, in the form of [`grant`].
    async fn missing(&self, program: &'static str) -> Result<BTreeSet<String>> {
        let output = self.run(program).await?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let missing: Vec<Right> = listed(&pulling())
            .into_iter()
            .filter(|right| {
                let extra = ["mig-config", "device-plugin"].iter().any(|role| right.role.contains(role));
                right.role.contains(program) || (program == "operator" && extra)
            })
            .filter(|right| stderr.contains(&right.missing()))
            .collect();
        let lines = stderr.lines().count();
        ensure(lines == missing.len(), format!("{lines} lines for {} rights: {stderr}", missing.len()))?;
        ensure(
            output.status.success() == missing.is_empty(),
            format!("exit code {:?}: {stderr}", output.status.code()),
        )?;
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

/// Removes and restores each rule in turn.
async fn remove_each_rule(world: &World, programs: &Programs) -> Result<usize> {
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
async fn missing_rule_is_named_by_rights_command() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        product::install(&world.lab, &[PULLS.0]).await?;
        let outcome = missing_rules_are_named(&world).await;
        // the patches took field ownership from helm, which the next upgrade needs
        product::install_over_changes(&world.lab).await?;
        outcome
    };
    world.keeping_evidence("rights", body).await;
}

async fn missing_rules_are_named(world: &World) -> Result<()> {
    let programs = Programs::new(world).await?;
    for program in ["operator", "agent"] {
        let missing = programs.missing(program).await?;
        ensure(missing.is_empty(), format!("{program} lacks {missing:?}"))?;
    }
    let count = remove_each_rule(world, &programs).await?;
    println!("rights: {count} rules removed and named");
    eventually("all rights to be restored", PATIENCE, || async {
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

/// A client without retries, because 503 (not ready) is an expected answer.
async fn plain_client(world: &World) -> Result<Client> {
    let wrong = |why: String| Error::Text { what: "kubeconfig".into(), why };
    let file = Kubeconfig::read_from(world.lab.kubeconfig_path()).map_err(|e| wrong(e.to_string()))?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(file, &options).await.map_err(|e| wrong(e.to_string()))?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Answers of all pods of a program.
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
            // 503 (not ready)
            Err(kube::Error::Api(status)) => status.message,
            Err(other) => return Err(other.into()),
        });
    }
    Ok(answers)
}

/// Waits until the answer of one pod contains this text.
async fn answer_contains(world: &World, program: &str, port: u16, path: &str, what: &str) -> Result<()> {
    eventually(&format!("{what} in /{path} of {program}"), PATIENCE, || async {
        let answers = answers(world, program, port, path).await?;
        Ok(if answers.iter().any(|a| a.contains(what)) { Ok(()) } else { Err(answers.join("; ")) })
    })
    .await
}

/// Removes the rules for a resource from an installed role, and returns the role as it was.
async fn remove_rules(world: &World, name: &str, resource: &str) -> Result<Role> {
    let role = installed(&[]).into_iter().find(|r| r.name == name).ok_or_else(|| Error::Wrong(name.into()))?;
    let concerns = |rule: &&Value| words(&rule["resources"]).iter().any(|r| r == resource);
    let rest: Vec<Value> = role.rules.iter().filter(|r| !concerns(r)).cloned().collect();
    write(world, &role, &rest).await?;
    Ok(role)
}

#[tokio::test]
async fn running_program_reports_missing_right_and_recovers() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        let outcome = report_and_recover(&world).await;
        product::install_over_changes(&world.lab).await?;
        outcome
    };
    world.keeping_evidence("refused", Box::pin(body)).await;
}

async fn report_and_recover(world: &World) -> Result<()> {
    let role = remove_rules(world, "ClusterRole gputenancy-operator", "namespaces").await?;
    let named = async {
        world.set(&[tenant("late", &[])]).await?;
        let words = "may not create namespaces, needed for the namespaces of tenants: ClusterRole gputenancy-operator lacks \
                         {apiGroups: [\"\"], resources: [namespaces], verbs: [create]}";
        answer_contains(world, "operator", 8080, "readyz", words).await?;
        let metric = "gputenancy_operator_missing_rights{verb=\"create\",resource=\"namespaces\",feature=\"\"} 1";
        answer_contains(world, "operator", 8080, "metrics", metric).await
    };
    let named = named.await;
    write(world, &role, &role.rules).await?;
    named?;
    tenant_ready(world, "late").await?;

    // an agent checks its rights at start
    let role = remove_rules(world, "ClusterRole gputenancy-agent", "gpunodes/status").await?;
    let named = async {
        let pods = ["delete", "pod", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=gputenancy-agent"];
        world.kubectl(&[&pods[..], &["--field-selector", "spec.nodeName=gpu-1"]].concat()).await?;
        let words = "may not patch gpunodes.gputenancy.io/status, needed for reporting what NVML shows";
        answer_contains(world, "agent", 9410, "readyz", words).await?;
        answer_contains(world, "agent", 9410, "metrics", "gputenancy_agent_missing_rights{verb=\"patch\"").await
    };
    let named = named.await;
    write(world, &role, &role.rules).await?;
    named?;
    running_programs_are_ready(world).await
}

/// Tests that need no cluster.
mod offline {
    use super::*;

    #[test]
    fn roles_grant_exactly_the_listed_rights() {
        let unread = || Locations { owners_read_tenant: false, ..defaults() };
        for (sets, locations) in [
            (&[][..], defaults()),
            (&[PULLS.0], pulling()),
            (&["budget.wakeControllers=false"], Locations { wake_controllers: false, ..defaults() }),
            (&["tenants.ownersReadTenant=false"], unread()),
            (&["usageEndpoint.enabled=true"], Locations { usage_endpoint: true, ..defaults() }),
            (&["virtualClusters.enabled=true"], Locations { virtual_clusters: true, ..defaults() }),
            (&["queueing.kueue.enabled=true"], Locations { kueue: true, ..defaults() }),
            (&["policies.enabled=false"], unread()),
        ] {
            let wrong = differences(&installed(sets), &listed(&locations));
            assert!(wrong.is_empty(), "{sets:?}: {}", wrong.join("\n"));
        }
    }

    #[test]
    fn operator_reads_only_secrets_named_in_values() {
        let on = |role: &Role, resource: &str| {
            role.rules.iter().any(|r| words(&r["resources"]).iter().any(|w| w == resource))
        };
        for role in installed(&[]) {
            assert!(!on(&role, "secrets") && !on(&role, "serviceaccounts"), "{}", role.name);
        }
        for role in installed(&[PULLS.0]) {
            let nameless = |r: &&Value| {
                words(&r["resourceNames"]).is_empty() && words(&r["resources"]).contains(&"secrets".into())
            };
            assert_eq!(role.rules.iter().find(nameless), None, "{}", role.name);
        }
    }

    #[test]
    fn roles_contain_no_wildcard() {
        let roles = roles(&rendered("", &[PULLS.0, "usageEndpoint.enabled=true", "queueing.kueue.enabled=true"]));
        assert!(roles.len() > 5, "too few roles: {}", roles.len());
        for role in roles {
            for one in role.rules.iter().flat_map(granted) {
                assert!(!one.contains('*'), "{}: {one}", role.name);
            }
            assert!(!json!(role.rules).to_string().contains("nonResourceURLs"), "{}", role.name);
        }
    }
}
